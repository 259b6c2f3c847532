//! A node.

use sampan_config::Settings;
use sampan_util::Shutdown;

use crate::controlplane::ControlPlane;
use crate::node::NodeIdentity;

/// A node that joins a server elsewhere.
pub(crate) async fn run(_settings: Settings, _shutdown: Shutdown) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}

/// The node of a server, in the same process.
pub(crate) async fn run_beside(
    _settings: &Settings,
    _plane: &ControlPlane,
    _node: NodeIdentity,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    shutdown.wait().await;
    Ok(())
}
