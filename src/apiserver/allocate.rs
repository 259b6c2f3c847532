//! Service addresses and node ports.
//!
//! What is taken is derived from the Services that exist: the pools are filled from the cache when
//! the server starts and follow every write. Nothing about them is stored, so nothing can leak.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sampan_api::field::{ErrorList, Path};
use sampan_api::kinds::service as fields;
use sampan_api::kinds::service::{collect_node_ports, needs_health_check, needs_node_ports};
use sampan_api::meta::{self, items, text};
use sampan_api::{Reason, Status};
use serde_json::{Value, json};

use crate::registry::hooks::{Reservation, Reserve};
use crate::registry::server::Core;

mod pool;

pub use pool::{AddressPool, PortPool, Range};

struct Pools {
    addresses: Vec<AddressPool>,
    ports: PortPool,
}

/// The [`Reserve`] hook of Services.
pub struct ServiceReserve {
    pools: Arc<Mutex<Pools>>,
}

impl ServiceReserve {
    /// `ranges` are the service ranges, the first one gives the default family.
    pub fn new(core: &Core, ranges: &[Range], ports: (u16, u16)) -> Self {
        let mut pools = Pools {
            addresses: ranges.iter().copied().map(AddressPool::new).collect(),
            ports: PortPool::new(ports.0, ports.1),
        };
        if let Some(row) = core.row("", "services") {
            let snapshot = core.cache.snapshot(&core.cache.bucket(&row));
            for object in snapshot.map.iter_from("") {
                if let Ok(service) = serde_json::from_slice::<Value>(&object.bytes) {
                    pools.occupy(&service);
                }
            }
        }
        Self {
            pools: Arc::new(Mutex::new(pools)),
        }
    }
}

fn lock(pools: &Mutex<Pools>) -> MutexGuard<'_, Pools> {
    pools.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pools {
    fn of_family(&mut self, family: &str) -> Option<&mut AddressPool> {
        self.addresses
            .iter_mut()
            .find(|pool| pool.family() == family)
    }

    fn default_family(&self) -> &'static str {
        self.addresses.first().map_or("IPv4", AddressPool::family)
    }

    fn families(&self) -> Vec<&'static str> {
        self.addresses.iter().map(AddressPool::family).collect()
    }

    fn occupy(&mut self, service: &Value) {
        for address in addresses(service) {
            for pool in &mut self.addresses {
                pool.occupy(address);
            }
        }
        for port in all_ports(service) {
            self.ports.occupy(port);
        }
    }

    fn release(&mut self, addresses: &[IpAddr], ports: &[u16]) {
        for address in addresses {
            for pool in &mut self.addresses {
                pool.release(*address);
            }
        }
        for port in ports {
            self.ports.release(*port);
        }
    }
}

/// The addresses a service holds.
fn addresses(service: &Value) -> Vec<IpAddr> {
    items(service, &["spec", "clusterIPs"])
        .iter()
        .filter_map(|address| address.as_str()?.parse().ok())
        .collect()
}

/// Node ports and the health check's port.
fn all_ports(service: &Value) -> Vec<u16> {
    let mut ports = collect_node_ports(service);
    let health = meta::integer(service, &["spec", "healthCheckNodePort"]);
    ports.extend(
        health
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port != 0),
    );
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// What one write took, and what it will give back if it succeeds.
struct Taken {
    pools: Arc<Mutex<Pools>>,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    release_addresses: Vec<IpAddr>,
    release_ports: Vec<u16>,
    dry_run: bool,
    kept: bool,
}

impl Reservation for Taken {
    fn keep(mut self: Box<Self>) {
        self.kept = true;
        if !self.dry_run {
            lock(&self.pools).release(&self.release_addresses, &self.release_ports);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.kept || self.dry_run {
            lock(&self.pools).release(&self.addresses, &self.ports);
        }
    }
}

impl Reserve for ServiceReserve {
    fn serves(&self) -> (&'static str, &'static str) {
        ("", "services")
    }

    fn begin(
        &self,
        object: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<Box<dyn Reservation>, Status> {
        let mut taken = Box::new(Taken {
            pools: self.pools.clone(),
            addresses: Vec::new(),
            ports: Vec::new(),
            release_addresses: Vec::new(),
            release_ports: Vec::new(),
            dry_run,
            kept: false,
        });
        if let Some(old) = old {
            fields::keep_allocated(object, old);
        }
        fields::sync_cluster_ips(object, old);
        {
            let pools = lock(&self.pools);
            let cluster = fields::Cluster {
                default_family: pools.default_family(),
                families: &pools.families(),
            };
            fields::init_families(object, old, &cluster)?;
        }
        take_addresses(&mut taken, object, old)?;
        take_ports(&mut taken, object, old)?;
        if let Some(old) = old {
            let (kept_addresses, kept_ports) = (addresses(object), all_ports(object));
            taken.release_addresses = addresses(old)
                .into_iter()
                .filter(|one| {
                    !kept_addresses.contains(one)
                        || text(object, &["spec", "type"]) == "ExternalName"
                })
                .collect();
            let ports_of_new = if needs_node_ports(object) {
                kept_ports
            } else {
                Vec::new()
            };
            taken.release_ports = all_ports(old)
                .into_iter()
                .filter(|one| !ports_of_new.contains(one))
                .collect();
        }
        Ok(taken)
    }

    fn deleted(&self, object: &Value) {
        lock(&self.pools).release(&addresses(object), &all_ports(object));
    }
}

fn invalid(service: &Value, build: impl FnOnce(&mut ErrorList)) -> Status {
    let mut errors = ErrorList::new();
    build(&mut errors);
    errors.to_status("", "Service", text(service, &["metadata", "name"]))
}

/// Takes the addresses the object has no right to yet: named ones, or free ones where none is named.
fn take_addresses(
    taken: &mut Taken,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if text(object, &["spec", "type"]) == "ExternalName"
        || items(object, &["spec", "clusterIPs"])
            .first()
            .is_some_and(|one| one == "None")
    {
        return Ok(());
    }
    let held = old.map(addresses).unwrap_or_default();
    let families: Vec<String> = items(object, &["spec", "ipFamilies"])
        .iter()
        .filter_map(|family| family.as_str().map(str::to_owned))
        .collect();
    let mut list: Vec<String> = items(object, &["spec", "clusterIPs"])
        .iter()
        .map(|one| one.as_str().unwrap_or_default().to_owned())
        .collect();
    let shown = list.clone();
    let mut pools = lock(&taken.pools);
    for (index, family) in families.iter().enumerate() {
        if index >= list.len() {
            list.push(String::new());
        }
        let Some(pool) = pools.of_family(family) else {
            continue;
        };
        let address = if list[index].is_empty() {
            let Some(address) = pool.take_any() else {
                let name = text(object, &["metadata", "name"]);
                return Err(Status::internal(format!(
                    "failed to allocate a serviceIP for Service {name:?}: range is full"
                )));
            };
            address
        } else {
            let Ok(address) = list[index].parse::<IpAddr>() else {
                continue;
            };
            if held.contains(&address) {
                continue;
            }
            if let Err(why) = pool.take(address) {
                let path = Path::new("spec");
                let text = format!("failed to allocate IP {address}: {why}");
                return Err(invalid(object, |errors| {
                    errors.invalid(&path.child("clusterIPs"), json!(shown), text);
                }));
            }
            address
        };
        taken.addresses.push(address);
        list[index] = address.to_string();
    }
    drop(pools);
    if let Some(first) = list.first() {
        meta::set(object, &["spec", "clusterIP"], first.as_str());
    }
    meta::set(object, &["spec", "clusterIPs"], list);
    Ok(())
}

fn take_ports(taken: &mut Taken, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    let held = old.map(all_ports).unwrap_or_default();
    if needs_node_ports(object) {
        take_node_ports(taken, object, &held)?;
    }
    if needs_health_check(object) && !old.is_some_and(needs_health_check) {
        let asked = meta::integer(object, &["spec", "healthCheckNodePort"]).unwrap_or(0);
        let mut pools = lock(&taken.pools);
        let port = if asked == 0 {
            pools.ports.take_any().ok_or_else(|| {
                Status::internal("failed to allocate a HealthCheck NodePort 0: range is full")
            })?
        } else {
            let port = u16::try_from(asked).unwrap_or(0);
            pools.ports.take(port).map_err(|why| {
                Status::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {asked}: {why}"
                ))
            })?;
            port
        };
        drop(pools);
        taken.ports.push(port);
        meta::set(object, &["spec", "healthCheckNodePort"], port);
    }
    Ok(())
}

/// Numbers of node ports that were not taken begin after this one, as upstream shows them.
const DRY_RUN_PORT: u16 = 32_768;

fn take_node_ports(taken: &mut Taken, object: &mut Value, held: &[u16]) -> Result<(), Status> {
    let allocates = fields::allocates_node_ports(object);
    let count = items(object, &["spec", "ports"]).len();
    let mut by_port: Vec<(i64, u16)> = Vec::new();
    for index in 0..count {
        let port = &items(object, &["spec", "ports"])[index];
        let asked = meta::integer(port, &["nodePort"]).unwrap_or(0);
        if asked == 0 && !allocates {
            continue;
        }
        let number = meta::integer(port, &["port"]).unwrap_or(0);
        let known = by_port
            .iter()
            .find(|(port, _)| *port == number)
            .map(|(_, node)| *node);
        let wanted = if asked != 0 {
            Some(u16::try_from(asked).unwrap_or(0))
        } else {
            known.or_else(|| {
                // The same port under another protocol may name the number.
                items(object, &["spec", "ports"])
                    .iter()
                    .filter(|one| meta::integer(one, &["port"]) == Some(number))
                    .find_map(|one| meta::integer(one, &["nodePort"]))
                    .and_then(|node| u16::try_from(node).ok())
                    .filter(|node| *node != 0)
            })
        };
        let mut pools = lock(&taken.pools);
        let node = match wanted {
            // A dry run is shown some number: nothing may be taken for it.
            None if taken.dry_run => {
                let last = taken.ports.iter().copied().max().unwrap_or(DRY_RUN_PORT);
                taken.ports.push(last.saturating_add(1));
                last.saturating_add(1)
            }
            Some(node) if held.contains(&node) || taken.ports.contains(&node) => node,
            Some(node) => {
                if let Err(why) = pools.ports.take(node) {
                    let path = Path::new("spec");
                    let ports = path.child("ports");
                    let at = ports.index(index);
                    return Err(invalid(object, |errors| {
                        errors.invalid(&at.child("nodePort"), node, why);
                    }));
                }
                taken.ports.push(node);
                node
            }
            None => {
                let node = pools.ports.take_any().ok_or_else(|| {
                    Status::new(
                        Reason::InternalError,
                        "Internal error occurred: failed to allocate a nodePort: range is full",
                    )
                })?;
                taken.ports.push(node);
                node
            }
        };
        drop(pools);
        by_port.push((number, node));
        if let Some(port) = meta::items_mut(object, &["spec", "ports"]).get_mut(index) {
            port["nodePort"] = json!(node);
        }
    }
    Ok(())
}
