//! What is refused before anything is done: by every start, and alone by `--check`.

use std::net::IpAddr;

use anyhow::Context;
use sampan_cluster::info;
use sampan_config::{Settings, conflicts};
use sampan_pki::JoinToken;

use crate::controlplane;
use crate::node::NodeIdentity;

/// The node of a server that may start with these settings, if it is to have one.
pub(crate) fn server(settings: &Settings) -> anyhow::Result<Option<NodeIdentity>> {
    let made_by_agent = settings.agent_dir().join("tls/server-ca.crt").exists();
    if made_by_agent && !settings.server_dir().exists() {
        anyhow::bail!(
            "{} is the data of an agent, whose Pods a server would end: give another --data-dir, or take the agent off with \
             `sampan uninstall --purge`",
            settings.data_dir.display()
        );
    }
    check_paths(settings)?;
    sampan_pki::files::refuse_other_than_file(&settings.write_kubeconfig)
        .context("option --write-kubeconfig: expected the path of a file, or of none")?;
    check_token(settings)?;
    controlplane::static_tokens(settings)?;
    if let Some(before) = info::kept_before(&controlplane::cluster_file(settings)) {
        let now = controlplane::cluster_info(settings, String::new());
        refuse_change(&before, &now)?;
    }
    if settings.disable_agent {
        return Ok(None);
    }
    need_root(
        "a server runs containers and sets up their network",
        ", or run the control plane alone with --disable-agent",
    )?;
    let node = NodeIdentity::of(settings)?;
    refuse_own_addresses(settings, &node.ips)?;
    Ok(Some(node))
}

/// The node of an agent that may start with these settings.
pub(crate) fn agent(settings: &Settings) -> anyhow::Result<NodeIdentity> {
    settings
        .server
        .as_ref()
        .context("an agent needs --server, the URL of a server to join")?;
    if settings.server_dir().join("db").exists() {
        anyhow::bail!(
            "{} is the data of a server: give another --data-dir, or take the server off with `sampan uninstall --purge`",
            settings.data_dir.display()
        );
    }
    check_paths(settings)?;
    check_token(settings)?;
    need_root("an agent runs containers and sets up their network", "")?;
    NodeIdentity::of(settings)
}

/// Folders are made where they are missing, which works only below folders.
fn check_paths(settings: &Settings) -> anyhow::Result<()> {
    let path = &settings.data_dir;
    let found = path.ancestors().find_map(|above| {
        let metadata = std::fs::metadata(above).ok()?;
        Some((above, metadata))
    });
    match found {
        Some((above, metadata)) if !metadata.is_dir() => anyhow::bail!(
            "option --data-dir: {}: {} is {}; expected a folder, or a place where one can be made",
            path.display(),
            above.display(),
            sampan_util::file::what_is(&metadata)
        ),
        _ => Ok(()),
    }
}

fn check_token(settings: &Settings) -> anyhow::Result<()> {
    if let Some(token) = sampan_cluster::token::given(settings)? {
        JoinToken::parse(&token)?;
    }
    Ok(())
}

fn need_root(why: &str, or: &str) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    anyhow::bail!("{why}, which needs root: run it as root (sudo){or}")
}

/// The addresses of this machine; those that were given are looked at with the settings.
fn refuse_own_addresses(settings: &Settings, addresses: &[IpAddr]) -> anyhow::Result<()> {
    match conflicts::with_machine(settings, addresses)
        .into_iter()
        .next()
    {
        Some(conflict) => Err(conflict.into()),
        None => Ok(()),
    }
}

/// Nodes, Services and certificates stand on these: with others the cluster would fall apart.
pub(crate) fn refuse_change(
    before: &info::ClusterInfo,
    now: &info::ClusterInfo,
) -> anyhow::Result<()> {
    match info::difference(before, now) {
        None => Ok(()),
        Some(difference) => anyhow::bail!(
            "{difference}; nodes, Pods and Services have addresses and names of it. Give what the data was made with, \
             or another --data-dir for a new cluster"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn data_lies_in_a_folder() {
        let check = |path: &str| {
            check_paths(&Settings {
                data_dir: path.into(),
                ..Settings::default()
            })
        };
        for (path, what) in [("/dev/null", "a device"), ("/proc/self/stat/x/y", "a file")] {
            let told = check(path).unwrap_err().to_string();
            assert!(
                told.starts_with(&format!("option --data-dir: {path}: ")),
                "{told}"
            );
            assert!(told.contains(what), "{told}");
        }
        assert!(check("/var/lib/there/is/none").is_ok());
        assert!(check("/tmp").is_ok());
    }
}
