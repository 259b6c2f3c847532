//! What the runtime finds: our executable under the plugins' names, and the network configuration.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cni::protocol::CONFIG_VERSION;
use crate::ipam::replace_file;
use crate::settings::Paths;
use crate::shim;

/// Sorted first, should somebody add another configuration.
const CONFIG_NAME: &str = "10-sampan.conflist";

#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
pub struct Error {
    path: String,
    source: io::Error,
}

/// Makes the plugins and the configuration appear. Called once the node's network is ready: from
/// then on the runtime calls itself ready, and with it the node.
pub fn install(paths: &Paths, executable: &Path) -> Result<(), Error> {
    for directory in [&paths.cni_bin, &paths.cni_conf] {
        fs::create_dir_all(directory).map_err(fail(directory))?;
    }
    for name in [shim::PLUGIN, shim::LOOPBACK] {
        let link = paths.cni_bin.join(name);
        link_to(&link, executable).map_err(fail(&link))?;
    }
    let config = paths.cni_conf.join(CONFIG_NAME);
    let text = render_config(&paths.socket());
    if fs::read(&config).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    replace_file(&config, text.as_bytes()).map_err(fail(&config))
}

/// The opposite: the runtime, and the node, are no longer ready.
pub fn uninstall(paths: &Paths) -> Result<(), Error> {
    let config = paths.cni_conf.join(CONFIG_NAME);
    match fs::remove_file(&config) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(fail(&config)),
    }
}

fn render_config(socket: &Path) -> String {
    let config = json!({
        "cniVersion": CONFIG_VERSION,
        "name": "sampan",
        "plugins": [{
            "type": shim::PLUGIN,
            "socket": socket,
            "capabilities": {"portMappings": true}
        }]
    });
    format!("{config:#}\n")
}

fn link_to(link: &PathBuf, target: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|old| old == target) {
        return Ok(());
    }
    let new = link.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, &new)?;
    fs::rename(&new, link)
}

fn fail(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.display().to_string();
    move |source| Error { path, source }
}
