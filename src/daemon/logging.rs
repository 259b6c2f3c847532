//! Log lines go to standard error; the service manager or the shell keeps them.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// `SAMPAN_LOG` takes tracing's filter syntax and wins over `--debug`.
pub(crate) fn init(debug: bool) {
    let default = if debug {
        "info,sampan=debug,sampan_api=debug,sampan_apiserver=debug,sampan_client=debug,sampan_cluster=debug,\
         sampan_controllers=debug,sampan_cri=debug,sampan_daemon=debug,sampan_dns=debug,sampan_host=debug,\
         sampan_kubelet=debug,sampan_net=debug,sampan_network=debug,sampan_proxy=debug,sampan_scheduler=debug,\
         sampan_store=debug"
    } else {
        "info"
    };
    let filter = EnvFilter::try_from_env("SAMPAN_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if subscriber.try_init().is_err() {
        // A second init in one process, as in tests: the first one stays.
    }
}
