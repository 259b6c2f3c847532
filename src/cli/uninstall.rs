//! `sampan uninstall`: takes back everything that was done to this machine.

use clap::{Arg, ArgAction, ArgMatches, Command};
use sampan_daemon::uninstall::{self, Request};

const DRY_RUN: &str = "dry-run";
const PURGE: &str = "purge";
const DATA_DIR: &str = "data-dir";

pub(crate) fn cli() -> Command {
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new("uninstall")
        .about("Stop sampan and its containers and take back every change to this machine; data is kept")
        .arg(switch(DRY_RUN, "Say what would be done, and do nothing"))
        .arg(switch(
            PURGE,
            "Remove the data directory too: the cluster's objects, images, volumes",
        ))
        .arg(
            Arg::new(DATA_DIR)
                .long(DATA_DIR)
                .value_name("DIR")
                .help("Folder that holds all state of this node [env: SAMPAN_DATA_DIR] [default: as installed, else /var/lib/sampan]"),
        )
}

#[expect(clippy::print_stdout, reason = "printing is what this command is for")]
pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let request = Request {
        data_dir: matches
            .get_one::<String>(DATA_DIR)
            .map(Into::into)
            .or_else(|| std::env::var_os("SAMPAN_DATA_DIR").map(Into::into)),
        dry_run: matches.get_flag(DRY_RUN),
        purge: matches.get_flag(PURGE),
    };
    uninstall::run(&request, &mut |line| println!("{line}"))
}
