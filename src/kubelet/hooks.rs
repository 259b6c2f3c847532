//! Life-cycle hooks: what runs right after a container has started and before it is stopped.

use crate::handlers::{Handlers, HttpCall, port_number};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use std::time::Duration;

/// Runs a hook to its end.
pub async fn run(
    handlers: &Handlers,
    hook: &LifecycleHandler,
    container: &Container,
    container_id: &str,
    pod_ip: &str,
) -> Result<(), String> {
    if let Some(action) = &hook.exec {
        let command = action.command.as_deref().unwrap_or_default();
        return handlers.hook_exec(container_id, command).await;
    }
    if let Some(action) = &hook.http_get {
        let call = HttpCall::new(action, container, pod_ip)?;
        return handlers.hook_http(&call).await;
    }
    if let Some(action) = &hook.sleep {
        let seconds = u64::try_from(action.seconds).unwrap_or_default();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    if let Some(action) = &hook.tcp_socket {
        let port = port_number(&action.port, container)?;
        return Err(format!(
            "hooks of kind tcpSocket are not supported (port {port})"
        ));
    }
    Err("invalid handler: nothing to do".to_owned())
}
