//! Tells the service manager that the process is ready (`sd_notify` without a library).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state` to the socket in `NOTIFY_SOCKET`; without one there is nobody to tell.
pub(crate) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&path.to_string_lossy(), state) {
        tracing::warn!(%error, "cannot tell the service manager: {state}");
    }
}

fn send(path: &str, state: &str) -> std::io::Result<()> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
