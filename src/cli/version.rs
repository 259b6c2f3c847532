//! `sampan version`.

use clap::{ArgMatches, Command};

/// Our version, and the API level that clients see.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes v1.36)");

pub(crate) fn cli() -> Command {
    Command::new("version").about("Print the version")
}

#[expect(clippy::print_stdout, reason = "printing is what this command is for")]
pub(crate) fn run(_: &ArgMatches) -> anyhow::Result<()> {
    println!("sampan {VERSION}");
    Ok(())
}
