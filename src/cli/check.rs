//! `sampan check`: what on this machine keeps a node from working, and what to do about it.

use clap::{ArgMatches, Command};

use crate::options::{Installation, looking_command};

/// Options that what is looked for depends on.
const OWN: &[&str] = &[
    "data-dir",
    "cluster-cidr",
    "container-runtime-endpoint",
    "disable",
];

pub(crate) fn cli() -> Command {
    looking_command("check", OWN)
        .about("Look for what keeps a node from working on this machine; nothing is changed")
}

#[expect(clippy::print_stdout, reason = "printing is what this command is for")]
pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let Installation { settings, problems } = Installation::of(matches)?;
    for problem in &problems {
        println!("problem: settings: {problem}");
    }
    let mut problems = problems.len();
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
