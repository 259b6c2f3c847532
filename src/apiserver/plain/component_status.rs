//! How the parts of the control plane are, under the names that people know from other clusters.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sampan_api::{ResourceDef, Status, Verb};
use sampan_client::List;
use serde_json::{Value, json};

use super::Plain;
use crate::health::Health;
use crate::registry::hooks::Virtual;
use crate::registry::server::ApiServer;
use crate::request::{ApiRequest, Reply};

/// A component, and what `/readyz?verbose` calls it.
const COMPONENTS: &[(&str, &str)] = &[
    ("scheduler", "part/kube-scheduler"),
    ("controller-manager", "part/kube-controller-manager"),
    ("etcd-0", "etcd"),
];

pub(super) struct ComponentStatuses(pub(super) Health);

impl Virtual for ComponentStatuses {
    fn serves(&self) -> Vec<(&'static str, &'static str)> {
        vec![("", "componentstatuses")]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        let health = self.0.clone();
        Box::pin(async move {
            let plain = Plain::new(server, def, request)?.only(&[Verb::Get, Verb::List])?;
            let known = COMPONENTS.iter().filter_map(|(name, told)| {
                let state = health.state(told)?;
                Some((*name, document(name, &state)))
            });
            if plain.call.verb == Verb::List {
                let items = known.map(|(_, document)| Bytes::from(document.to_string()));
                return Ok(Reply::List {
                    kind: "ComponentStatusList".to_owned(),
                    api_version: "v1".to_owned(),
                    list: List {
                        resource_version: String::new(),
                        continue_token: None,
                        remaining_item_count: None,
                        items: items.collect(),
                    },
                });
            }
            let name = plain.call.name().to_owned();
            let found = known.into_iter().find(|(known, _)| *known == name);
            match found {
                Some((_, document)) => Ok(plain.reply(200, &document)),
                None => Err(Status::not_found("", "componentstatuses", &name)),
            }
        })
    }
}

fn document(name: &str, state: &Result<(), String>) -> Value {
    let (status, message) = match state {
        Ok(()) => ("True", "ok"),
        Err(why) => ("False", why.as_str()),
    };
    json!({
        "kind": "ComponentStatus",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_says_why() {
        let down = document("scheduler", &Err("it panicked".to_owned()));
        let condition = &down["conditions"][0];
        assert_eq!(condition["status"], "False");
        assert_eq!(condition["message"], "it panicked");
    }
}
