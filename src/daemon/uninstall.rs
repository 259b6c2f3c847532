//! Taking sampan off a machine: everything that the journal of host changes, the installer's list and the process
//! table know of.
//!
//! [`observe`] looks, [`plan`] decides (pure), [`act`] does it, one step after the other. Every step may be repeated,
//! so an uninstall that was killed is finished by the next one. Data is kept unless `purge` is asked for, and even then
//! nothing is removed that lies behind a mount.

mod act;
mod observe;
mod plan;
mod processes;
mod purge;

use std::path::{Path, PathBuf};

use anyhow::Context;

/// What the installer noted: one line for each thing it made.
pub const INSTALLED: &str = "/etc/sampan/installed";

/// Where install.sh has put the data, if it has installed sampan here.
pub fn installed_data_dir() -> Option<PathBuf> {
    let installed = observe::Installed::read().ok().flatten()?;
    Some(installed.data_dir)
}
/// Where data lies if nobody says otherwise.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/sampan";

#[derive(Debug, Clone, Default)]
pub struct Request {
    /// As given; else the installer's, else the usual one.
    pub data_dir: Option<PathBuf>,
    /// Say what would be done.
    pub dry_run: bool,
    /// Remove the data as well.
    pub purge: bool,
}

/// Ends all containers of a node whose sampan has ended, before the machine goes down. After its next boot their pods
/// start them again.
pub(crate) fn end_containers(data_dir: &Path) {
    let ended = observe::look(data_dir, None).and_then(|found| {
        tracing::info!(shims = found.shims.len(), "ending all containers");
        act::end_containers(&found).map_err(anyhow::Error::msg)
    });
    if let Err(error) = ended {
        tracing::warn!("containers are left to the machine's end: {error:#}");
    }
}

/// Does it, telling each step to `say`. An error means that something is left; running it again goes on.
pub fn run(request: &Request, say: &mut dyn FnMut(String)) -> anyhow::Result<()> {
    let installed = observe::Installed::read()?;
    let data_dir = request
        .data_dir
        .clone()
        .or_else(|| installed.as_ref().map(|list| list.data_dir.clone()))
        .unwrap_or_else(|| DEFAULT_DATA_DIR.into());
    let data_dir =
        std::path::absolute(&data_dir).context("the working directory cannot be read")?;
    // The installer's list is of one installation: another data directory is none of it.
    let installed = installed.filter(|list| list.data_dir == data_dir);
    let found = observe::look(&data_dir, installed.clone())?;
    let steps = plan::plan(&found, request.purge);
    if steps.is_empty() {
        say(format!(
            "nothing of sampan is on this machine (data directory {})",
            data_dir.display()
        ));
        return Ok(());
    }
    if request.dry_run {
        act::preview(&found, &steps, say);
        return Ok(());
    }
    let stopped = act::execute(&found, &plan::stop(&found), say)?;
    // Until its end sampan may have changed something; from now on nobody does.
    let lock = match found.data {
        true => Some(crate::process::lock(&data_dir)?),
        false => None,
    };
    let found = observe::look(&data_dir, installed)?;
    let failures = stopped + act::execute(&found, &plan::remove(&found, request.purge), say)?;
    drop(lock);
    if failures > 0 {
        anyhow::bail!(
            "{failures} things could not be taken back; `sampan uninstall` again goes on"
        );
    }
    Ok(())
}
