//! One node, with everything that a kubelet does for Pods, seen through kubectl.
//!
//! A scenario is a function and a row of [`SCENARIOS`]; it has a namespace of its own and runs beside others.
//! `SAMPAN_TEST_ONLY=TEXT` runs the rows whose name contains the text.

mod controllers;
mod lifecycle;
mod network;
mod probes;
mod pulls;
mod resources;
mod rude_clients;
mod scene;
mod security;
mod static_pods;
mod streams;
mod volumes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::support::netns::{self, Namespace};
use crate::support::process::{ANY_DISK, Sampan};
use crate::support::{Scratch, attempt, eventually, image};
use scene::Scene;

pub(crate) const IMAGE: &str = "sampan.test/node:1";
/// Scenarios wait more than they compute.
const BESIDE: usize = 8;

type Scenario = (&'static str, fn(&Scene<'_>));

const SCENARIOS: &[Scenario] = &[
    // The slowest first.
    ("cron-job", controllers::cron_job),
    ("crash-loop", lifecycle::crash_loop),
    ("restart-policies", lifecycle::restart_policies),
    ("init-containers", lifecycle::init_containers),
    ("image-collection", pulls::collection),
    ("pull-policies", pulls::policies),
    ("pull-credentials", pulls::credentials),
    ("sidecars", lifecycle::sidecars),
    ("termination-messages", lifecycle::termination_messages),
    ("graceful-end", lifecycle::graceful_end),
    ("deadline", lifecycle::deadline),
    ("liveness", probes::liveness),
    ("readiness", probes::readiness),
    ("startup", probes::startup),
    ("grpc", probes::grpc),
    ("environment", volumes::environment),
    ("missing-references", volumes::missing_references),
    ("projected", volumes::projected),
    ("live-update", volumes::live_update),
    ("host-path", volumes::host_path),
    ("empty-dir", volumes::empty_dir),
    ("api-token", volumes::api_token),
    ("users", security::users),
    ("capabilities", security::capabilities),
    ("refusals", security::refusals),
    ("sysctls", security::sysctls),
    ("limits", resources::limits),
    ("resize", resources::resize),
    ("out-of-memory", resources::out_of_memory),
    ("host-port", network::host_port),
    ("host-namespaces", network::host_namespaces),
    ("names", network::names),
    ("logs", streams::logs),
    ("log-rotation", streams::log_rotation),
    ("attach", streams::attach),
    ("anyhow-attached", streams::attach_anyhow),
    ("short-runs", streams::short_runs),
    ("hasty-clients", rude_clients::hasty),
    ("port-forward", streams::port_forward),
    ("protocols", streams::protocols),
    ("terminal", streams::terminal),
    ("copy", streams::copy),
    ("debug", streams::debug),
    ("static-pods", static_pods::static_pods),
    ("daemon-set", controllers::daemon_set),
    ("job", controllers::job),
    ("stateful-set", controllers::stateful_set),
];

/// A server with its node, and a machine beside it.
pub(crate) struct Node {
    pub server: Sampan,
    pub itself: Namespace,
    pub outside: Namespace,
    pub scratch: Scratch,
}

impl Node {
    pub fn start(name: &str, options: &[&str]) -> Self {
        let scratch = Scratch::new(name);
        let [itself, outside] = netns::pair();
        image::write(&scratch.path().join("d/agent/images/node.tar"), &[IMAGE]);
        let server = Self::launch(&scratch, &itself, options);
        let node = Self {
            server,
            itself,
            outside,
            scratch,
        };
        node.wait_ready();
        node
    }

    pub fn launch(scratch: &Scratch, itself: &Namespace, options: &[&str]) -> Sampan {
        let mut all = vec![
            "--node-name=n".to_owned(),
            format!("--node-ip={}", itself.address),
            ANY_DISK.to_owned(),
            format!(
                "--write-kubeconfig={}",
                scratch.path().join("kubeconfig").display()
            ),
        ];
        all.extend(options.iter().map(|option| (*option).to_owned()));
        Sampan::start("server", scratch.path(), Some(itself), &all)
    }

    /// Where the node's own containerd listens.
    pub fn containerd_socket(&self) -> String {
        let config = self.server.data_dir.join("agent/containerd/config.toml");
        let text = std::fs::read_to_string(config).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("address = \""));
        line.unwrap().trim_end_matches('"').to_owned()
    }

    pub fn wait_ready(&self) {
        eventually("the node is Ready", Duration::from_secs(60), || {
            attempt(
                &mut self
                    .server
                    .kubectl("wait --for=condition=Ready node/n --timeout=1s"),
            )
        });
    }
}

#[test]
fn pods_live_as_upstream_has_them() {
    let node = Node::start(
        "node",
        &[
            "--kubelet-arg=container-log-max-size=64Ki",
            "--kubelet-arg=container-log-max-files=3",
            "--kubelet-arg=allowed-unsafe-sysctls=net.core.*",
            "--kubelet-arg=image-gc-high-threshold=2",
            "--kubelet-arg=image-gc-low-threshold=1",
            "--kubelet-arg=minimum-image-ttl-duration=20s",
        ],
    );
    let only = std::env::var("SAMPAN_TEST_ONLY").unwrap_or_default();
    let rows: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|(name, _)| name.contains(&only))
        .collect();
    let started = Instant::now();
    let queue = Mutex::new(rows.iter());
    let failed = Mutex::new(Vec::new());
    let checks = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..BESIDE {
            scope.spawn(|| {
                loop {
                    let Some((name, scenario)) = queue.lock().unwrap().next() else {
                        return;
                    };
                    let scene = Scene::new(&node, name);
                    let since = Instant::now();
                    let result = catch_unwind(AssertUnwindSafe(|| scenario(&scene)));
                    *checks.lock().unwrap() += scene.checks();
                    println!("  {name}: {:.1} s", since.elapsed().as_secs_f64());
                    if result.is_err() {
                        scene.explain();
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    // It counts open files of the server, so nothing else runs beside it.
    if "stuck-input".contains(&only) {
        rude_clients::stuck(&Scene::new(&node, "stuck-input"));
    }
    let failed = failed.into_inner().unwrap();
    println!(
        "node: {} of {} scenarios hold, {} checks, in {} s",
        rows.len() - failed.len(),
        rows.len(),
        checks.into_inner().unwrap(),
        started.elapsed().as_secs()
    );
    assert!(
        !rows.is_empty() || "stuck-input".contains(&only),
        "no scenario is called like {only}"
    );
    assert!(failed.is_empty(), "failed: {failed:?}");
}
