//! Who this node is: settings, completed by what the machine says of itself.

use std::net::IpAddr;

use anyhow::{Context, anyhow};
use sampan_config::Settings;
use sampan_config::settings::Taint;
use sampan_kubelet::arguments;

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
        arguments::apply(&mut kubelet, &settings.kubelet_args)?;
        check_labels_and_taints(settings)?;
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

/// The Node could not be made with others, and would be tried without end.
fn check_labels_and_taints(settings: &Settings) -> anyhow::Result<()> {
    for (key, value) in &settings.node_labels {
        arguments::check_label(key, value)
            .map_err(|why| anyhow!("option --node-label={key}={value}: {why}"))?;
    }
    for Taint { key, value, effect } in &settings.node_taints {
        arguments::check_taint(key, value, effect)
            .map_err(|why| anyhow!("option --node-taint={key}={value}:{effect}: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn labels_and_taints_that_no_node_can_have_are_named() {
        let check = |label: (&str, &str), taint: &str| {
            check_labels_and_taints(&Settings {
                node_labels: vec![(label.0.to_owned(), label.1.to_owned())],
                node_taints: vec![Taint {
                    key: taint.to_owned(),
                    value: String::new(),
                    effect: "NoExecute".to_owned(),
                }],
                ..Settings::default()
            })
        };
        assert!(check(("disk", "ssd"), "example.com/gpu").is_ok());
        let told = check(("disk", "s s"), "gpu").unwrap_err().to_string();
        assert!(
            told.starts_with("option --node-label=disk=s s: a valid label"),
            "{told}"
        );
        let told = check(("node-role.kubernetes.io/worker", ""), "gpu").unwrap_err();
        assert!(told.to_string().contains("kubectl label node"), "{told}");
        let told = check(("disk", ""), "g p u").unwrap_err().to_string();
        assert!(
            told.starts_with("option --node-taint=g p u=:NoExecute: "),
            "{told}"
        );
    }
}
