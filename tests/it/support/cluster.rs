//! Two nodes on one machine, each in a network namespace of its own: a server with its agent, and an agent.

use std::path::Path;
use std::time::Duration;

use super::netns::{self, Namespace};
use super::process::{ANY_DISK, Sampan};
use super::{Scratch, attempt, eventually, image, run};

pub const IMAGE: &str = "sampan.test/web:1";
pub const NEXT_IMAGE: &str = "sampan.test/web:2";
pub const MINUTE: Duration = Duration::from_secs(60);

/// Node `a` is the server's, node `b` the agent's.
pub struct Cluster {
    pub server: Sampan,
    pub agent: Sampan,
    pub nodes: [Namespace; 2],
    server_options: Vec<String>,
    _scratch: Scratch,
}

impl Cluster {
    pub fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    /// `options` are the server's.
    pub fn start_with(name: &str, options: &[&str]) -> Self {
        let scratch = Scratch::new(name);
        let nodes = netns::pair();
        let [a, b] = ["a", "b"].map(|name| scratch.path().join(name));
        let archive = a.join("d/agent/images/web.tar");
        image::write(&archive, &[IMAGE, NEXT_IMAGE]);
        std::fs::create_dir_all(b.join("d/agent/images")).unwrap();
        std::fs::copy(&archive, b.join("d/agent/images/web.tar")).unwrap();
        let mut server_options = server_options(&a, &nodes[0]);
        server_options.extend(options.iter().map(|option| (*option).to_owned()));
        let server = Sampan::start("server", &a, Some(&nodes[0]), &server_options);
        wait_ready(&server, "a");
        let agent = start_agent(&server, &b, &nodes);
        wait_ready(&server, "b");
        Self {
            server,
            agent,
            nodes,
            server_options,
            _scratch: scratch,
        }
    }

    pub fn kubectl(&self, arguments: &str) -> String {
        run(&mut self.server.kubectl(arguments))
    }

    /// A shell line in a Pod.
    pub fn in_pod(&self, pod: &str, line: &str) -> Result<String, String> {
        attempt(
            &mut self
                .server
                .kubectl_args(&["exec", pod, "--", "sh", "-c", line]),
        )
    }

    /// Starts the server again, after it was ended.
    pub fn start_server(&mut self) {
        let folder = self.server.data_dir.parent().unwrap().to_owned();
        self.server = Sampan::start(
            "server",
            &folder,
            Some(&self.nodes[0]),
            &self.server_options,
        );
    }

    /// Starts the agent again, after it was ended.
    pub fn start_agent(&mut self) {
        let folder = self.agent.data_dir.parent().unwrap().to_owned();
        self.agent = start_agent(&self.server, &folder, &self.nodes);
    }

    pub fn wait_ready(&self) {
        wait_ready(&self.server, "a");
        wait_ready(&self.server, "b");
    }
}

fn server_options(folder: &Path, namespace: &Namespace) -> Vec<String> {
    vec![
        "--node-name=a".to_owned(),
        ANY_DISK.to_owned(),
        format!("--node-ip={}", namespace.address),
        format!("--write-kubeconfig={}", folder.join("kubeconfig").display()),
    ]
}

fn start_agent(server: &Sampan, folder: &Path, nodes: &[Namespace; 2]) -> Sampan {
    let token = std::fs::read_to_string(server.data_dir.join("server/node-token")).unwrap();
    Sampan::start(
        "agent",
        folder,
        Some(&nodes[1]),
        &[
            format!("--server=https://{}:6443", nodes[0].address),
            format!("--token={}", token.trim()),
            "--node-name=b".to_owned(),
            ANY_DISK.to_owned(),
            format!("--node-ip={}", nodes[1].address),
        ],
    )
}

pub fn wait_ready(server: &Sampan, node: &str) {
    eventually(&format!("node {node} is Ready"), MINUTE, || {
        let command = format!("wait --for=condition=Ready node/{node} --timeout=1s");
        attempt(&mut server.kubectl(&command))
    });
}
