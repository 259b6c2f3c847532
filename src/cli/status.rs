//! `sampan status`: is the server of this machine ready, and are its nodes? On an agent: is its node?

use std::sync::Arc;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command};
use k8s_openapi::api::core::v1::Node;
use sampan_api::user::well_known;
use sampan_client::{Client, Credentials, HttpsTransport, ListParams};
use sampan_config::Settings;
use sampan_net::{TcpDialer, Trust};
use sampan_pki::{CertificateInfo, Identity};

use crate::options::{Installation, looking_command};

const QUIET: &str = "quiet";
/// Options that say which server is asked, and whether it has a node.
const OWN: &[&str] = &[
    "data-dir",
    "bind-address",
    "https-listen-port",
    "disable-agent",
];

pub(crate) fn cli() -> Command {
    looking_command("status", OWN)
        .about("Tell whether the server of this machine and its nodes are ready; on an agent, whether its node is")
        .arg(
            Arg::new(QUIET)
                .long(QUIET)
                .action(ArgAction::SetTrue)
                .help("Print nothing; the exit code tells"),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let Installation { settings, problems } = Installation::of(matches)?;
    let is_quiet = matches.get_flag(QUIET);
    for problem in problems.iter().filter(|_| !is_quiet) {
        eprintln!("sampan: warning: {problem}");
    }
    if let Some(problem) = sampan_daemon::check::stopped(&settings) {
        anyhow::bail!(problem);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (health, nodes) = runtime.block_on(ask(&settings))?;
    let report = Report::of(&health, &nodes);
    if !is_quiet {
        report.print();
    }
    let wanted = if settings.disable_agent { 0 } else { 1 };
    if report.ready < wanted {
        anyhow::bail!("no node is ready");
    }
    Ok(())
}

/// Who asks whom: on a server the administrator asks it, on an agent the node asks one of its servers.
struct Asker {
    servers: Vec<String>,
    identity: Identity,
    authority: String,
    /// The only Node that a node may ask about.
    node: Option<String>,
}

impl Asker {
    fn of(settings: &Settings) -> anyhow::Result<Self> {
        let agent = settings.agent_dir().join("tls");
        let server = settings.server_dir().join("tls");
        let is_agent = !server.exists() && agent.join("client-kubelet.crt").exists();
        let (folder, name) = match is_agent {
            true => (agent, "client-kubelet"),
            false => (server, "client-admin"),
        };
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).with_context(|| {
                format!(
                    "cannot read {}: has sampan been started with this --data-dir, and are you root?",
                    path.display()
                )
            })
        };
        let identity = Identity {
            certificate_pem: read(&format!("{name}.crt"))?,
            key_pem: read(&format!("{name}.key"))?,
        };
        let authority = read("server-ca.crt")?;
        if !is_agent {
            return Ok(Self {
                servers: vec![settings.local_url()],
                identity,
                authority,
                node: None,
            });
        }
        let known = CertificateInfo::from_pem(&identity.certificate_pem)?.common_name;
        let node = known.strip_prefix(well_known::NODE_USER_PREFIX);
        Ok(Self {
            servers: serde_json::from_str(&read("servers.json")?)?,
            node: Some(node.unwrap_or(&known).to_owned()),
            identity,
            authority,
        })
    }
}

/// What the server says of its parts, and the nodes.
async fn ask(settings: &Settings) -> anyhow::Result<(String, Vec<Node>)> {
    let asker = Asker::of(settings)?;
    let transport = HttpsTransport::with_servers(
        asker.servers.clone(),
        Trust::Authorities(asker.authority),
        &Credentials::Certificate(asker.identity),
        "sampan-status",
        Arc::new(TcpDialer),
    )?;
    let health = transport
        .get_path("/readyz?verbose")
        .await
        .with_context(|| format!("the server at {} is not ready", asker.servers.join(", ")))?;
    let client = Client::new(Arc::new(transport));
    let nodes = match asker.node {
        Some(name) => vec![client.get(None, &name).await?],
        None => client.list(None, &ListParams::default()).await?,
    };
    Ok((String::from_utf8_lossy(&health).into_owned(), nodes))
}

struct Report {
    lines: Vec<String>,
    ready: usize,
}

impl Report {
    fn of(health: &str, nodes: &[Node]) -> Self {
        let mut report = Self {
            lines: vec!["server: ready".to_owned()],
            ready: 0,
        };
        let failing = health
            .lines()
            .filter_map(|line| line.strip_prefix("[-]part/"));
        report
            .lines
            .extend(failing.map(|line| format!("server: {line}")));
        for node in nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let (ready, why) = readiness(node);
            report.ready += usize::from(ready);
            report.lines.push(if ready {
                format!("node {name}: ready")
            } else {
                format!("node {name}: not ready: {why}")
            });
        }
        report
    }

    #[expect(clippy::print_stdout, reason = "printing is what this command is for")]
    fn print(&self) {
        for line in &self.lines {
            println!("{line}");
        }
    }
}

fn readiness(node: &Node) -> (bool, String) {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let Some(ready) = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
    else {
        return (false, "it has not reported yet".to_owned());
    };
    let why = ready.message.clone().unwrap_or_default();
    (ready.status == "True", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_shows_its_own_options_and_those_of_a_server_are_taken() {
        let help = cli().render_help().to_string();
        for name in OWN {
            assert!(help.contains(&format!("--{name}")), "{name}: {help}");
        }
        assert!(
            !help.contains("--cluster-cidr") && !help.contains("--kubelet-arg"),
            "{help}"
        );
        let given = ["status", "--cluster-cidr=10.44.0.0/16", "--quiet"];
        assert!(cli().try_get_matches_from(given).is_ok());
    }

    #[test]
    fn a_broken_file_takes_no_look_away() {
        let path = std::env::temp_dir().join(format!("sampan-broken-{}.yaml", std::process::id()));
        let path = path.display().to_string();
        for (text, port) in [
            ("{ not yaml", 6443),
            ("https-listen-port: 7443\nbogus: 1\n", 7443),
        ] {
            assert!(std::fs::write(&path, text).is_ok());
            let given = ["status", "--config", &path, "--data-dir", "/nowhere"];
            let found = cli()
                .try_get_matches_from(given)
                .map(|matches| Installation::of(&matches));
            assert!(
                matches!(&found, Ok(Ok(found)) if found.problems.len() == 1
                    && found.settings.https_listen_port == port
                    && found.settings.data_dir.as_os_str() == "/nowhere"),
                "{text}"
            );
        }
        assert!(std::fs::remove_file(&path).is_ok());
        let given = ["status", "--https-listen-port=x"];
        let refused = cli()
            .try_get_matches_from(given)
            .map(|matches| Installation::of(&matches).is_err());
        assert!(
            matches!(refused, Ok(true)),
            "what was said to the command itself"
        );
    }

    #[test]
    fn a_node_that_has_said_nothing_is_not_ready() {
        let report = Report::of("[+]ping ok\n", &[Node::default()]);
        assert_eq!(report.ready, 0);
        assert!(report.lines[1].ends_with("not ready: it has not reported yet"));
    }

    #[test]
    fn parts_that_fail_are_named() {
        let health = "[+]ping ok\n[+]part/dns ok\n[-]part/kube-proxy failed: it ended by itself\nreadyz check passed\n";
        let report = Report::of(health, &[]);
        let part = "server: kube-proxy failed: it ended by itself";
        assert_eq!(report.lines, ["server: ready", part]);
    }
}
