//! `sampan check`: what on this machine keeps a node from working, and what to do about it.

use clap::{ArgMatches, Command};
use sampan_config::Role;

pub(crate) fn cli() -> Command {
    crate::options::command("check", Role::Server)
        .about("Look for what keeps a node from working on this machine; nothing is changed")
}

#[expect(clippy::print_stdout, reason = "printing is what this command is for")]
pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let settings = crate::options::settings_of_installation(matches)?;
    let mut problems = 0;
    for finding in sampan_daemon::check::run(&settings) {
        if finding.problems.is_empty() {
            println!("ok: {}", finding.subject);
        }
        for problem in &finding.problems {
            problems += 1;
            println!("problem: {}: {problem}", finding.subject);
        }
    }
    if problems > 0 {
        anyhow::bail!("{problems} problems");
    }
    Ok(())
}
