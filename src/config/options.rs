//! The option table. One row is one option: flag, environment variable, file key, help and meaning.

use std::path::PathBuf;

use crate::settings::Settings;
use crate::values::{
    any_address, boolean, component, data_dir, domain, file_mode, key_value, lifetime, net,
    node_address, node_name, non_empty, port, port_range, reached_address, server_url, set,
    socket_path, subject_name, taint,
};

/// Which subcommand takes an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Server,
    Agent,
    Both,
}

impl Role {
    pub fn covers(self, wanted: Role) -> bool {
        self == Role::Both || self == wanted
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// No value on the command line; `true` or `false` elsewhere.
    Switch,
    One,
    /// May be repeated.
    Many,
    /// May be repeated, and each value may be a comma-separated list.
    List,
}

pub struct OptionRow {
    pub name: &'static str,
    pub arity: Arity,
    /// How the value is called in help.
    pub value: &'static str,
    pub default: Option<&'static str>,
    pub role: Role,
    pub help: &'static str,
    /// Gives one value its meaning; the error says what was expected.
    pub apply: fn(&mut Settings, &str) -> Result<(), String>,
}

impl OptionRow {
    /// `SAMPAN_DATA_DIR` for `data-dir`.
    pub fn environment(&self) -> String {
        format!("SAMPAN_{}", self.name.replace('-', "_").to_uppercase())
    }
}

const fn row(
    name: &'static str,
    arity: Arity,
    value: &'static str,
    default: Option<&'static str>,
    role: Role,
    help: &'static str,
    apply: fn(&mut Settings, &str) -> Result<(), String>,
) -> OptionRow {
    OptionRow {
        name,
        arity,
        value,
        default,
        role,
        help,
        apply,
    }
}

pub fn find(name: &str) -> Option<&'static OptionRow> {
    OPTIONS.iter().find(|row| row.name == name)
}

use Arity::{List, Many, One, Switch};
use Role::{Agent, Both, Server};

/// `--config` is not here: it says where the other options are read from.
pub static OPTIONS: &[OptionRow] = &[
    row(
        "data-dir",
        One,
        "DIR",
        Some("/var/lib/sampan"),
        Both,
        "Folder that holds all state of this node",
        |s, v| {
            s.data_dir = data_dir(v)?;
            Ok(())
        },
    ),
    row(
        "token",
        One,
        "TOKEN",
        None,
        Both,
        "Shared secret with which nodes join; made at the first start of a server if not given",
        |s, v| {
            s.token = Some(non_empty(v)?);
            Ok(())
        },
    ),
    row(
        "token-file",
        One,
        "FILE",
        None,
        Both,
        "File that holds the token",
        |s, v| {
            s.token_file = Some(PathBuf::from(non_empty(v)?));
            Ok(())
        },
    ),
    row(
        "server",
        One,
        "URL",
        None,
        Agent,
        "Server to join, for example https://192.168.1.10:6443",
        |s, v| {
            s.server = Some(server_url(v)?);
            Ok(())
        },
    ),
    row(
        "bind-address",
        List,
        "IP",
        Some("0.0.0.0"),
        Server,
        "Address that the API listens on",
        |s, v| {
            s.bind_addresses.push(any_address(v)?);
            Ok(())
        },
    ),
    row(
        "https-listen-port",
        One,
        "PORT",
        Some("6443"),
        Server,
        "Port of the API, of joining and of everything between nodes",
        |s, v| {
            s.https_listen_port = port(v)?;
            Ok(())
        },
    ),
    row(
        "advertise-address",
        List,
        "IP",
        None,
        Server,
        "Address that other machines reach the API at (default: the node's address)",
        |s, v| {
            s.advertise_addresses.push(reached_address(v)?);
            Ok(())
        },
    ),
    row(
        "tls-san",
        List,
        "NAME",
        None,
        Server,
        "Further host name or address in the serving certificate",
        |s, v| {
            s.tls_sans.push(subject_name(v)?);
            Ok(())
        },
    ),
    row(
        "certificate-lifetime",
        One,
        "DURATION",
        Some("365d"),
        Server,
        "How long certificates are valid that the server signs; they are renewed in their last quarter",
        |s, v| {
            s.certificate_lifetime = lifetime(v)?;
            Ok(())
        },
    ),
    row(
        "node-name",
        One,
        "NAME",
        None,
        Both,
        "Name of this node (default: the host name)",
        |s, v| {
            s.node_name = Some(node_name(v)?);
            Ok(())
        },
    ),
    row(
        "node-ip",
        List,
        "IP",
        None,
        Both,
        "Address of this node (default: the address of the default route, else the first one)",
        |s, v| {
            s.node_ips.push(node_address(v)?);
            Ok(())
        },
    ),
    row(
        "node-label",
        List,
        "KEY=VALUE",
        None,
        Both,
        "Label that the node registers with",
        |s, v| {
            s.node_labels.push(key_value(v)?);
            Ok(())
        },
    ),
    row(
        "node-taint",
        List,
        "KEY=VALUE:EFFECT",
        None,
        Both,
        "Taint that the node registers with",
        |s, v| {
            s.node_taints.push(taint(v)?);
            Ok(())
        },
    ),
    row(
        "cluster-cidr",
        List,
        "CIDR",
        Some("10.42.0.0/16"),
        Server,
        "Range of Pod addresses",
        |s, v| {
            s.cluster_cidrs.push(net(v)?);
            Ok(())
        },
    ),
    row(
        "service-cidr",
        List,
        "CIDR",
        Some("10.43.0.0/16"),
        Server,
        "Range of Service addresses",
        |s, v| {
            s.service_cidrs.push(net(v)?);
            Ok(())
        },
    ),
    row(
        "service-node-port-range",
        One,
        "FROM-TO",
        Some("30000-32767"),
        Server,
        "Ports for Services of type NodePort",
        |s, v| {
            s.service_node_ports = port_range(v)?;
            Ok(())
        },
    ),
    row(
        "cluster-dns",
        List,
        "IP",
        None,
        Server,
        "Address of the cluster's DNS Service (default: the tenth one of the Service range)",
        |s, v| {
            s.cluster_dns.push(reached_address(v)?);
            Ok(())
        },
    ),
    row(
        "cluster-domain",
        One,
        "DOMAIN",
        Some("cluster.local"),
        Server,
        "DNS domain of the cluster",
        |s, v| {
            s.cluster_domain = domain(v)?;
            Ok(())
        },
    ),
    row(
        "write-kubeconfig",
        One,
        "FILE",
        Some("/etc/sampan/sampan.yaml"),
        Server,
        "Where the administrator's kubeconfig is written",
        |s, v| set(&mut s.write_kubeconfig, v),
    ),
    row(
        "write-kubeconfig-mode",
        One,
        "MODE",
        Some("600"),
        Server,
        "File mode of that kubeconfig",
        |s, v| {
            s.write_kubeconfig_mode = file_mode(v)?;
            Ok(())
        },
    ),
    row(
        "disable-agent",
        Switch,
        "",
        Some("false"),
        Server,
        "Run the control plane alone: no kubelet, no containers, no network changes, no root needed",
        |s, v| {
            s.disable_agent = boolean(v)?;
            Ok(())
        },
    ),
    row(
        "disable-scheduler",
        Switch,
        "",
        Some("false"),
        Server,
        "Run without the scheduler",
        |s, v| {
            s.disable_scheduler = boolean(v)?;
            Ok(())
        },
    ),
    row(
        "disable-controller-manager",
        Switch,
        "",
        Some("false"),
        Server,
        "Run without the controllers",
        |s, v| {
            s.disable_controller_manager = boolean(v)?;
            Ok(())
        },
    ),
    row(
        "disable",
        List,
        "PART",
        None,
        Both,
        "Part to switch off: dns, kube-proxy, network",
        |s, v| {
            s.disable.push(component(v)?);
            Ok(())
        },
    ),
    row(
        "container-runtime-endpoint",
        One,
        "SOCKET",
        None,
        Both,
        "Socket of a container runtime that already runs (default: sampan runs its own containerd)",
        |s, v| {
            s.container_runtime_endpoint = Some(socket_path(v)?);
            Ok(())
        },
    ),
    row(
        "private-registry",
        One,
        "FILE",
        Some("/etc/sampan/registries.yaml"),
        Both,
        "Mirrors, certificates and logins of image registries, if the file is there",
        |s, v| {
            s.private_registry = PathBuf::from(non_empty(v)?);
            Ok(())
        },
    ),
    row(
        "pause-image",
        One,
        "IMAGE",
        None,
        Both,
        "Sandbox image to use in place of the built-in one",
        |s, v| {
            s.pause_image = Some(non_empty(v)?);
            Ok(())
        },
    ),
    row(
        "resolv-conf",
        One,
        "FILE",
        None,
        Both,
        "Resolver configuration that Pods inherit and DNS forwards to (default: /etc/resolv.conf)",
        |s, v| {
            s.resolv_conf = Some(PathBuf::from(non_empty(v)?));
            Ok(())
        },
    ),
    row(
        "kubelet-arg",
        Many,
        "NAME=VALUE",
        None,
        Both,
        "Argument of the kubelet, under upstream's name",
        |s, v| {
            s.kubelet_args.push(key_value(v)?);
            Ok(())
        },
    ),
    row(
        "kube-apiserver-arg",
        Many,
        "NAME=VALUE",
        None,
        Server,
        "Argument of the API server, under upstream's name, for example token-auth-file=FILE",
        |s, v| {
            let argument = key_value(v)?;
            if let Some(problem) = crate::apiserver::unknown(&argument.0) {
                return Err(problem);
            }
            s.kube_apiserver_args.push(argument);
            Ok(())
        },
    ),
    row(
        "debug",
        Switch,
        "",
        Some("false"),
        Both,
        "Log more",
        |s, v| {
            s.debug = boolean(v)?;
            Ok(())
        },
    ),
];

/// The table as Markdown, for the README.
pub fn reference() -> String {
    let mut text = String::from("| option | for | default | meaning |\n|---|---|---|---|\n");
    for row in OPTIONS {
        let value = if row.value.is_empty() {
            String::new()
        } else {
            format!("={}", row.value)
        };
        let role = match row.role {
            Server => "server",
            Agent => "agent",
            Both => "both",
        };
        let default = row.default.filter(|_| row.arity != Switch);
        let default = default.map(|text| format!("`{text}`")).unwrap_or_default();
        text.push_str(&format!(
            "| `--{}{value}` | {role} | {default} | {} |\n",
            row.name, row.help
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_readme_holds_the_reference() {
        let readme = include_str!("../../README.md");
        assert!(
            readme.contains(&reference()),
            "the option table of README.md should be:\n{}",
            reference()
        );
    }

    #[test]
    fn names_are_unique_and_legal() {
        let mut seen = HashSet::new();
        for row in OPTIONS {
            assert!(seen.insert(row.name), "{} twice", row.name);
            assert!(
                row.name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b == b'-'),
                "{}",
                row.name
            );
            assert_eq!(row.value.is_empty(), row.arity == Switch, "{}", row.name);
            assert!(!row.help.ends_with('.'), "{}", row.name);
        }
    }

    #[test]
    fn defaults_are_accepted_by_their_own_rows() {
        for row in OPTIONS {
            if let Some(default) = row.default {
                assert_eq!(
                    (row.apply)(&mut Settings::default(), default),
                    Ok(()),
                    "{}",
                    row.name
                );
            }
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for (name, value) in [
            ("https-listen-port", "70000"),
            ("cluster-cidr", "10.42.0.0"),
            ("service-node-port-range", "200-100"),
            ("node-taint", "a=b:Nonsense"),
            ("write-kubeconfig-mode", "999"),
            ("kube-apiserver-arg", "token-auth-flie=/x"),
            ("disable", "everything"),
            ("server", "http://x"),
            ("node-name", "Upper"),
            ("node-ip", "host"),
            ("debug", "maybe"),
            ("certificate-lifetime", "5s"),
            ("certificate-lifetime", "long"),
        ] {
            let row = find(name).expect("the row exists");
            assert!(
                (row.apply)(&mut Settings::default(), value).is_err(),
                "{name}={value}"
            );
        }
    }
}
