//! Admission of roles and bindings: nobody gives what he has not got.
//!
//! Who has the verb `escalate` on the role, or `bind` on the role that a binding refers to, may.

use std::sync::Arc;

use sampan_api::user::well_known;
use sampan_api::{Status, UserInfo, meta};
use serde_json::Value;

use crate::auth::rbac::{GROUP, Rbac, RoleRef, Rule, escalation};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::request::{Attributes, Authorizer, Decision, ResourceAttributes};

/// The plugin.
pub(super) struct RoleEscalation {
    rbac: Arc<Rbac>,
    authorizer: Arc<dyn Authorizer>,
}

impl RoleEscalation {
    pub(super) fn new(rbac: Arc<Rbac>, authorizer: Arc<dyn Authorizer>) -> Self {
        Self { rbac, authorizer }
    }

    fn check_role(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let unchanged = |key: &str| {
            request
                .old
                .is_some_and(|old| meta::get(old, key) == meta::get(&request.object, key))
        };
        if unchanged("rules") && unchanged("aggregationRule") {
            return Ok(());
        }
        if self.may(request, "escalate", &request.def.plural, request.name) {
            return Ok(());
        }
        let mut wanted = rules_of(&request.object);
        if !meta::get(&request.object, "aggregationRule").is_null() {
            wanted.extend(everything());
        }
        self.check_rules(request, &wanted)
    }

    fn check_binding(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let unchanged = |key: &str| {
            request
                .old
                .is_some_and(|old| meta::get(old, key) == meta::get(&request.object, key))
        };
        if unchanged("roleRef") && unchanged("subjects") {
            return Ok(());
        }
        let role: RoleRef = serde_json::from_value(meta::get(&request.object, "roleRef").clone())
            .unwrap_or_default();
        let (plural, namespace) = match role.kind.as_str() {
            "ClusterRole" => ("clusterroles", ""),
            _ => ("roles", request.namespace),
        };
        if self.may(request, "bind", plural, &role.name) {
            return Ok(());
        }
        let rules = self
            .rbac
            .role_rules(namespace, &role.name)
            .ok_or_else(|| Status::not_found(GROUP, &request.def.plural, &role.name))?;
        self.check_rules(request, &rules)
    }

    fn may(&self, request: &AdmissionRequest<'_>, verb: &str, plural: &str, name: &str) -> bool {
        let decision = self.authorizer.authorize(&Attributes {
            user: request.user,
            verb,
            path: "",
            resource: Some(ResourceAttributes {
                group: GROUP,
                version: "v1",
                resource: plural,
                namespace: request.namespace,
                name,
                ..ResourceAttributes::default()
            }),
        });
        matches!(decision, Decision::Allow(_))
    }

    fn check_rules(&self, request: &AdmissionRequest<'_>, wanted: &[Rule]) -> Result<(), Status> {
        let (owned, errors) = self.rbac.rules_for(request.user, request.namespace);
        let missing = escalation::missing(&owned, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let name = match request.name {
            "" => meta::text(&request.object, &["metadata", "name"]),
            name => name,
        };
        let why = escalation::refusal(request.user, &missing, &errors);
        Err(Status::forbidden(GROUP, &request.def.plural, name, &why))
    }
}

fn rules_of(role: &Value) -> Vec<Rule> {
    serde_json::from_value(meta::get(role, "rules").clone()).unwrap_or_default()
}

/// What somebody must have who makes a role that others fill.
fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule {
            verbs: all(),
            api_groups: all(),
            resources: all(),
            ..Rule::default()
        },
        Rule {
            verbs: all(),
            non_resource_urls: all(),
            ..Rule::default()
        },
    ]
}

fn is_exempt(user: &UserInfo) -> bool {
    user.in_group(well_known::MASTERS)
}

impl Admission for RoleEscalation {
    fn name(&self) -> &'static str {
        "RoleEscalation"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if request.def.group() != GROUP || is_exempt(request.user) {
            return Ok(());
        }
        match &*request.def.kind {
            "Role" | "ClusterRole" => self.check_role(request),
            "RoleBinding" | "ClusterRoleBinding" => self.check_binding(request),
            _ => Ok(()),
        }
    }
}
