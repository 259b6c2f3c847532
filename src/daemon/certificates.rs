//! The server's certificates while it runs: renewed before they end, and made anew for other addresses.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::Context;
use sampan_apiserver::streams::Relay;
use sampan_cluster::renew::Kept;
use sampan_config::Settings;
use sampan_net::ServerIdentity;
use sampan_pki::files;
use sampan_pki::kubeconfig::{Credentials, Kubeconfig};
use sampan_pki::server::{ServerNames, ServerPki};

use crate::node::NodeIdentity;

/// What shows certificates, and what decides on their content. Copies are the same one.
#[derive(Clone)]
pub(crate) struct Certificates(Arc<Inner>);

struct Inner {
    settings: Settings,
    node: Mutex<Option<NodeIdentity>>,
    serving: Arc<ServerIdentity>,
    relay: Arc<Relay>,
}

impl Certificates {
    pub(crate) fn new(
        settings: &Settings,
        node: Option<&NodeIdentity>,
        serving: &Arc<ServerIdentity>,
        relay: &Arc<Relay>,
    ) -> Self {
        Self(Arc::new(Inner {
            settings: settings.clone(),
            node: Mutex::new(node.cloned()),
            serving: Arc::clone(serving),
            relay: Arc::clone(relay),
        }))
    }

    /// From now on the node has these addresses; the serving certificate names them when this returns.
    pub(crate) fn follow(&self, node: &NodeIdentity) -> anyhow::Result<()> {
        let mut known = self.0.node.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(node.clone());
        drop(known);
        self.renew().map(|_| ())
    }

    /// To be kept fresh.
    pub(crate) fn kept(&self, pki: &ServerPki) -> Kept {
        let own = self.clone();
        Kept {
            name: "server",
            due: pki.due_at().unwrap_or(SystemTime::UNIX_EPOCH),
            renew: Box::new(move || {
                let own = own.clone();
                Box::pin(async move { own.renew().map_err(|error| sampan_util::chain(&*error)) })
            }),
        }
    }

    /// Makes what is due and puts it to use; returns when the next one is due.
    fn renew(&self) -> anyhow::Result<SystemTime> {
        let node = self
            .0
            .node
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let pki = ensure(&self.0.settings, node.as_ref())?;
        self.0.serving.replace(&pki.serving)?;
        let authorities = pki.kubelet_authorities(sampan_util::clock::plausible_now())?;
        self.0.relay.replace(&pki.kubelet_client, &authorities)?;
        write_kubeconfig(&self.0.settings, &pki)?;
        Ok(pki.due_at()?)
    }
}

/// Everything in the server's certificates directory, made where it is missing, due or for other names.
pub(crate) fn ensure(
    settings: &Settings,
    node: Option<&NodeIdentity>,
) -> anyhow::Result<ServerPki> {
    let directory = settings.server_dir().join("tls");
    ServerPki::ensure(
        &directory,
        &names(settings, node),
        sampan_util::clock::plausible_now(),
    )
    .with_context(|| format!("cannot prepare the certificates in {}", directory.display()))
}

fn names(settings: &Settings, node: Option<&NodeIdentity>) -> ServerNames {
    let (mut dns_names, mut ips) = (Vec::new(), Vec::new());
    for name in &settings.tls_sans {
        match name.parse() {
            Ok(ip) => ips.push(ip),
            Err(_) => dns_names.push(name.clone()),
        }
    }
    ips.extend(crate::controlplane::advertised(settings, node));
    ips.extend(settings.bind_addresses.iter().copied());
    ips.extend(settings.kubernetes_service_address());
    if let Some(node) = node {
        dns_names.push(node.name.clone());
        ips.extend(&node.ips);
    }
    ServerNames {
        dns_names,
        ips,
        cluster_domain: settings.cluster_domain.clone(),
        leaf_life: Some(settings.certificate_lifetime),
    }
}

pub(crate) fn write_kubeconfig(settings: &Settings, pki: &ServerPki) -> anyhow::Result<()> {
    let text = Kubeconfig {
        name: "default",
        server: &settings.local_url(),
        authority_pem: pki.server_ca.certificate_pem(),
        credentials: Credentials::Certificate(&pki.admin),
    }
    .render();
    let path = &settings.write_kubeconfig;
    match write(path, &text, settings.write_kubeconfig_mode) {
        Ok(()) => Ok(()),
        // Without root the default place cannot be written; the control plane works all the same.
        Err(error) if settings.disable_agent => {
            tracing::warn!(path = %path.display(), error = sampan_util::chain(&*error),
                "the kubeconfig was not written; choose another place with --write-kubeconfig");
            Ok(())
        }
        Err(error) => Err(error.context(format!("cannot write the kubeconfig {}", path.display()))),
    }
}

/// Whether there was no room, or no disk that can be written, at the bottom of it.
pub(crate) fn is_disk_full(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(sampan_util::file::is_disk_full)
    })
}

fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).context("cannot make its folder")?;
    }
    Ok(files::write_atomic(path, text.as_bytes(), mode)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_full_disk_is_seen_through_all_layers() {
        let mut full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let source = full.write_all(b"x").unwrap_err();
        let path = "/dev/full".into();
        let error = anyhow::Error::from(sampan_pki::Error::Write { path, source });
        assert!(is_disk_full(&error.context("cannot write the kubeconfig")));
        let folder = std::fs::write("/proc", "x").unwrap_err();
        assert!(!is_disk_full(&folder.into()));
    }
}
