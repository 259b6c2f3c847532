//! Links and routes of the real kernel, in namespaces of the test's own (needs root).
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{Namespace, namespace};

fn create() -> (Namespace, Connection) {
    let namespace = Namespace::create().expect("this test needs root");
    let connection = Connection::open_in(&namespace).unwrap();
    (namespace, connection)
}

fn veth<'a>(name: &'a str, peer: &'a str, namespace: Option<&'a Namespace>) -> Veth<'a> {
    Veth {
        name,
        mac: Some(MacAddress([2, 0, 0, 0, 0, 1])),
        mtu: Some(1400),
        peer: VethPeer {
            name: peer,
            mac: Some(MacAddress([2, 0, 0, 0, 0, 2])),
            namespace,
        },
    }
}

#[test]
fn a_veth_pair_spans_two_namespaces() {
    let (host_ns, mut host) = create();
    let (pod_ns, mut pod) = create();
    assert_ne!(host_ns.inode().unwrap(), pod_ns.inode().unwrap());
    host.create_veth(&veth("vh", "eth0", Some(&pod_ns)))
        .unwrap();
    assert!(
        host.create_veth(&veth("vh", "x", None))
            .unwrap_err()
            .is_exists()
    );
    let near = host.link("vh").unwrap();
    let far = pod.link("eth0").unwrap();
    assert_eq!((near.mtu, far.mtu), (1400, 1400));
    assert_eq!(far.mac.unwrap().to_string(), "02:00:00:00:00:02");
    assert_eq!(near.kind.as_deref(), Some("veth"));
    assert!(!near.up);
    host.set_up(near.index).unwrap();
    assert!(host.link("vh").unwrap().up);
    host.delete_link("vh").unwrap();
    assert!(pod.find_link("eth0").unwrap().is_none());
    assert!(host.delete_link("vh").unwrap_err().is_not_found());
}

#[test]
fn addresses_routes_and_neighbours_are_kept() {
    let (_namespace, mut host) = create();
    host.create_veth(&veth("a", "b", None)).unwrap();
    let link = host.link("a").unwrap();
    host.set_up(link.index).unwrap();
    let peer = host_link(&mut host, "b");
    host.set_up(peer).unwrap();
    let change = LinkChange {
        mtu: Some(1300),
        ..LinkChange::default()
    };
    host.change_link(link.index, &change).unwrap();
    assert_eq!(host.link("a").unwrap().mtu, 1300);

    let address = Address {
        link: link.index,
        network: "10.42.0.1/32".parse().unwrap(),
    };
    host.add_address(&address).unwrap();
    host.add_address(&address).unwrap();
    assert!(host.addresses().unwrap().contains(&address));

    let to_pod = Route::to("10.42.0.5/32".parse().unwrap())
        .on_link(link.index)
        .from_source("10.42.0.1".parse().unwrap());
    let gateway = "169.254.1.1".parse().unwrap();
    let onlink = Route::to("10.43.0.0/16".parse().unwrap())
        .via(gateway)
        .on_link(link.index)
        .onlink();
    for route in [to_pod, to_pod, onlink] {
        host.replace_route(&route).unwrap();
    }
    let routes = host.routes().unwrap();
    assert_eq!(
        routes
            .iter()
            .filter(|r| r.destination == to_pod.destination)
            .count(),
        1
    );
    assert!(routes.contains(&to_pod), "{routes:?}");
    assert_eq!(
        routes.iter().find(|r| r.gateway.is_some()).unwrap().gateway,
        Some(gateway)
    );
    host.delete_route(&to_pod).unwrap();
    assert!(host.delete_route(&to_pod).unwrap_err().is_not_found());

    let neighbour = Neighbour {
        link: link.index,
        address: gateway,
        mac: MacAddress([2, 0, 0, 0, 0, 9]),
    };
    host.replace_neighbour(&neighbour).unwrap();
    host.replace_neighbour(&neighbour).unwrap();
    assert_eq!(host.neighbours().unwrap(), [neighbour]);
    host.delete_neighbour(&neighbour).unwrap();
    host.delete_address(&address).unwrap();
}

fn host_link(host: &mut Connection, name: &str) -> u32 {
    host.link(name).unwrap().index
}

#[test]
fn links_move_and_change_their_names() {
    let (_here, mut host) = create();
    let (there, mut other) = create();
    host.create_veth(&veth("a", "b", None)).unwrap();
    let index = host_link(&mut host, "b");
    let rename = LinkChange {
        name: Some("renamed"),
        ..LinkChange::default()
    };
    host.change_link(index, &rename).unwrap();
    let moved = LinkChange {
        namespace: Some(&there),
        ..LinkChange::default()
    };
    host.change_link(index, &moved).unwrap();
    assert!(other.find_link("renamed").unwrap().is_some());
}

#[test]
fn an_ordinary_file_is_no_namespace() {
    assert!(!namespace::is_namespace("/proc/self/status".as_ref()));
    assert!(namespace::is_namespace("/proc/self/ns/net".as_ref()));
    assert!(Namespace::open("/nowhere").is_err());
}
