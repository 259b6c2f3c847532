//! Builds server and agent from settings: start order, supervision, drain.
//!
//! Reading order: [`server`] is a control plane and, unless switched off, an agent; [`agent`] is a node.

mod addresses;
mod agent;
mod certificates;
pub mod check;
mod component;
mod controlplane;
mod host_facts;
mod logging;
mod node;
mod notify;
mod parts;
mod preflight;
mod process;
mod server;
pub mod uninstall;

use anyhow::Context;
use sampan_config::Settings;

/// Runs the control plane (and an agent) until a signal ends it.
pub fn run_server(settings: Settings) -> anyhow::Result<()> {
    start(settings, preflight::server, server::run)
}

/// Runs a node that joins a server, until a signal ends it.
pub fn run_agent(settings: Settings) -> anyhow::Result<()> {
    start(settings, preflight::agent, agent::run)
}

/// Whether a server could start with these settings; changes nothing, and does not mind one that runs.
pub fn check_server(settings: Settings) -> anyhow::Result<()> {
    preflight::server(&prepared(settings)?).map(|_| ())
}

/// Whether an agent could start with these settings; changes nothing, and does not mind one that runs.
pub fn check_agent(settings: Settings) -> anyhow::Result<()> {
    preflight::agent(&prepared(settings)?).map(|_| ())
}

/// Paths as they are meant, and the token from its file: that may be a pipe, which is read once.
fn prepared(settings: Settings) -> anyhow::Result<Settings> {
    let mut settings = process::with_absolute_paths(settings)?;
    if let Some(token) = sampan_cluster::token::given(&settings)? {
        settings.token = Some(token);
        settings.token_file = None;
    }
    Ok(settings)
}

/// Variables of the environment that look like options of ours and are none.
pub fn environment_warnings() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    sampan_config::environment::unknown(names)
}

fn start<N, F>(
    settings: Settings,
    preflight: fn(&Settings) -> anyhow::Result<N>,
    main: impl FnOnce(Settings, N, sampan_util::Shutdown) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    logging::init(settings.debug);
    for warning in environment_warnings() {
        tracing::warn!("{warning}");
    }
    sampan_net::install_crypto_provider();
    let settings = prepared(settings)?;
    let node = preflight(&settings)?;
    process::raise_file_limit();
    let data_dir = settings.data_dir.clone();
    let _lock = process::lock(&data_dir)?;
    let runtime = process::runtime().context("cannot start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        let shutdown = sampan_util::Shutdown::new();
        process::shut_down_on_signals(&shutdown)?;
        main(settings, node, shutdown).await
    });
    // Tasks that have not ended by now hold nothing that matters: everything durable is on disk.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    // Containers outlive sampan, but not the machine: nobody else would ask them to end.
    if process::machine_goes_down() {
        uninstall::end_containers(&data_dir);
    }
    result
}
