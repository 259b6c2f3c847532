//! The bridge between the option table and the command line: flags in, settings out.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use sampan_config::{Arity, ConfigError, OPTIONS, OptionRow, Role, Settings, Sources};
use sampan_daemon::uninstall;
use sampan_util::file;

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

/// A subcommand that looks at what runs. It takes what a server takes, so that the options of a service can be handed to it as they
/// are; its help shows those that matter to it.
pub(crate) fn looking_command(name: &'static str, own: &[&str]) -> Command {
    let shown = |argument: Arg| {
        let id = argument.get_id().as_str();
        let is_own = id == CONFIG || own.contains(&id);
        argument.hide(!is_own)
    };
    command(name, Role::Server).mut_args(shown)
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
    let file = configuration_file(matches)?;
    let flags = flags(matches, role);
    sampan_config::resolve(role, &sources(&flags, file.as_deref())).map_err(all_of)
}

fn flags(matches: &ArgMatches, role: Role) -> Vec<(String, String)> {
    let rows = OPTIONS.iter().filter(|row| row.role.covers(role));
    let given = rows.flat_map(|row| {
        let values = matches.get_many::<String>(row.name).into_iter().flatten();
        values.map(|value| (row.name.to_owned(), value.clone()))
    });
    given.collect()
}

fn sources<'a>(flags: &'a [(String, String)], file: Option<&'a str>) -> Sources<'a> {
    Sources {
        flags,
        environment: &|name| std::env::var(name).ok(),
        file,
    }
}

fn all_of(errors: Vec<ConfigError>) -> anyhow::Error {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    anyhow::anyhow!("{}", texts.join("\nsampan: "))
}

/// Settings for a look at what is installed, and what could not be understood.
pub(crate) struct Installation {
    pub(crate) settings: Settings,
    /// Only `server` and `agent` stand or fall with what is in the file; who looks goes on without it.
    pub(crate) problems: Vec<String>,
}

impl Installation {
    /// Its data directory is the installed one, if no other one is named.
    pub(crate) fn of(matches: &ArgMatches) -> anyhow::Result<Self> {
        let mut problems = Vec::new();
        let file = configuration_file(matches).unwrap_or_else(|error| {
            problems.push(sampan_util::chain(&*error));
            None
        });
        let flags = flags(matches, Role::Server);
        let sources = sources(&flags, file.as_deref());
        let (mut settings, errors) = sampan_config::resolve_leniently(Role::Server, &sources);
        let (said, found): (Vec<_>, Vec<_>) = errors.into_iter().partition(ConfigError::is_of_flag);
        if !said.is_empty() {
            return Err(all_of(said));
        }
        problems.extend(found.iter().map(ToString::to_string));
        let unnamed = settings.data_dir == Path::new(uninstall::DEFAULT_DATA_DIR);
        if let Some(data_dir) = uninstall::installed_data_dir()
            && unnamed
        {
            settings.data_dir = data_dir;
        }
        Ok(Self { settings, problems })
    }
}

/// The text of the configuration file. The default one may be missing, one that was named may not.
fn configuration_file(matches: &ArgMatches) -> anyhow::Result<Option<String>> {
    let named = matches
        .get_one::<String>(CONFIG)
        .cloned()
        .or_else(|| std::env::var(CONFIG_ENVIRONMENT).ok());
    let path = named.as_deref().unwrap_or(CONFIG_DEFAULT);
    match file::read_text(Path::new(path)) {
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
