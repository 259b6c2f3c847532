//! Network namespaces of the test's own, joined by veth pairs: several machines on one.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::run;

/// A namespace that goes away with the test.
pub struct Namespace {
    name: String,
    pub address: String,
}

impl Namespace {
    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// A command inside. `nsenter --net` and not `ip netns exec`: that one makes a mount namespace as well.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.path()))
            .arg("--")
            .arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Best effort: the test's own result counts.
        if let Err(error) = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status()
        {
            eprintln!("cannot remove the namespace {}: {error}", self.name);
        }
    }
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

/// Two machines on one link. There is no way out of either.
pub fn pair() -> [Namespace; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let base = format!("st{}x{number}", std::process::id());
    let nodes = ["a", "b"].map(|side| format!("{base}{side}"));
    let subnet = 100 + number % 100;
    let addresses = [1, 2].map(|host| format!("10.99.{subnet}.{host}"));
    for name in &nodes {
        ip(&["netns", "add", name]);
        ip(&["-n", name, "link", "set", "lo", "up"]);
        // A namespace begins with what the machine has; a fresh machine forwards nothing.
        run(Command::new("nsenter").args([
            &format!("--net=/run/netns/{name}"),
            "--",
            "sh",
            "-c",
            "echo 0 > /proc/sys/net/ipv4/ip_forward",
        ]));
    }
    ip(&[
        "-n", &nodes[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
        &nodes[1],
    ]);
    for (name, address) in nodes.iter().zip(&addresses) {
        ip(&[
            "-n",
            name,
            "addr",
            "add",
            &format!("{address}/24"),
            "dev",
            "eth0",
        ]);
        ip(&["-n", name, "link", "set", "eth0", "up"]);
    }
    let mut both = nodes
        .into_iter()
        .zip(addresses)
        .map(|(name, address)| Namespace { name, address });
    [both.next().unwrap(), both.next().unwrap()]
}
