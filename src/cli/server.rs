//! `sampan server`: the control plane and, unless it is switched off, an agent.

use clap::{ArgMatches, Command};
use sampan_config::Role;

pub(crate) fn cli() -> Command {
    crate::options::command("server", Role::Server)
        .about("Run the control plane and, unless --disable-agent is given, an agent")
        .arg(crate::options::check_only())
}

pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let settings = crate::options::settings(matches, Role::Server)?;
    if crate::options::is_check_only(matches) {
        return crate::options::checked(sampan_daemon::check_server(settings));
    }
    sampan_daemon::run_server(settings)
}
