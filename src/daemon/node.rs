//! Who this node is: settings, completed by what the machine says of itself.

use std::net::IpAddr;

use anyhow::Context;
use sampan_config::Settings;

use crate::host_facts;

#[derive(Debug, Clone)]
pub(crate) struct NodeIdentity {
    pub(crate) name: String,
    pub(crate) ips: Vec<IpAddr>,
}

impl NodeIdentity {
    pub(crate) fn of(settings: &Settings) -> anyhow::Result<Self> {
        // Refused before anything is started.
        let mut kubelet = sampan_kubelet::Settings::new("", settings.agent_dir());
        sampan_kubelet::arguments::apply(&mut kubelet, &settings.kubelet_args)?;
        let name = match &settings.node_name {
            Some(name) => name.clone(),
            None => host_facts::node_name()?,
        };
        let ips = if settings.node_ips.is_empty() {
            let found = host_facts::node_address();
            vec![found.context("this machine has no address; give one with --node-ip")?]
        } else {
            settings.node_ips.clone()
        };
        Ok(Self { name, ips })
    }
}
