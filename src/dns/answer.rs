//! The reply to one question: pure, over the records.

use std::collections::HashSet;
use std::net::IpAddr;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use sampan_client::ObjectKey;

use crate::name::{Subject, below, reverse_address, subject};
use crate::records::{Endpoint, Kind, Port, Records, Service};

/// How long answers may be kept, in seconds; CoreDNS's default.
const TTL: u32 = 5;
/// The version of the DNS specification that is followed.
const SPECIFICATION: &str = "1.1.0";
/// All SRV records of an answer together.
const WEIGHT: usize = 100;
/// Fixed: what changes is not transferred by zone.
const SERIAL: u32 = 1;

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Reply(Reply),
    /// The name is not the cluster's.
    Forward,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub code: ResponseCode,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    pub additionals: Vec<Record>,
    /// The answer is an alias: whoever asked for addresses wants those of this name too.
    pub chase: Option<Name>,
}

impl Reply {
    fn answers(answers: Vec<Record>) -> Self {
        Self {
            code: ResponseCode::NoError,
            answers,
            authorities: Vec::new(),
            additionals: Vec::new(),
            chase: None,
        }
    }

    fn negative(code: ResponseCode, records: &Records) -> Self {
        Self {
            code,
            authorities: vec![soa(records)],
            ..Self::answers(Vec::new())
        }
    }

    /// The name exists, but not with this type.
    fn no_data(records: &Records) -> Self {
        Self::negative(ResponseCode::NoError, records)
    }

    fn no_name(records: &Records) -> Self {
        Self::negative(ResponseCode::NXDomain, records)
    }
}

pub fn answer(query: &Query, records: &Records) -> Answer {
    if query.query_class != DNSClass::IN {
        return Answer::Forward;
    }
    if let Some(labels) = below(&records.domain, &query.name) {
        return Answer::Reply(reply(query, &subject(&labels), records));
    }
    match reverse_address(&query.name) {
        Some(address) if query.query_type == RecordType::PTR => reverse(query, address, records),
        _ => Answer::Forward,
    }
}

fn reply(query: &Query, subject: &Subject, records: &Records) -> Reply {
    match subject {
        Subject::Apex => apex(query, records),
        Subject::Version => version(query, records),
        Subject::NameServer => addresses(query, &name_server_addresses(records), records),
        Subject::Branch => Reply::no_data(records),
        Subject::Namespace(name) => exists(records.has_namespace(name), records),
        Subject::Pod { namespace, .. } if !records.has_namespace(namespace) => {
            Reply::no_name(records)
        }
        Subject::Pod { address, .. } => addresses(query, &[*address], records),
        Subject::Service(key) => match found(key, records) {
            Some(service) => of_service(query, key, service, &|_| true, records),
            None => Reply::no_name(records),
        },
        Subject::Port {
            service: key,
            port,
            protocol,
        } => match found(key, records) {
            Some(service) => {
                let wanted = |each: &Port| each.name == *port && each.protocol == *protocol;
                of_service(query, key, service, &wanted, records)
            }
            None => Reply::no_name(records),
        },
        Subject::Protocol(key, protocol) => {
            let has =
                |service: &Service| service.ports.iter().any(|port| port.protocol == *protocol);
            exists(found(key, records).is_some_and(has), records)
        }
        Subject::Endpoint(key, label) => match found(key, records) {
            Some(_) => of_endpoint(query, key, label, records),
            None => Reply::no_name(records),
        },
        Subject::Unknown => Reply::no_name(records),
    }
}

fn found<'a>(key: &ObjectKey, records: &'a Records) -> Option<&'a Service> {
    records
        .service(key)
        .filter(|_| records.has_namespace(&key.namespace))
}

fn exists(exists: bool, records: &Records) -> Reply {
    if exists {
        Reply::no_data(records)
    } else {
        Reply::no_name(records)
    }
}

// === the domain itself ===

fn apex(query: &Query, records: &Records) -> Reply {
    match query.query_type {
        RecordType::SOA => Reply::answers(vec![soa(records)]),
        RecordType::NS => {
            let server = name_server(records);
            let mut reply =
                Reply::answers(vec![record(&query.name, RData::NS(NS(server.clone())))]);
            let addresses = name_server_addresses(records);
            reply.additionals = addresses
                .iter()
                .map(|address| record(&server, address_data(*address)))
                .collect();
            reply
        }
        _ => Reply::no_data(records),
    }
}

fn version(query: &Query, records: &Records) -> Reply {
    match query.query_type {
        RecordType::TXT => {
            let text = TXT::new(vec![SPECIFICATION.to_owned()]);
            Reply::answers(vec![record(&query.name, RData::TXT(text))])
        }
        _ => Reply::no_data(records),
    }
}

fn name_server(records: &Records) -> Name {
    name_below("ns.dns", records)
}

/// The server is reached through its Service.
fn name_server_addresses(records: &Records) -> Vec<IpAddr> {
    match records
        .service(&ObjectKey::new("kube-system", "kube-dns"))
        .map(|service| &service.kind)
    {
        Some(Kind::Cluster(addresses)) => addresses.clone(),
        _ => Vec::new(),
    }
}

fn soa(records: &Records) -> Record {
    let (server, person) = (name_server(records), name_below("hostmaster", records));
    let data = SOA::new(server, person, SERIAL, 7200, 1800, 86400, TTL);
    record(&records.domain, RData::SOA(data))
}

// === services ===

/// One thing that an SRV record can point to.
struct Target {
    name: Name,
    address: IpAddr,
    /// Without ports it has addresses only.
    port: Option<u16>,
}

fn of_service(
    query: &Query,
    key: &ObjectKey,
    service: &Service,
    wanted: &dyn Fn(&Port) -> bool,
    records: &Records,
) -> Reply {
    match &service.kind {
        Kind::External(target) => alias(query, target, records),
        Kind::Cluster(addresses) => {
            let name = service_name(key, records);
            let ports = service.ports.iter().filter(|port| wanted(port));
            let targets = ports
                .flat_map(|port| addresses.iter().map(move |address| (port.port, *address)))
                .map(|(port, address)| Target {
                    name: name.clone(),
                    address,
                    port: Some(port),
                })
                .collect();
            targets_reply(query, targets, records)
        }
        Kind::Headless => targets_reply(
            query,
            endpoint_targets(key, &|_| true, wanted, records),
            records,
        ),
    }
}

fn of_endpoint(query: &Query, key: &ObjectKey, label: &str, records: &Records) -> Reply {
    let targets = endpoint_targets(
        key,
        &|endpoint| endpoint.label() == label,
        &|_| true,
        records,
    );
    targets_reply(query, targets, records)
}

fn endpoint_targets(
    key: &ObjectKey,
    which: &dyn Fn(&Endpoint) -> bool,
    wanted: &dyn Fn(&Port) -> bool,
    records: &Records,
) -> Vec<Target> {
    let mut targets = Vec::new();
    for slice in records.slices(key) {
        for endpoint in slice.endpoints.iter().filter(|each| which(each)) {
            let name = endpoint_name(key, endpoint, records);
            let target = |port| Target {
                name: name.clone(),
                address: endpoint.address,
                port,
            };
            if slice.ports.is_empty() {
                targets.push(target(None));
            }
            let ports = slice.ports.iter().filter(|port| wanted(port));
            targets.extend(ports.map(|port| target(Some(port.port))));
        }
    }
    targets
}

fn targets_reply(query: &Query, targets: Vec<Target>, records: &Records) -> Reply {
    if targets.is_empty() {
        return Reply::no_name(records);
    }
    if query.query_type == RecordType::SRV {
        return srv(query, &targets, records);
    }
    let mut seen = HashSet::new();
    let all: Vec<IpAddr> = targets
        .iter()
        .map(|each| each.address)
        .filter(|address| seen.insert(*address))
        .collect();
    addresses(query, &all, records)
}

fn srv(query: &Query, targets: &[Target], records: &Records) -> Reply {
    let mut seen = HashSet::new();
    let pairs: Vec<(u16, &Name)> = targets
        .iter()
        .filter_map(|each| Some((each.port?, &each.name)))
        .filter(|pair| seen.insert(*pair))
        .collect();
    if pairs.is_empty() {
        return Reply::no_data(records);
    }
    let weight = u16::try_from((WEIGHT / pairs.len()).max(1)).unwrap_or(1);
    let answers = pairs.iter().map(|(port, name)| {
        record(
            &query.name,
            RData::SRV(SRV::new(0, weight, *port, (*name).clone())),
        )
    });
    let mut reply = Reply::answers(answers.collect());
    let mut seen = HashSet::new();
    reply.additionals = targets
        .iter()
        .filter(|each| each.port.is_some() && seen.insert((&each.name, each.address)))
        .map(|each| record(&each.name, address_data(each.address)))
        .collect();
    reply
}

fn alias(query: &Query, target: &str, records: &Records) -> Reply {
    let mut name = match Name::from_ascii(target) {
        Ok(name) => name,
        Err(error) => {
            tracing::debug!(target, %error, "an ExternalName is no name");
            return Reply::no_data(records);
        }
    };
    name.set_fqdn(true);
    let wants_addresses = matches!(query.query_type, RecordType::A | RecordType::AAAA);
    if !wants_addresses && query.query_type != RecordType::CNAME {
        return Reply::no_data(records);
    }
    let mut reply = Reply::answers(vec![record(&query.name, RData::CNAME(CNAME(name.clone())))]);
    reply.chase = wants_addresses.then_some(name);
    reply
}

fn addresses(query: &Query, all: &[IpAddr], records: &Records) -> Reply {
    let wanted = |address: &&IpAddr| match query.query_type {
        RecordType::A => address.is_ipv4(),
        RecordType::AAAA => address.is_ipv6(),
        _ => false,
    };
    let answers: Vec<Record> = all
        .iter()
        .filter(wanted)
        .map(|address| record(&query.name, address_data(*address)))
        .collect();
    if answers.is_empty() {
        Reply::no_data(records)
    } else {
        Reply::answers(answers)
    }
}

// === addresses to names ===

/// Addresses that are not the cluster's are the host's resolvers' business.
fn reverse(query: &Query, address: IpAddr, records: &Records) -> Answer {
    let mut names: Vec<Name> = match records.by_cluster_ip(address) {
        Some(key) => vec![service_name(key, records)],
        None => records
            .by_endpoint_ip(address)
            .map(|(key, each)| endpoint_name(key, each, records))
            .collect(),
    };
    names.dedup();
    if names.is_empty() {
        return Answer::Forward;
    }
    let answers = names
        .into_iter()
        .map(|name| record(&query.name, RData::PTR(PTR(name))));
    Answer::Reply(Reply::answers(answers.collect()))
}

// === pieces ===

fn service_name(key: &ObjectKey, records: &Records) -> Name {
    name_below(&format!("{}.{}.svc", key.name, key.namespace), records)
}

fn endpoint_name(key: &ObjectKey, endpoint: &Endpoint, records: &Records) -> Name {
    name_below(
        &format!("{}.{}.{}.svc", endpoint.label(), key.name, key.namespace),
        records,
    )
}

/// A name that does not fit below the domain (too long) becomes the domain itself.
fn name_below(labels: &str, records: &Records) -> Name {
    let name = Name::from_ascii(labels).and_then(|name| name.append_domain(&records.domain));
    name.unwrap_or_else(|_| records.domain.clone())
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, data)
}

fn address_data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}

#[cfg(test)]
mod tests;
