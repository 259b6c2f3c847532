//! A node with a neighbour outside the cluster, and pods to attach.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sampan_host::Journal;
use sampan_netlink::Namespace;
use sampan_netlink::route::{Address, Connection, Veth, VethPeer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::apply::{Links, Tables};
use crate::attach::NodeSide;
use crate::cni::Server;
use crate::cni::protocol::{Reply, Request};
use crate::ipam::Ipam;
use crate::plan::{NodeFacts, NodePlan, plan_node};
use crate::settings::Settings;

const TIMEOUT: Duration = Duration::from_millis(1500);

pub(crate) struct Lab {
    /// 192.0.2.1, pods in 10.42.0.0/24
    pub(crate) node: Namespace,
    /// 192.0.2.9; has no route to any pod.
    pub(crate) outside: Namespace,
    pub(crate) settings: Settings,
    pub(crate) journal: Journal,
    server: Option<Server>,
}

/// A sandbox: a namespace and the path that a runtime would pass.
pub(crate) struct Pod {
    pub(crate) namespace: Namespace,
    pub(crate) name: String,
    path: PathBuf,
    _handle: std::os::fd::OwnedFd,
}

impl Pod {
    /// The path goes through our own descriptor, so it dies with this value. Its number is not used again: tests
    /// run side by side, and the namespace of another one must not appear in its place.
    pub(crate) fn new(name: &str) -> Self {
        use std::os::fd::{AsFd, AsRawFd};
        let namespace = Namespace::create().expect("this test needs root");
        static NEXT: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(500);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let handle = rustix::io::fcntl_dupfd_cloexec(namespace.as_fd(), number).unwrap();
        let fd = handle.as_raw_fd();
        let path = PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        Self {
            namespace,
            name: name.to_owned(),
            path,
            _handle: handle,
        }
    }
}

pub(crate) fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("sampan-network-{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&path));
    std::fs::create_dir_all(&path).unwrap();
    path
}

impl Lab {
    /// A node whose network is in place.
    pub(crate) fn new(name: &str) -> Self {
        Self::bare(name).restarted()
    }

    /// A node without any of our network.
    pub(crate) fn bare(name: &str) -> Self {
        let dir = scratch(name);
        let mut settings = Settings::new(&dir.join("agent"), "here", "/bin/true".into());
        settings.node_ips = vec!["192.0.2.1".parse().unwrap()];
        settings.cluster_cidrs = vec!["10.42.0.0/16".parse().unwrap()];
        settings.service_cidrs = vec!["10.43.0.0/16".parse().unwrap()];
        let lab = Self {
            node: Namespace::create().expect("this test needs root"),
            outside: Namespace::create().expect("this test needs root"),
            journal: Journal::open(dir.join("agent/host-journal")).unwrap(),
            settings,
            server: None,
        };
        lab.cable();
        lab
    }

    fn cable(&self) {
        let mut node = Connection::open_in(&self.node).unwrap();
        let mut outside = Connection::open_in(&self.outside).unwrap();
        node.create_veth(&Veth {
            name: "uplink",
            mac: None,
            mtu: Some(1450),
            peer: VethPeer {
                name: "uplink",
                mac: None,
                namespace: Some(&self.outside),
            },
        })
        .unwrap();
        for (kernel, address) in [(&mut node, "192.0.2.1/24"), (&mut outside, "192.0.2.9/24")] {
            for name in ["lo", "uplink"] {
                let index = kernel.link(name).unwrap().index;
                kernel.set_up(index).unwrap();
            }
            let link = kernel.link("uplink").unwrap().index;
            let network = address.parse().unwrap();
            kernel.add_address(&Address { link, network }).unwrap();
        }
    }

    /// What a start of the agent does, with the state on disk.
    pub(crate) fn restarted(mut self) -> Self {
        let plan = self.plan();
        let work = || {
            let mut links = Links::open(&self.journal).unwrap();
            assert_eq!(links.apply(&plan).unwrap(), []);
            let side = NodeSide {
                gateways: plan.gateways.clone(),
                mtu: links.uplink_mtu(&self.settings).unwrap(),
            };
            let ipam = Ipam::open(self.settings.paths.addresses()).unwrap();
            let tables = Tables::open(&self.journal).unwrap();
            let families = self.settings.families();
            let server = Server::new(ipam, tables, families, self.journal.clone());
            server.set_node(&plan, side).unwrap();
            server.release_dead().unwrap();
            server
        };
        let server = self.node.run(work).unwrap();
        self.server = Some(server);
        self
    }

    fn plan(&self) -> NodePlan {
        let facts = NodeFacts {
            name: "here".into(),
            pod_cidrs: vec!["10.42.0.0/24".parse().unwrap()],
            addresses: self.settings.node_ips.clone(),
        };
        plan_node(&self.settings, &[facts]).unwrap()
    }

    pub(crate) fn request(&self, command: &str, pod: &Pod, extra: Value) -> Request {
        let mut config = json!({"cniVersion": "1.0.0", "name": "sampan", "type": "sampan-cni"});
        for (key, value) in extra.as_object().unwrap() {
            config[key] = value.clone();
        }
        Request {
            command: command.into(),
            container_id: pod.name.clone(),
            netns: pod.path.display().to_string(),
            ifname: "eth0".into(),
            args: format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={}", pod.name),
            config,
        }
    }

    pub(crate) fn answer(&self, request: &Request) -> Reply {
        let server = self
            .server
            .as_ref()
            .expect("the node's network is in place");
        self.node.run(|| server.answer(request)).unwrap()
    }

    pub(crate) fn call(&self, command: &str, pod: &Pod, extra: Value) -> Reply {
        self.answer(&self.request(command, pod, extra))
    }

    /// Attaches a pod and returns its address.
    pub(crate) fn add(&self, pod: &Pod) -> String {
        match self.call("ADD", pod, json!({})) {
            Reply::Result(result) => {
                let address = result["ips"][0]["address"].as_str().unwrap();
                address.trim_end_matches("/32").to_owned()
            }
            Reply::Error(failure) => panic!("{failure}"),
        }
    }

    pub(crate) fn mtu(&self, pod: &Pod) -> u32 {
        let mut kernel = Connection::open_in(&pod.namespace).unwrap();
        kernel.link("eth0").unwrap().mtu
    }
}

/// Answers each connection with the client's address.
pub(crate) fn serve(namespace: &Namespace, port: u16) {
    listen(namespace, port, |peer| peer.ip().to_string());
}

pub(crate) fn serve_name(namespace: &Namespace, port: u16, name: &'static str) {
    listen(namespace, port, move |_| name.to_owned());
}

fn listen(
    namespace: &Namespace,
    port: u16,
    answer: impl Fn(SocketAddr) -> String + Send + 'static,
) {
    let bind = || TcpListener::bind(("0.0.0.0", port)).unwrap();
    let listener = namespace.run(bind).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            // A client that gave up is no concern of this server.
            drop(stream.write_all(answer(peer).as_bytes()));
        }
    });
}

pub(crate) fn connect(from: &Namespace, to: &str) -> io::Result<String> {
    let address: SocketAddr = to.parse().unwrap();
    let stream = from
        .run(|| TcpStream::connect_timeout(&address, TIMEOUT))
        .unwrap()?;
    read(stream)
}

/// Connects from one of several addresses.
pub(crate) fn connect_from(from: &Namespace, source: &str, to: &str) -> io::Result<String> {
    let (source, to): (std::net::IpAddr, SocketAddr) =
        (source.parse().unwrap(), to.parse().unwrap());
    let connect = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(source, 0))?;
            let connected = tokio::time::timeout(TIMEOUT, socket.connect(to));
            let stream = connected.await.map_err(|_| io::ErrorKind::TimedOut)??;
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            Ok::<_, io::Error>(stream)
        })
    };
    read(from.run(connect).unwrap()?)
}

fn read(mut stream: TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

pub(crate) async fn over_socket(path: impl AsRef<Path>, request: &Request) -> Reply {
    let stream = tokio::net::UnixStream::connect(path).await.unwrap();
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_vec(request).unwrap();
    line.push(b'\n');
    write.write_all(&line).await.unwrap();
    let mut reply = String::new();
    tokio::io::BufReader::new(read)
        .read_line(&mut reply)
        .await
        .unwrap();
    serde_json::from_str(&reply).unwrap()
}
