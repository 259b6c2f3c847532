//! `sampan agent`: a node that joins a server.

use clap::{ArgMatches, Command};
use sampan_config::Role;

pub(crate) fn cli() -> Command {
    crate::options::command("agent", Role::Agent)
        .about("Run a node: kubelet, service proxy, pod network and DNS")
}

pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let settings = crate::options::settings(matches, Role::Agent)?;
    sampan_daemon::run_agent(settings)
}
