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
mod process;
mod server;
pub mod uninstall;

use anyhow::Context;
use sampan_config::Settings;

/// Runs the control plane (and an agent) until a signal ends it.
pub fn run_server(settings: Settings) -> anyhow::Result<()> {
    start(settings, |settings, shutdown| async move {
        server::run(settings, shutdown).await
    })
}

/// Runs a node that joins a server, until a signal ends it.
pub fn run_agent(settings: Settings) -> anyhow::Result<()> {
    start(settings, |settings, shutdown| async move {
        agent::run(settings, shutdown).await
    })
}

fn start<F>(
    settings: Settings,
    main: impl FnOnce(Settings, sampan_util::Shutdown) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    logging::init(settings.debug);
    sampan_net::install_crypto_provider();
    let settings = process::with_absolute_paths(settings)?;
    process::raise_file_limit();
    let _lock = process::lock(&settings.data_dir)?;
    let runtime = process::runtime().context("cannot start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        let shutdown = sampan_util::Shutdown::new();
        process::shut_down_on_signals(&shutdown)?;
        main(settings, shutdown).await
    });
    // Tasks that have not ended by now hold nothing that matters: everything durable is on disk.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    result
}
