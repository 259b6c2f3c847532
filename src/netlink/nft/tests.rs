//! Rule sets against the real kernel, in a network namespace of the test's own (needs root).
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;
use crate::Namespace;
use crate::nft::build::{self, Field, TCP};
use crate::nft::expr::{FIRST_REGISTER, SetRef};
use crate::nft::set::{AnonymousSet, Key, KeyType, SetData};
use crate::nft::{
    Base, ChainType, Connection, Expr, Family, Hook, Remembered, Rule, Verdict, priority,
};

fn table() -> Table {
    Table::new(Family::Ip, "test")
}

fn service_key(last: u8, port: u16) -> Vec<u8> {
    Key::new()
        .address(Ipv4Addr::new(10, 43, 0, last).into())
        .protocol(TCP)
        .port(port)
        .bytes()
}

const SERVICE_FIELDS: [Field; 3] = [
    Field::DestinationAddress(Family::Ip),
    Field::Protocol,
    Field::DestinationPort,
];

fn endpoints(lasts: &[u8]) -> Vec<Vec<u8>> {
    let endpoint = |last: &u8| {
        Key::new()
            .address(Ipv4Addr::new(10, 42, 0, *last).into())
            .port(80)
            .bytes()
    };
    lasts.iter().map(endpoint).collect()
}

fn service_chain(lasts: &[u8]) -> Chain {
    let types = [KeyType::Ipv4, KeyType::Port];
    let rule = Rule::new()
        .with(build::pick_random(
            &endpoints(lasts),
            &types,
            FIRST_REGISTER,
        ))
        .with([build::dnat(Family::Ip, FIRST_REGISTER)])
        .comment("default/web");
    Chain {
        base: None,
        rules: vec![rule],
    }
}

fn ruleset(services: &[(u8, &[u8])]) -> Ruleset {
    let mut rules = Ruleset::default();
    let key = vec![KeyType::Ipv4, KeyType::Protocol, KeyType::Port];
    rules.set("services", Set::new(key).mapping_to(SetData::Verdict));
    rules.chain(
        "nat-prerouting",
        Chain {
            base: Some(Base::new(
                ChainType::Nat,
                Hook::Prerouting,
                priority::DSTNAT,
            )),
            rules: vec![Rule::new().with(build::verdict_map(&SERVICE_FIELDS, "services"))],
        },
    );
    for (last, lasts) in services {
        let name = format!("svc-{last}/x");
        rules.chain(name.clone(), service_chain(lasts));
        let data = ElementData::Verdict(Verdict::Goto(name));
        rules.element("services", service_key(*last, 80), Some(data));
    }
    rules
}

fn connect() -> Connection {
    let namespace = Namespace::create().expect("this test needs root");
    Connection::open_in(&namespace).unwrap()
}

#[test]
fn kernel_follows_from_one_ruleset_to_the_next() {
    let mut kernel = connect();
    let first = ruleset(&[(1, &[2, 3]), (2, &[4])]);
    kernel.commit(&first.replace(&table())).unwrap();
    assert_eq!(kernel.elements(&table(), "services").unwrap().len(), 2);

    let second = ruleset(&[(1, &[2, 3, 5]), (3, &[6, 7])]);
    let change = first.diff(&second, &table());
    kernel.commit(&change.main).unwrap();
    kernel.commit(&change.cleanup).unwrap();
    let keys: Vec<_> = kernel
        .elements(&table(), "services")
        .unwrap()
        .into_keys()
        .collect();
    assert_eq!(keys, [service_key(1, 80), service_key(3, 80)]);
    let names: Vec<_> = kernel
        .chains()
        .unwrap()
        .into_iter()
        .map(|c| c.name)
        .collect();
    assert_eq!(names, ["nat-prerouting", "svc-1/x", "svc-3/x"]);

    assert!(second.diff(&second, &table()).main.is_empty());
    kernel.commit(&second.replace(&table())).unwrap();
    kernel.delete_table(&table()).unwrap();
    kernel.delete_table(&table()).unwrap();
    assert_eq!(kernel.tables().unwrap(), []);
}

#[test]
fn refusal_names_the_command_and_changes_nothing() {
    let mut kernel = connect();
    kernel
        .commit(&ruleset(&[(1, &[2])]).replace(&table()))
        .unwrap();
    let mut batch = Batch::new(table());
    batch.push(Command::AddChain {
        name: "fine".into(),
        base: None,
    });
    batch.push(Command::AddRule {
        chain: "missing".into(),
        rule: Rule::new().verdict(Verdict::Accept).comment("the culprit"),
    });
    let error = kernel.commit(&batch).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(error.to_string().contains("the culprit"), "{error}");
    assert!(kernel.chains().unwrap().iter().all(|c| c.name != "fine"));
}

/// Every expression the callers may use is taken by the kernel.
#[test]
fn kernel_takes_every_expression() {
    let mut kernel = connect();
    let mut rules = Ruleset::default();
    let affinity = Set::new([KeyType::Ipv4])
        .mapping_to(SetData::Value(vec![KeyType::Ipv4, KeyType::Port]))
        .dynamic(65535);
    rules.set("affinity", affinity);
    rules.set("pairs", Set::new([KeyType::Ipv4, KeyType::Ipv4]));
    let two = Key::new()
        .address(Ipv4Addr::LOCALHOST.into())
        .address(Ipv4Addr::LOCALHOST.into());
    rules.element("pairs", two.bytes(), None);
    rules.chain("affine", affinity_chain());
    rules.chain(
        "nat-output",
        Chain {
            base: Some(Base::new(ChainType::Nat, Hook::Output, priority::DSTNAT)),
            rules: vec![
                Rule::new()
                    .with(build::to_local_address())
                    .with(build::in_network(
                        Field::DestinationAddress(Family::Ip),
                        "127.0.0.0/8".parse().unwrap(),
                        false,
                    ))
                    .with(build::protocol(TCP))
                    .with(build::destination_port(80))
                    .with(build::set_mark(1 << 21))
                    .verdict(Verdict::Jump("affine".into())),
                Rule::new()
                    .with(build::interface(Field::OutputInterface, "lo", true))
                    .with([Expr::Redirect { port: None }]),
            ],
        },
    );
    rules.chain(
        "nat-postrouting",
        Chain {
            base: Some(Base::new(
                ChainType::Nat,
                Hook::Postrouting,
                priority::SRCNAT,
            )),
            rules: vec![
                Rule::new()
                    .with(build::has_mark(1 << 21))
                    .with(build::clear_mark(1 << 21))
                    .with([build::masquerade()]),
                Rule::new()
                    .with(build::was_redirected())
                    .with(build::in_set(
                        &[
                            Field::SourceAddress(Family::Ip),
                            Field::DestinationAddress(Family::Ip),
                        ],
                        "pairs",
                    ))
                    .with([build::masquerade()]),
            ],
        },
    );
    rules.chain(
        "filter-input",
        Chain {
            base: Some(Base::new(ChainType::Filter, Hook::Input, priority::FILTER)),
            rules: vec![
                Rule::new()
                    .with(build::new_connection())
                    .with(build::from_local_address())
                    .with([
                        Expr::Limit {
                            rate: 5,
                            per: Duration::from_secs(1),
                            burst: 5,
                        },
                        Expr::Counter,
                        build::reject(),
                    ]),
                Rule::new().verdict(Verdict::Return),
                Rule::new().verdict(Verdict::Drop),
            ],
        },
    );
    kernel.commit(&rules.replace(&table())).unwrap();
}

fn affinity_chain() -> Chain {
    let picked = FIRST_REGISTER + 4;
    let types = vec![KeyType::Ipv4, KeyType::Port];
    let current = AnonymousSet {
        key: types.clone(),
        data: None,
        elements: endpoints(&[2, 3])
            .into_iter()
            .map(|key| Element { key, data: None })
            .collect(),
    };
    let source = Field::SourceAddress(Family::Ip);
    let known = Rule::new().with([
        source.load(FIRST_REGISTER),
        Expr::Lookup {
            set: SetRef::Named("affinity".into()),
            from: FIRST_REGISTER,
            to: Some(picked),
            invert: false,
        },
        build::in_anonymous(picked, current),
        build::remember(
            "affinity",
            FIRST_REGISTER,
            Some(picked),
            Duration::from_secs(9),
        ),
        build::dnat(Family::Ip, picked),
    ]);
    let fresh = Rule::new()
        .with([source.load(FIRST_REGISTER)])
        .with(build::pick_random(&endpoints(&[2, 3]), &types, picked))
        .with([
            build::forget("affinity", FIRST_REGISTER, Some(picked)),
            build::remember(
                "affinity",
                FIRST_REGISTER,
                Some(picked),
                Duration::from_secs(9),
            ),
            build::dnat(Family::Ip, picked),
        ]);
    Chain {
        base: None,
        rules: vec![known, fresh],
    }
}

#[test]
fn kernel_takes_ipv6_and_thousands_of_elements() {
    let mut kernel = connect();
    let v6 = Table::new(Family::Ip6, "test");
    let mut rules = Ruleset::default();
    rules.set("big", Set::new([KeyType::Ipv6, KeyType::Port]));
    for i in 0..5000u128 {
        let address = std::net::Ipv6Addr::from(i);
        rules.element(
            "big",
            Key::new().address(address.into()).port(1).bytes(),
            None,
        );
    }
    let endpoints: Vec<_> = (0..3000u128)
        .map(|i| {
            Key::new()
                .address(std::net::Ipv6Addr::from(i).into())
                .port(1)
                .bytes()
        })
        .collect();
    let types = [KeyType::Ipv6, KeyType::Port];
    let pick = |endpoints: &[Vec<u8>]| {
        Rule::new()
            .with(build::pick_random(endpoints, &types, FIRST_REGISTER))
            .with([build::dnat(Family::Ip6, FIRST_REGISTER)])
    };
    rules.chain(
        "pick",
        Chain {
            base: Some(Base::new(ChainType::Nat, Hook::Prerouting, -100)),
            rules: vec![pick(&endpoints), pick(&endpoints[..1])],
        },
    );
    kernel.commit(&rules.replace(&v6)).unwrap();
    assert_eq!(kernel.elements(&v6, "big").unwrap().len(), 5000);
}

#[test]
fn dynamic_elements_can_be_carried_over_and_tables_recognised() {
    let mut kernel = connect();
    let mut rules = Ruleset::default();
    let affinity = Set::new([KeyType::Ipv4])
        .mapping_to(SetData::Value(vec![KeyType::Ipv4, KeyType::Port]))
        .dynamic(65535);
    rules.set("affinity", affinity);
    let elements: Vec<_> = (0..600u32)
        .map(|i| Remembered {
            key: i.to_be_bytes().to_vec(),
            value: endpoints(&[2]).remove(0),
            timeout: Duration::from_secs(600),
            expires_in: Duration::from_secs(300),
        })
        .collect();
    assert_eq!(kernel.fingerprint(&table()).unwrap(), None);
    let mut batch = rules.replace(&table());
    batch.push(Command::Remember {
        set: "affinity".into(),
        elements: elements.clone(),
    });
    kernel.commit(&batch).unwrap();
    let mut found = kernel.remembered(&table(), "affinity").unwrap();
    found.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(found.len(), elements.len());
    assert_eq!(
        (&found[7].key, &found[7].value),
        (&elements[7].key, &elements[7].value)
    );
    assert_eq!(found[7].timeout, Duration::from_secs(600));
    assert!(found[7].expires_in <= Duration::from_secs(300));
    assert!(found[7].expires_in > Duration::from_secs(290));

    let before = kernel.fingerprint(&table()).unwrap();
    assert!(before.is_some());
    kernel.commit(&batch).unwrap();
    assert_ne!(kernel.fingerprint(&table()).unwrap(), before);
}

#[test]
fn others_changes_are_heard_and_our_own_are_not() {
    let namespace = Namespace::create().expect("this test needs root");
    let work = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            let groups = [crate::Group::Nftables];
            let mut monitor = crate::Monitor::open(crate::Protocol::Netfilter, &groups).unwrap();
            let mut kernel = Connection::open().unwrap();
            let batch = ruleset(&[(1, &[2])]).replace(&table());
            let short = Duration::from_millis(100);
            monitor.pause().unwrap();
            kernel.commit(&batch).unwrap();
            monitor.resume().unwrap();
            let heard = tokio::time::timeout(short, monitor.changed(|_| true)).await;
            assert!(heard.is_err());
            kernel.commit(&batch).unwrap();
            let heard = tokio::time::timeout(short * 50, monitor.changed(|_| true)).await;
            heard.unwrap().unwrap();
        });
    };
    namespace.run(work).unwrap();
}
