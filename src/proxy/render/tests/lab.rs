//! A node with two pods and a client beside it, each a network namespace.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use sampan_netlink::conntrack::Conntrack;
use sampan_netlink::nft::{Connection, Family, Ruleset, Table};
use sampan_netlink::route::{self, Address, Route, Veth, VethPeer};
use sampan_netlink::{IpNet, Namespace};

pub(crate) struct Lab {
    pub(crate) node: Namespace,
    /// 10.42.0.2 and 10.42.0.3
    pub(crate) pods: Vec<Namespace>,
    /// 192.0.2.2, on a link with the node's 192.0.2.1; knows no other way than the node.
    pub(crate) client: Namespace,
}

const TIMEOUT: Duration = Duration::from_millis(1500);

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

impl Lab {
    pub(crate) fn new() -> Self {
        let create = || Namespace::create().expect("this test needs root");
        let lab = Self {
            node: create(),
            pods: vec![create(), create()],
            client: create(),
        };
        lab.node
            .run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap())
            .unwrap();
        let mut node = route::Connection::open_in(&lab.node).unwrap();
        let lo = node.link("lo").unwrap().index;
        node.set_up(lo).unwrap();
        lab.service_route(&mut node);
        for (i, pod) in lab.pods.iter().enumerate() {
            let address = net(&format!("10.42.0.{}/32", i + 2));
            let near = link(&mut node, pod, &format!("pod{i}"), address);
            let to_pod = Route::to(address).on_link(near);
            node.replace_route(&to_pod.from_source(net("10.42.0.1/32").addr()))
                .unwrap();
            default_route(pod, "10.42.0.1");
        }
        let near = link(&mut node, &lab.client, "uplink", net("192.0.2.2/24"));
        let network = net("192.0.2.1/24");
        node.add_address(&Address {
            link: near,
            network,
        })
        .unwrap();
        default_route(&lab.client, "192.0.2.1");
        lab
    }

    /// The link whose route makes locally made connections to Services possible.
    fn service_route(&self, node: &mut route::Connection) {
        let pair = Veth {
            name: "sampan0",
            mac: None,
            mtu: None,
            peer: VethPeer {
                name: "sampan0p",
                mac: None,
                namespace: None,
            },
        };
        node.create_veth(&pair).unwrap();
        for name in ["sampan0", "sampan0p"] {
            let index = node.link(name).unwrap().index;
            node.set_up(index).unwrap();
        }
        let index = node.link("sampan0").unwrap().index;
        let network = net("10.42.0.1/32");
        node.add_address(&Address {
            link: index,
            network,
        })
        .unwrap();
        let route = Route::to(net("10.43.0.0/16")).on_link(index);
        node.replace_route(&route.from_source(network.addr()))
            .unwrap();
    }

    pub(crate) fn apply(&self, rules: &Ruleset) {
        let mut kernel = Connection::open_in(&self.node).unwrap();
        kernel.commit(&rules.replace(&table())).unwrap();
    }

    pub(crate) fn change(&self, from: &Ruleset, to: &Ruleset) {
        let mut kernel = Connection::open_in(&self.node).unwrap();
        let change = from.diff(to, &table());
        kernel.commit(&change.main).unwrap();
        kernel.commit(&change.cleanup).unwrap();
    }

    pub(crate) fn conntrack(&self) -> Conntrack {
        Conntrack::open_in(&self.node).unwrap()
    }

    /// Both pods answer each connection with their address and the client's as they see it.
    pub(crate) fn serve_tcp(&self, port: u16) {
        for (i, pod) in self.pods.iter().enumerate() {
            let bind = || TcpListener::bind(("0.0.0.0", port)).unwrap();
            let listener = pod.run(bind).unwrap();
            std::thread::spawn(move || {
                while let Ok((mut stream, peer)) = listener.accept() {
                    let answer = format!("10.42.0.{} {}", i + 2, peer.ip());
                    // A client that gave up is no concern of this server.
                    drop(stream.write_all(answer.as_bytes()));
                }
            });
        }
    }

    pub(crate) fn serve_udp(&self, port: u16) {
        for (i, pod) in self.pods.iter().enumerate() {
            let socket = pod
                .run(|| UdpSocket::bind(("0.0.0.0", port)).unwrap())
                .unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                    drop(socket.send_to(format!("10.42.0.{}", i + 2).as_bytes(), peer));
                }
            });
        }
    }

    /// Who answered, and who it says we are.
    pub(crate) fn connect(&self, from: &Namespace, to: &str) -> io::Result<(String, String)> {
        let address: SocketAddr = to.parse().unwrap();
        let mut stream = from
            .run(|| TcpStream::connect_timeout(&address, TIMEOUT))
            .unwrap()?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (server, client) = answer.split_once(' ').unwrap();
        Ok((server.to_owned(), client.to_owned()))
    }

    pub(crate) fn udp_client(&self, to: &str) -> UdpSocket {
        let socket = self
            .client
            .run(|| UdpSocket::bind("0.0.0.0:0").unwrap())
            .unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    }
}

pub(crate) fn ask(socket: &UdpSocket) -> String {
    socket.send(b"?").unwrap();
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

pub(crate) fn table() -> Table {
    Table::new(Family::Ip, "sampan-proxy")
}

/// Links the node with `other`, whose end `eth0` gets `address`; returns the node's end.
fn link(node: &mut route::Connection, other: &Namespace, name: &str, address: IpNet) -> u32 {
    let pair = Veth {
        name,
        mac: None,
        mtu: None,
        peer: VethPeer {
            name: "eth0",
            mac: None,
            namespace: Some(other),
        },
    };
    node.create_veth(&pair).unwrap();
    let near = node.link(name).unwrap().index;
    node.set_up(near).unwrap();
    let mut far = route::Connection::open_in(other).unwrap();
    for up in ["lo", "eth0"] {
        let index = far.link(up).unwrap().index;
        far.set_up(index).unwrap();
    }
    let index = far.link("eth0").unwrap().index;
    far.add_address(&Address {
        link: index,
        network: address,
    })
    .unwrap();
    near
}

fn default_route(namespace: &Namespace, gateway: &str) {
    let mut far = route::Connection::open_in(namespace).unwrap();
    let index = far.link("eth0").unwrap().index;
    let gateway = net(&format!("{gateway}/32"));
    let route = Route::to(net("0.0.0.0/0"))
        .via(gateway.addr())
        .on_link(index);
    far.replace_route(&route.onlink()).unwrap();
}
