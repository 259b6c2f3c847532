//! Every namespace has a ServiceAccount `default`.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{ListParams, Lister, ObjectKey};

use crate::runtime::{Action, Controller, Plan, Watches};
use crate::{Settings, owner};

const ACCOUNT: &str = "default";

pub struct ServiceAccountController {
    namespaces: Lister<Namespace>,
    accounts: Lister<ServiceAccount>,
}

pub struct Observed {
    namespace: Arc<Namespace>,
    exists: bool,
}

impl Controller for ServiceAccountController {
    const NAME: &'static str = "service-account-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let named = ListParams::fields(format!("metadata.name={ACCOUNT}"));
        Self {
            namespaces: watches.primary::<Namespace>(),
            accounts: watches.mapped_with::<ServiceAccount>(named, |change| {
                let namespace = change.object().metadata.namespace.clone();
                vec![ObjectKey::cluster(namespace.unwrap_or_default())]
            }),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        Some(Observed {
            namespace: self.namespaces.get_key(key)?,
            exists: self.accounts.get(Some(&key.name), ACCOUNT).is_some(),
        })
    }

    fn reconcile(observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let metadata = &observed.namespace.metadata;
        if !observed.exists && !owner::is_deleting(metadata) {
            plan.push(Action::create(&ServiceAccount {
                metadata: ObjectMeta {
                    name: Some(ACCOUNT.to_owned()),
                    namespace: metadata.name.clone(),
                    ..ObjectMeta::default()
                },
                ..ServiceAccount::default()
            }));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    #[test]
    fn a_missing_account_is_made_unless_the_namespace_goes() {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some("ns".to_owned());
        let plan = |namespace: &Namespace, exists| {
            let namespace = Arc::new(namespace.clone());
            let observed = Observed { namespace, exists };
            ServiceAccountController::reconcile(&observed, at(0)).lines()
        };
        assert_eq!(
            plan(&namespace, false),
            ["create serviceaccounts ns/default"]
        );
        assert!(plan(&namespace, true).is_empty());
        namespace.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        assert!(plan(&namespace, false).is_empty());
    }
}
