//! What keeps a node from working, found before or while it runs: each finding says what to do.

use std::fs;

use ipnet::IpNet;
use sampan_cluster::info::ClusterInfo;
use sampan_config::Settings;
use sampan_config::settings::Component;
use sampan_kubelet::cgroup::Cgroups;
use sampan_kubelet::runtime::binaries;
use sampan_network::forwarding;

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub subject: &'static str,
    /// What is wrong and what to do; nothing if all is well.
    pub problems: Vec<String>,
}

/// A row of the table: what is looked at, and how.
struct Check {
    subject: &'static str,
    find: fn(&Settings) -> Vec<String>,
}

static CHECKS: &[Check] = &[
    Check {
        subject: "process",
        find: process,
    },
    Check {
        subject: "parts that run",
        find: failing_parts,
    },
    Check {
        subject: "container runtime",
        find: runtime,
    },
    Check {
        subject: "control groups",
        find: control_groups,
    },
    Check {
        subject: "forwarding between pods",
        find: forwarding_chains,
    },
];

/// Looks at this machine, in the calling thread's network namespace. Changes nothing.
pub fn run(settings: &Settings) -> Vec<Finding> {
    let look = |check: &Check| Finding {
        subject: check.subject,
        problems: (check.find)(settings),
    };
    CHECKS.iter().map(look).collect()
}

fn process(settings: &Settings) -> Vec<String> {
    stopped(settings).into_iter().collect()
}

/// Says so if sampan has run on the data directory and does not now.
pub fn stopped(settings: &Settings) -> Option<String> {
    let folder = &settings.data_dir;
    let problem = || {
        format!(
            "sampan does not run on {}: start its service (systemctl start sampan; without systemd, run install.sh again)",
            folder.display()
        )
    };
    (crate::process::is_running(folder) == Some(false)).then(problem)
}

/// Of the process that runs on the same data directory, if one does.
fn failing_parts(settings: &Settings) -> Vec<String> {
    let advice = "it is started again by itself; the log says what was before";
    let lines = crate::parts::read_failing(&settings.data_dir).into_iter();
    lines.map(|line| format!("{line}; {advice}")).collect()
}

fn runtime(settings: &Settings) -> Vec<String> {
    if let Some(socket) = &settings.container_runtime_endpoint {
        let text = socket.to_string_lossy();
        let path = text.strip_prefix("unix://").unwrap_or(&text);
        return match fs::metadata(path) {
            Ok(_) => Vec::new(),
            Err(error) => vec![format!("{path}: {error}; start that runtime")],
        };
    }
    let path = std::env::var("PATH").unwrap_or_default();
    match binaries::find(&settings.agent_dir().join("bin"), &path) {
        Ok(_) => Vec::new(),
        Err(error) => vec![error.to_string()],
    }
}

fn control_groups(settings: &Settings) -> Vec<String> {
    match Cgroups::detect(&settings.agent_dir()) {
        Ok(_) => Vec::new(),
        Err(error) => vec![error.to_string()],
    }
}

/// Rules of others (Docker, ufw, firewalld) are never changed; the command that lets pods through is the owner's.
fn forwarding_chains(settings: &Settings) -> Vec<String> {
    if settings.is_disabled(Component::Network) {
        return Vec::new();
    }
    match forwarding::obstacles(&cluster_cidrs(settings)) {
        Ok(obstacles) => obstacles.iter().map(ToString::to_string).collect(),
        Err(error) => vec![format!("cannot read the rules of nf_tables: {error}")],
    }
}

/// As the cluster says, if this machine has joined one, else as set here.
fn cluster_cidrs(settings: &Settings) -> Vec<IpNet> {
    let text = fs::read_to_string(settings.agent_dir().join(crate::agent::CLUSTER_FILE));
    let info = text
        .ok()
        .and_then(|text| serde_json::from_str::<ClusterInfo>(&text).ok());
    match info {
        Some(info) => {
            let ranges = info.cluster_cidrs.iter();
            ranges.filter_map(|range| range.parse().ok()).collect()
        }
        None => settings.cluster_cidrs.clone(),
    }
}
