//! Answers the plugin's calls on the agent's socket.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sampan_host::Journal;
use sampan_netlink::conntrack::Conntrack;
use sampan_netlink::nft::Family;
use sampan_netlink::nft::build::UDP;
use sampan_util::Shutdown;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::protocol::{Attached, Failure, Reply, Request, VERSIONS, code, versions};
use super::socket::with_short_path;
use crate::apply::Tables;
use crate::attach::{self, NodeSide};
use crate::ipam::{Allocation, Attachment, Ipam, PortMapping};
use crate::names;
use crate::plan::NodePlan;
use crate::rules::protocol_number;

/// A call is one line; a configuration is far smaller than this.
const LONGEST_REQUEST: u64 = 8 << 20;
/// After a failure to accept a call: trying at once again would only burn time.
const REST: std::time::Duration = std::time::Duration::from_millis(100);

/// Shared by all calls and the loop that follows the API.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    journal: Journal,
    families: Vec<Family>,
    state: Mutex<State>,
}

struct State {
    ipam: Ipam,
    tables: Tables,
    /// Present once the node's network is in place.
    ready: Option<(NodePlan, NodeSide)>,
}

impl Server {
    pub fn new(ipam: Ipam, tables: Tables, families: Vec<Family>, journal: Journal) -> Self {
        Self(Arc::new(Inner {
            journal,
            families,
            state: Mutex::new(State {
                ipam,
                tables,
                ready: None,
            }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's network has (a new) shape: pods may be attached.
    pub fn set_node(&self, plan: &NodePlan, side: NodeSide) -> Result<(), crate::apply::Error> {
        let mut state = self.state();
        state.ipam.set_ranges(&plan.pod_cidrs);
        state.refresh_tables(&self.0.families, plan)?;
        state.ready = Some((plan.clone(), side));
        Ok(())
    }

    /// Somebody has changed some rules: finds out whether ours were among them.
    pub fn tables_are_intact(&self) -> Result<bool, crate::apply::Error> {
        let mut state = self.state();
        let intact = state.tables.is_intact();
        if !matches!(intact, Ok(true)) {
            state.tables.forget();
        }
        intact
    }

    /// Answers one call. Blocks for as long as the kernel needs.
    pub fn answer(&self, request: &Request) -> Reply {
        match self.dispatch(request) {
            Ok(value) => Reply::Result(value),
            Err(failure) => {
                tracing::warn!(command = %request.command, sandbox = %request.container_id,
                               error = %failure, "network call failed");
                Reply::Error(failure)
            }
        }
    }

    fn dispatch(&self, request: &Request) -> Result<Value, Failure> {
        let version = request.version();
        if !VERSIONS.contains(&version) {
            let text = format!(
                "CNI version {version} is not one of {}",
                VERSIONS.join(", ")
            );
            return Err(Failure::new(code::INCOMPATIBLE_VERSION, text));
        }
        match request.command.as_str() {
            "ADD" => self.add(request),
            "DEL" => self.delete(request),
            "CHECK" => self.check(request),
            "VERSION" => Ok(versions(version)),
            "STATUS" => self.status(),
            "GC" => self.collect(request),
            other => {
                let text = format!("unknown CNI_COMMAND {other:?}");
                Err(Failure::new(code::INVALID_ENVIRONMENT, text))
            }
        }
    }

    fn status(&self) -> Result<Value, Failure> {
        match self.state().ready {
            Some(_) => Ok(Value::Null),
            None => Err(Failure::new(code::NOT_AVAILABLE, NOT_READY)),
        }
    }

    fn add(&self, request: &Request) -> Result<Value, Failure> {
        let attachment = attachment_of(request)?;
        if request.netns.is_empty() {
            let text = "CNI_NETNS is empty";
            return Err(Failure::new(code::INVALID_ENVIRONMENT, text));
        }
        let port_mappings = port_mappings(request)?;
        let (allocation, side) = self.allocate(request, &attachment, port_mappings)?;
        let attached = attach::attach(&allocation, &side, &self.0.journal)
            .map_err(failed)
            .and_then(|()| self.open_ports(&allocation));
        if let Err(failure) = attached {
            // The runtime calls DEL as well, but an address must not hang on that.
            self.tear_down(&allocation)?;
            return Err(failure);
        }
        tracing::debug!(pod = %allocation.pod, sandbox = %attachment.sandbox,
                        addresses = ?allocation.addresses, "pod attached");
        Ok(result_of(&allocation).render(request.version()))
    }

    fn allocate(
        &self,
        request: &Request,
        attachment: &Attachment,
        port_mappings: Vec<PortMapping>,
    ) -> Result<(Allocation, NodeSide), Failure> {
        // Known under another namespace: what is left of an attempt that the runtime gave up.
        let known = self.state().ipam.get(attachment).cloned();
        if let Some(old) = known.filter(|old| old.namespace.as_os_str() != request.netns.as_str()) {
            self.tear_down(&old)?;
        }
        let mut state = self.state();
        let Some((_, side)) = state.ready.clone() else {
            return Err(Failure::new(code::TRY_AGAIN, NOT_READY));
        };
        let describe = |addresses| Allocation {
            attachment: attachment.clone(),
            addresses,
            host_link: names::host_link(&attachment.sandbox, &attachment.interface),
            namespace: request.netns.clone().into(),
            pod: pod_of(request),
            port_mappings,
        };
        let allocation = state.ipam.allocate(attachment, describe).map_err(failed)?;
        Ok((allocation, side))
    }

    fn open_ports(&self, allocation: &Allocation) -> Result<(), Failure> {
        if allocation.port_mappings.is_empty() {
            return Ok(());
        }
        self.state().refresh(&self.0.families).map_err(failed)?;
        self.forget_flows(allocation);
        Ok(())
    }

    fn delete(&self, request: &Request) -> Result<Value, Failure> {
        let attachment = attachment_of(request)?;
        let known = self.state().ipam.get(&attachment).cloned();
        if let Some(allocation) = known {
            self.tear_down(&allocation)?;
        }
        Ok(Value::Null)
    }

    /// The link first, the address last: it must not be given out while anything answers to it.
    fn tear_down(&self, allocation: &Allocation) -> Result<(), Failure> {
        attach::detach(allocation, &self.0.journal).map_err(failed)?;
        let mut state = self.state();
        state.ipam.release(&allocation.attachment).map_err(failed)?;
        if !allocation.port_mappings.is_empty() {
            state.refresh(&self.0.families).map_err(failed)?;
            drop(state);
            self.forget_flows(allocation);
        }
        Ok(())
    }

    /// UDP flows to a host port would go on to where they went before.
    fn forget_flows(&self, allocation: &Allocation) {
        let ports: HashSet<_> = allocation
            .port_mappings
            .iter()
            .filter(|m| protocol_number(m) == Some(UDP))
            .map(|m| m.host_port)
            .collect();
        if ports.is_empty() {
            return;
        }
        if let Err(error) = forget_udp_flows(&ports) {
            tracing::warn!(%error, "cannot forget UDP flows to host ports");
        }
    }

    fn check(&self, request: &Request) -> Result<Value, Failure> {
        let attachment = attachment_of(request)?;
        let known = self.state().ipam.get(&attachment).cloned();
        let Some(allocation) = known else {
            let text = format!("nothing is known of sandbox {}", attachment.sandbox);
            return Err(Failure::new(code::UNKNOWN_CONTAINER, text));
        };
        attach::check(&allocation).map_err(failed)?;
        Ok(Value::Null)
    }

    /// Releases what the runtime does not list.
    fn collect(&self, request: &Request) -> Result<Value, Failure> {
        let valid = request.config.get("cni.dev/valid-attachments");
        let Some(valid) = valid.and_then(Value::as_array) else {
            let text = "the configuration lists no cni.dev/valid-attachments";
            return Err(Failure::new(code::INVALID_CONFIG, text));
        };
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let valid: HashSet<_> = valid
            .iter()
            .map(|v| (text(v, "containerID"), text(v, "ifname")))
            .collect();
        self.release_unless(|a| {
            valid.contains(&(a.attachment.sandbox.clone(), a.attachment.interface.clone()))
        })?;
        Ok(Value::Null)
    }

    /// Releases the addresses of sandboxes that are gone: after a reboot, or a runtime that died.
    pub fn release_dead(&self) -> Result<usize, Failure> {
        self.release_unless(|allocation| attach::is_alive(&allocation.namespace))
    }

    /// Releases the addresses of sandboxes that the runtime does not know.
    pub fn release_unknown(&self, live: &HashSet<String>) -> Result<usize, Failure> {
        self.release_unless(|allocation| live.contains(&allocation.attachment.sandbox))
    }

    fn release_unless(&self, keep: impl Fn(&Allocation) -> bool) -> Result<usize, Failure> {
        let gone: Vec<_> = {
            let state = self.state();
            state.ipam.all().filter(|a| !keep(a)).cloned().collect()
        };
        for allocation in &gone {
            tracing::info!(sandbox = %allocation.attachment.sandbox, pod = %allocation.pod,
                           addresses = ?allocation.addresses, "releasing the addresses of a sandbox that is gone");
            self.tear_down(allocation)?;
        }
        Ok(gone.len())
    }
}

const NOT_READY: &str = "the pod network is not ready: the node has no pod range yet";

impl State {
    fn refresh(&mut self, families: &[Family]) -> Result<(), crate::apply::Error> {
        match self.ready.take() {
            None => Ok(()),
            Some((plan, side)) => {
                let result = self.refresh_tables(families, &plan);
                self.ready = Some((plan, side));
                result
            }
        }
    }

    fn refresh_tables(
        &mut self,
        families: &[Family],
        plan: &NodePlan,
    ) -> Result<(), crate::apply::Error> {
        let allocations: Vec<_> = self.ipam.all().collect();
        self.tables.apply(families, plan, allocations.into_iter())
    }
}

fn forget_udp_flows(ports: &HashSet<u16>) -> Result<(), sampan_netlink::Error> {
    let mut kernel = Conntrack::open()?;
    let stale = kernel.flows(false, |flow| {
        flow.original.protocol == UDP && ports.contains(&flow.original.destination_port)
    })?;
    stale.iter().try_for_each(|flow| kernel.delete(flow))
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(code::FAILED, error.to_string())
}

fn attachment_of(request: &Request) -> Result<Attachment, Failure> {
    Attachment::new(&request.container_id, &request.ifname)
        .map_err(|error| Failure::new(code::INVALID_ENVIRONMENT, error.to_string()))
}

fn pod_of(request: &Request) -> String {
    let namespace = request.arg("K8S_POD_NAMESPACE").unwrap_or_default();
    let name = request.arg("K8S_POD_NAME").unwrap_or_default();
    format!("{namespace}/{name}")
}

fn port_mappings(request: &Request) -> Result<Vec<PortMapping>, Failure> {
    let given = &request.config["runtimeConfig"]["portMappings"];
    if given.is_null() {
        return Ok(Vec::new());
    }
    let all = given.as_array().into_iter().flatten().map(port_mapping);
    let all: Option<Vec<_>> = all.collect();
    let all = all.filter(|_| given.is_array()).ok_or_else(|| {
        let text = format!("bad portMappings: {given}");
        Failure::new(code::INVALID_CONFIG, text)
    })?;
    Ok(all.into_iter().filter(|m| m.host_port != 0).collect())
}

/// Runtimes write `hostPort` or `HostPort`: those written in Go read either.
fn port_mapping(given: &Value) -> Option<PortMapping> {
    let fields = given.as_object()?;
    let field = |name: &str| {
        let found = fields
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    };
    let number = |name| u16::try_from(field(name)?.as_u64()?).ok();
    let text = |name| Some(field(name)?.as_str()?.to_owned());
    Some(PortMapping {
        host_port: number("hostPort")?,
        container_port: number("containerPort")?,
        protocol: text("protocol").unwrap_or_else(|| "tcp".into()),
        host_ip: text("hostIP").unwrap_or_default(),
    })
}

fn result_of(allocation: &Allocation) -> Attached {
    let address = |address: &std::net::IpAddr| {
        let prefix_len = if address.is_ipv6() { 128 } else { 32 };
        (*address, prefix_len, names::gateway(address.is_ipv6()))
    };
    Attached {
        host_link: allocation.host_link.clone(),
        host_mac: names::GATEWAY_MAC.to_string(),
        interface: allocation.attachment.interface.clone(),
        mac: attach::pod_link_mac(allocation),
        namespace: allocation.namespace.display().to_string(),
        addresses: allocation.addresses.iter().map(address).collect(),
    }
}

/// Listens at `path`, readable by root alone, until shutdown.
pub async fn serve(server: Server, path: &Path, shutdown: Shutdown) -> io::Result<()> {
    let listener = listen(path)?;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.wait() => return Ok(()),
        };
        let (stream, _) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: a later call may find one.
                tracing::warn!(%error, "cannot accept a network call");
                tokio::select! {
                    () = tokio::time::sleep(REST) => continue,
                    () = shutdown.wait() => return Ok(()),
                }
            }
        };
        let server = server.clone();
        tokio::spawn(sampan_util::task::contain("cni-call", async move {
            if let Err(error) = converse(&server, stream).await {
                tracing::debug!(%error, "a network call broke off");
            }
        }));
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = with_short_path(path, |short| {
        let listener = std::os::unix::net::UnixListener::bind(short)?;
        fs::set_permissions(short, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    })?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn converse(server: &Server, stream: UnixStream) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut limited = BufReader::new(read.take(LONGEST_REQUEST));
    limited.read_line(&mut line).await?;
    let request: Request = serde_json::from_str(&line)?;
    let server = server.clone();
    let reply = tokio::task::spawn_blocking(move || server.answer(&request)).await?;
    let mut bytes = serde_json::to_vec(&reply)?;
    bytes.push(b'\n');
    write.write_all(&bytes).await?;
    write.shutdown().await
}
