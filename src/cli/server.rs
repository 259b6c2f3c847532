//! `sampan server`: the control plane and, unless it is switched off, an agent.

use clap::{ArgMatches, Command};
use sampan_config::Role;

pub(crate) fn cli() -> Command {
    crate::options::command("server", Role::Server)
        .about("Run the control plane and, unless --disable-agent is given, an agent")
}

pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let settings = crate::options::settings(matches, Role::Server)?;
    sampan_daemon::run_server(settings)
}
