//! Who makes a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The identity that authentication established; authorization and admission look at nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserInfo {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub username: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Groups and users that have a meaning of their own.
pub mod well_known {
    pub const MASTERS: &str = "system:masters";
    pub const NODES: &str = "system:nodes";
    pub const AUTHENTICATED: &str = "system:authenticated";
    pub const UNAUTHENTICATED: &str = "system:unauthenticated";
    pub const ANONYMOUS: &str = "system:anonymous";
    pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
    pub const NODE_USER_PREFIX: &str = "system:node:";
    pub const SERVICE_ACCOUNT_USER_PREFIX: &str = "system:serviceaccount:";
}

impl UserInfo {
    /// An authenticated user; `system:authenticated` is added to `groups`.
    pub fn authenticated(username: impl Into<String>, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        if !groups
            .iter()
            .any(|group| group == well_known::AUTHENTICATED)
        {
            groups.push(well_known::AUTHENTICATED.to_owned());
        }
        Self {
            username: username.into(),
            groups,
            ..Self::default()
        }
    }

    /// The user of a request without credentials.
    pub fn anonymous() -> Self {
        Self {
            username: well_known::ANONYMOUS.to_owned(),
            groups: vec![well_known::UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// The user behind a service account's token.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            username: format!(
                "{}{namespace}:{name}",
                well_known::SERVICE_ACCOUNT_USER_PREFIX
            ),
            uid: uid.to_owned(),
            groups: vec![
                well_known::SERVICE_ACCOUNTS.to_owned(),
                format!("{}:{namespace}", well_known::SERVICE_ACCOUNTS),
                well_known::AUTHENTICATED.to_owned(),
            ],
            ..Self::default()
        }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The node's name if this is a kubelet's identity (`system:node:NAME` in group `system:nodes`).
    pub fn node_name(&self) -> Option<&str> {
        if !self.in_group(well_known::NODES) {
            return None;
        }
        self.username.strip_prefix(well_known::NODE_USER_PREFIX)
    }
}
