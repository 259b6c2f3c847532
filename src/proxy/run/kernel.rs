//! The node's tables as they were last committed, and how they follow the API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sampan_netlink::conntrack::Conntrack;
use sampan_netlink::nft::{Batch, Command, Connection, Family, Fingerprint, Ruleset, Table};

use super::Error;
use super::observe::{Observed, Work};
use crate::conntrack::{self, UdpServices};
use crate::health::{Check, Checks};
use crate::model::{self, ServiceName};
use crate::render::{render_base, render_service};
use crate::settings::{Node, Settings};
use crate::table::Assembly;

/// One table per address family, and the sockets to change them.
pub(super) struct Kernel {
    connection: Connection,
    conntrack: Conntrack,
    settings: Settings,
    families: Vec<FamilyTable>,
    checks: BTreeMap<ServiceName, Check>,
}

struct FamilyTable {
    family: Family,
    table: Table,
    assembly: Assembly,
    /// The table as we left it; `None`: the kernel may hold anything.
    left: Option<Fingerprint>,
}

impl Kernel {
    pub(super) fn open(settings: &Settings) -> Result<Self, Error> {
        let table = |family| FamilyTable {
            family,
            table: settings.table(family),
            assembly: Assembly::default(),
            left: None,
        };
        Ok(Self {
            connection: Connection::open()?,
            conntrack: Conntrack::open()?,
            settings: settings.clone(),
            families: settings.families().into_iter().map(table).collect(),
            checks: BTreeMap::new(),
        })
    }

    pub(super) fn sync(
        &mut self,
        observed: &Observed,
        work: Work,
        zone: Option<String>,
    ) -> Result<Checks, Error> {
        for index in 0..self.families.len() {
            let node = self
                .settings
                .node(self.families[index].family, zone.clone());
            let everything = work == Work::Everything || self.families[index].left.is_none();
            let pieces = match &work {
                Work::Services(names) if !everything => pieces_of(observed, names, &node),
                _ => all_pieces(observed, &node),
            };
            self.count(index, &pieces, everything);
            if everything {
                self.replace(index, pieces.rules, &node)?;
            } else {
                self.change(index, pieces.rules)?;
            }
            self.clean_flows(&node, &pieces.udp);
        }
        Ok(Arc::new(self.checks.clone()))
    }

    /// Load balancers ask per Service; the first family counts, as a pod is the same in both.
    fn count(&mut self, index: usize, pieces: &Pieces, everything: bool) {
        if index > 0 {
            return;
        }
        if everything {
            self.checks.clear();
        }
        for name in pieces.rules.keys() {
            match pieces.checks.get(name) {
                Some(check) => self.checks.insert(name.clone(), *check),
                None => self.checks.remove(name),
            };
        }
    }

    /// The whole table in one step, whatever was there before.
    fn replace(
        &mut self,
        index: usize,
        pieces: BTreeMap<ServiceName, Ruleset>,
        node: &Node,
    ) -> Result<(), Error> {
        let state = &mut self.families[index];
        state.assembly = Assembly::default();
        state.assembly.update(pieces);
        let mut whole = render_base(node);
        state.assembly.add_to(&mut whole);
        let mut batch = whole.replace(&state.table);
        carry_over(&mut self.connection, &whole, &mut batch);
        state.left = None;
        self.connection.commit(&batch)?;
        state.left = self.connection.fingerprint(&state.table)?;
        tracing::debug!(table = %state.table.name, chains = whole.chains.len(), "service rules in place");
        Ok(())
    }

    fn change(
        &mut self,
        index: usize,
        pieces: BTreeMap<ServiceName, Ruleset>,
    ) -> Result<(), Error> {
        let state = &mut self.families[index];
        let change = state.assembly.change(pieces, &state.table);
        if change.main.is_empty() && change.cleanup.is_empty() {
            return Ok(());
        }
        state.left = None;
        self.connection.commit(&change.main)?;
        self.connection.commit(&change.cleanup)?;
        state.left = self.connection.fingerprint(&state.table)?;
        Ok(())
    }

    /// Whether the tables are still those that we left.
    pub(super) fn is_intact(&mut self) -> Result<bool, Error> {
        for state in &self.families {
            if state.left.is_some() && self.connection.fingerprint(&state.table)? != state.left {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A failure here leaves some UDP clients with an old endpoint for a while: no reason to call
    /// the rules, which are in place, failed.
    fn clean_flows(&mut self, node: &Node, services: &UdpServices) {
        match conntrack::clean(&mut self.conntrack, node.family, services, &node.addresses) {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "stale UDP flows forgotten"),
            Err(error) => tracing::warn!(%error, "cannot forget stale UDP flows"),
        }
    }
}

/// Clients stay with their endpoints across a restart: what the old table's affinity maps hold goes
/// into the new ones.
fn carry_over(connection: &mut Connection, whole: &Ruleset, batch: &mut Batch) {
    let old = connection.sets(&batch.table).unwrap_or_default();
    for (name, _) in whole
        .sets
        .iter()
        .filter(|(name, set)| set.dynamic && old.contains(name))
    {
        match connection.remembered(&batch.table, name) {
            Ok(elements) if elements.is_empty() => {}
            Ok(elements) => batch.push(Command::Remember {
                set: name.clone(),
                elements,
            }),
            Err(error) => tracing::debug!(map = %name, %error, "cannot read affinities"),
        }
    }
}

#[derive(Default)]
struct Pieces {
    rules: BTreeMap<ServiceName, Ruleset>,
    udp: UdpServices,
    checks: BTreeMap<ServiceName, Check>,
}

fn all_pieces(observed: &Observed, node: &Node) -> Pieces {
    let (services, slices) = observed.all();
    let mut pieces = Pieces::default();
    let none = Vec::new();
    for service in services {
        let name = ServiceName::of(&service.metadata);
        let slices = slices.get(&name).unwrap_or(&none);
        pieces.add(name, &service, slices, node);
    }
    pieces
}

fn pieces_of<'a>(
    observed: &Observed,
    names: impl IntoIterator<Item = &'a ServiceName>,
    node: &Node,
) -> Pieces {
    let mut pieces = Pieces::default();
    for name in names {
        match observed.service(name) {
            Some(service) => pieces.add(name.clone(), &service, &observed.slices_of(name), node),
            None => {
                pieces.rules.insert(name.clone(), Ruleset::default());
            }
        }
    }
    pieces
}

impl Pieces {
    fn add(
        &mut self,
        name: ServiceName,
        service: &k8s_openapi::api::core::v1::Service,
        slices: &[std::sync::Arc<k8s_openapi::api::discovery::v1::EndpointSlice>],
        node: &Node,
    ) {
        let mut local = BTreeSet::new();
        for port in model::service_ports(service, node.family) {
            let endpoints = model::endpoints(slices, &port, node.family, &node.name);
            self.udp.add(&port, &endpoints);
            let ready = endpoints.iter().filter(|e| e.local && e.ready);
            local.extend(ready.map(|e| e.address));
        }
        if let Some(port) = model::health_check_port(service) {
            let local_endpoints = local.len();
            let check = Check {
                port,
                local_endpoints,
            };
            self.checks.insert(name.clone(), check);
        }
        self.rules
            .insert(name, render_service(service, slices, node));
    }
}
