//! Every namespace has a ConfigMap `kube-root-ca.crt` by which pods know the API server.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{ListParams, Lister, ObjectKey};
use serde_json::json;

use crate::runtime::{Action, Controller, Form, Plan, Watches};
use crate::{Settings, owner};

const CONFIG_MAP: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const DESCRIPTION_TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver \
     when using internal endpoints such as the internal service IP or kubernetes.default.svc. \
     No other usage is guaranteed across distributions of Kubernetes clusters.";

pub struct RootCaPublisher {
    namespaces: Lister<Namespace>,
    config_maps: Lister<ConfigMap>,
    authority_pem: Arc<str>,
}

pub struct Observed {
    namespace: Arc<Namespace>,
    config_map: Option<Arc<ConfigMap>>,
    authority_pem: Arc<str>,
}

impl Controller for RootCaPublisher {
    const NAME: &'static str = "root-ca-cert-publisher";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, settings: &Settings) -> Self {
        let named = ListParams::fields(format!("metadata.name={CONFIG_MAP}"));
        Self {
            namespaces: watches.primary::<Namespace>(),
            config_maps: watches.mapped_with::<ConfigMap>(named, |change| {
                let namespace = change.object().metadata.namespace.clone();
                vec![ObjectKey::cluster(namespace.unwrap_or_default())]
            }),
            authority_pem: settings.root_ca_pem.as_str().into(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        Some(Observed {
            namespace: self.namespaces.get_key(key)?,
            config_map: self.config_maps.get(Some(&key.name), CONFIG_MAP),
            authority_pem: Arc::clone(&self.authority_pem),
        })
    }

    fn reconcile(observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let metadata = &observed.namespace.metadata;
        if owner::is_deleting(metadata) {
            return plan;
        }
        let wanted = &*observed.authority_pem;
        let annotations = || Some([(DESCRIPTION.to_owned(), DESCRIPTION_TEXT.to_owned())].into());
        let data = || [(KEY.to_owned(), wanted.to_owned())].into();
        let Some(current) = &observed.config_map else {
            plan.push(Action::create(&ConfigMap {
                metadata: ObjectMeta {
                    name: Some(CONFIG_MAP.to_owned()),
                    namespace: metadata.name.clone(),
                    annotations: annotations(),
                    ..ObjectMeta::default()
                },
                data: Some(data()),
                ..ConfigMap::default()
            }));
            return plan;
        };
        let described = current.metadata.annotations.as_ref();
        let described = described.and_then(|map| map.get(DESCRIPTION));
        let is_current = current.data == Some(data());
        if !is_current || described.map(String::as_str) != Some(DESCRIPTION_TEXT) {
            let mut change = json!({
                "metadata": {"annotations": {DESCRIPTION: DESCRIPTION_TEXT}},
                "data": {KEY: wanted},
            });
            for stranger in current.data.iter().flat_map(|data| data.keys()) {
                if stranger != KEY {
                    change["data"][stranger] = json!(null);
                }
            }
            let key = ObjectKey::of(&current.metadata);
            plan.push(Action::write::<ConfigMap>(&key, Form::Put, change));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{at, object};

    #[test]
    fn the_authority_is_published_and_kept() {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some("ns".to_owned());
        let plan = |config_map: Option<ConfigMap>| {
            let observed = Observed {
                namespace: Arc::new(namespace.clone()),
                config_map: config_map.map(Arc::new),
                authority_pem: "PEM".into(),
            };
            RootCaPublisher::reconcile(&observed, at(0))
        };
        let first = plan(None);
        let Action::Create { object: made, .. } = &first.actions[0].action else {
            panic!("{first}");
        };
        let mut made: ConfigMap = object(made.clone());
        assert_eq!(made.data.as_ref().unwrap()[KEY], "PEM");
        assert!(plan(Some(made.clone())).is_nothing());
        made.data
            .as_mut()
            .unwrap()
            .insert("other".to_owned(), String::new());
        let lines = plan(Some(made)).lines();
        assert!(lines[0].contains("\"other\":null"), "{lines:?}");
    }
}
