//! `sampan agent`: a node that joins a server.

use clap::{ArgMatches, Command};
use sampan_config::Role;

pub(crate) fn cli() -> Command {
    crate::options::command("agent", Role::Agent)
        .about("Run a node: kubelet, service proxy, pod network and DNS")
        .arg(crate::options::check_only())
}

pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let settings = crate::options::settings(matches, Role::Agent)?;
    if crate::options::is_check_only(matches) {
        return crate::options::checked(sampan_daemon::check_agent(settings));
    }
    sampan_daemon::run_agent(settings)
}
