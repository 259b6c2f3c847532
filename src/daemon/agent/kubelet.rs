//! The kubelet and its server on port 10250 as one part of the node: they start, end and fail together.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use sampan_client::{Client, Informers};
use sampan_cri::{Channel, Images, Runtime};
use sampan_host::Journal;
use sampan_kubelet::cgroup::Cgroups;
use sampan_kubelet::inotify::FileWatcher;
use sampan_kubelet::lookup::Lookup;
use sampan_kubelet::machine::MachineInfo;
use sampan_kubelet::runtime::images::Imported;
use sampan_kubelet::runtime::supervisor::Up;
use sampan_kubelet::server::{self, Access, ServerState};
use sampan_kubelet::{Kubelet, Settings};
use sampan_net::{CertificateChecker, ServerIdentity};
use sampan_util::{Parts, Shutdown};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use crate::{component, parts};

/// What every run of the kubelet begins with.
pub(super) struct Part {
    pub(super) settings: Settings,
    pub(super) client: Client,
    pub(super) serving: Arc<ServerIdentity>,
    pub(super) client_authority: String,
    pub(super) channel: Channel,
    pub(super) runtime_up: watch::Receiver<Up>,
    pub(super) cgroups: Option<Cgroups>,
    pub(super) journal: Journal,
    pub(super) nudge: Arc<Notify>,
    pub(super) watcher: FileWatcher,
    pub(super) imported: watch::Receiver<Imported>,
    pub(super) parts: Parts,
}

impl Part {
    /// One run: until `stop`, or until kubelet or server ends.
    pub(super) async fn run(&self, stop: Shutdown) -> anyhow::Result<()> {
        let listener = listener(self.settings.port).await?;
        let kubelet = Kubelet::new(
            self.settings.clone(),
            sampan_kubelet::Parts {
                informers: Informers::new(self.client.clone(), stop.clone()),
                client: self.client.clone(),
                channel: self.channel.clone(),
                runtime_up: self.runtime_up.clone(),
                cgroups: self.cgroups.clone(),
                journal: Some(self.journal.clone()),
                nudge: Arc::clone(&self.nudge),
                watcher: self.watcher.clone(),
                imported: self.imported.clone(),
            },
        );
        let state = self.server_state(kubelet.lookup())?;
        let serve = server::serve(listener, Arc::clone(&self.serving), state, stop.clone());
        let serve = async { serve.await.context("kubelet server") };
        let run = kubelet.run(stop.clone());
        let run = async { run.await.context("kubelet") };
        component::together(&stop, serve, run).await
    }

    fn server_state(&self, lookup: Arc<dyn Lookup>) -> anyhow::Result<ServerState> {
        let name = &self.settings.node_name;
        let checker = CertificateChecker::new(&self.client_authority)?;
        let counted = self.parts.clone();
        Ok(ServerState {
            node_name: name.clone(),
            lookup,
            runtime: Runtime::new(self.channel.clone()),
            images: Images::new(self.channel.clone()),
            watcher: self.watcher.clone(),
            access: Access::new(name, self.client.clone(), checker),
            cgroups: self.cgroups.clone(),
            machine: MachineInfo::read(),
            data_dir: self.settings.agent_dir.clone(),
            config: serde_json::json!({}),
            metrics: vec![Arc::new(move |text| parts::kubelet_metrics(&counted, text))],
        })
    }
}

async fn listener(port: u16) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::from(([0, 0, 0, 0], port));
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address} (the kubelet's port); is another kubelet running?")
    })
}
