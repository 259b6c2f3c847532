//! One file per subcommand, listed once in [`COMMANDS`].

mod agent;
mod check;
mod options;
mod server;
mod status;
mod uninstall;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, Command};

/// A subcommand: how it is parsed and what it does.
struct Subcommand {
    cli: fn() -> Command,
    run: fn(&ArgMatches) -> anyhow::Result<()>,
}

static COMMANDS: &[Subcommand] = &[
    Subcommand {
        cli: server::cli,
        run: server::run,
    },
    Subcommand {
        cli: agent::cli,
        run: agent::run,
    },
    Subcommand {
        cli: check::cli,
        run: check::run,
    },
    Subcommand {
        cli: status::cli,
        run: status::run,
    },
    Subcommand {
        cli: uninstall::cli,
        run: uninstall::run,
    },
    Subcommand {
        cli: version::cli,
        run: version::run,
    },
];

/// Runs the program under the name it was called by: as a CNI plugin, or as `sampan`.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let called_as = arguments
        .first()
        .and_then(|path| std::path::Path::new(path).file_name())
        .and_then(|name| name.to_str())
        .unwrap_or("sampan");
    if sampan_network::shim::is_plugin_name(called_as) {
        return sampan_network::shim::main(called_as);
    }
    let matches = match command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) => return options::report(&error),
    };
    match dispatch(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sampan: {}", sampan_util::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn command() -> Command {
    Command::new("sampan")
        .about("Kubernetes in one small executable, for edge devices and homelabs")
        .version(version::VERSION)
        .disable_version_flag(false)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(COMMANDS.iter().map(|command| (command.cli)()))
}

fn dispatch(matches: &ArgMatches) -> anyhow::Result<()> {
    let Some((name, arguments)) = matches.subcommand() else {
        anyhow::bail!("no subcommand was given; see `sampan --help`");
    };
    let found = COMMANDS
        .iter()
        .find(|command| (command.cli)().get_name() == name);
    match found {
        Some(command) => (command.run)(arguments),
        None => anyhow::bail!("unknown subcommand {name}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
