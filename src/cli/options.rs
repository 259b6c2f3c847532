//! The bridge between the option table and the command line: flags in, settings out.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use sampan_config::{Arity, OPTIONS, OptionRow, Role, Settings, Sources};
use sampan_daemon::uninstall;

const CONFIG: &str = "config";
const CHECK: &str = "check";
const CONFIG_ENVIRONMENT: &str = "SAMPAN_CONFIG";
const CONFIG_DEFAULT: &str = "/etc/sampan/config.yaml";

/// A subcommand that takes every option of its role.
pub(crate) fn command(name: &'static str, role: Role) -> Command {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .help(format!(
            "YAML file whose keys are these options [env: {CONFIG_ENVIRONMENT}] [default: {CONFIG_DEFAULT}]"
        ));
    Command::new(name).arg(config).args(
        OPTIONS
            .iter()
            .filter(|row| row.role.covers(role))
            .map(argument),
    )
}

/// `--check`: says whether the options can be, and does nothing.
pub(crate) fn check_only() -> Arg {
    Arg::new(CHECK)
        .long(CHECK)
        .action(ArgAction::SetTrue)
        .help("Only say whether it could start with these options; nothing is done")
}

pub(crate) fn is_check_only(matches: &ArgMatches) -> bool {
    matches.get_flag(CHECK)
}

/// Warnings do not make options wrong.
pub(crate) fn checked(result: anyhow::Result<()>) -> anyhow::Result<()> {
    for warning in sampan_daemon::environment_warnings() {
        eprintln!("warning: {warning}");
    }
    result
}

fn argument(row: &'static OptionRow) -> Arg {
    let mut help = format!("{} [env: {}]", row.help, row.environment());
    if let Some(default) = row.default.filter(|_| row.arity != Arity::Switch) {
        help.push_str(&format!(" [default: {default}]"));
    }
    let argument = Arg::new(row.name)
        .long(row.name)
        .help(help)
        .action(ArgAction::Append);
    match row.arity {
        Arity::Switch => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false"),
        Arity::One | Arity::Many | Arity::List => argument.value_name(row.value),
    }
}

/// The settings of this process, from flags, environment and file.
pub(crate) fn settings(matches: &ArgMatches, role: Role) -> anyhow::Result<Settings> {
    let flags: Vec<(String, String)> = OPTIONS
        .iter()
        .filter(|row| row.role.covers(role))
        .flat_map(|row| {
            let values = matches.get_many::<String>(row.name).into_iter().flatten();
            values.map(|value| (row.name.to_owned(), value.clone()))
        })
        .collect();
    let file = configuration_file(matches)?;
    let sources = Sources {
        flags: &flags,
        environment: &|name| std::env::var(name).ok(),
        file: file.as_deref(),
    };
    sampan_config::resolve(role, &sources).map_err(|errors| {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", texts.join("\nsampan: "))
    })
}

/// Like [`settings`], for a look at what is installed: its data directory, if no other one is named.
pub(crate) fn settings_of_installation(matches: &ArgMatches) -> anyhow::Result<Settings> {
    let mut settings = settings(matches, Role::Server)?;
    let unnamed = settings.data_dir == Path::new(uninstall::DEFAULT_DATA_DIR);
    if let Some(data_dir) = uninstall::installed_data_dir()
        && unnamed
    {
        settings.data_dir = data_dir;
    }
    Ok(settings)
}

/// The text of the configuration file. The default one may be missing, one that was named may not.
fn configuration_file(matches: &ArgMatches) -> anyhow::Result<Option<String>> {
    let named = matches
        .get_one::<String>(CONFIG)
        .cloned()
        .or_else(|| std::env::var(CONFIG_ENVIRONMENT).ok());
    let path = named.as_deref().unwrap_or(CONFIG_DEFAULT);
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("cannot read the configuration file {path}"))
        }
    }
}

/// Prints what clap has to say; a flag of another distribution gets advice in place of a guess.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    if let Some(advice) = foreign_advice(error) {
        eprintln!("sampan: {advice}");
        return ExitCode::from(2);
    }
    if error.print().is_err() {
        // Nobody listens: the exit code still tells.
        return ExitCode::from(2);
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(2),
    }
}

fn foreign_advice(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let ContextValue::String(argument) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let name = argument.trim_start_matches('-').split('=').next()?;
    let advice = sampan_config::foreign::advice(name)?;
    Some(format!("unknown option --{name}: {advice}"))
}
