//! Role-based access control: rules, and an index of who has which.
//!
//! The index follows roles and bindings as they change (it hears of a change before its writer is
//! answered), so deciding costs a few hash look-ups and no parsing.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sampan_api::UserInfo;
use sampan_api::user::well_known;
use serde::{Deserialize, Serialize};

use super::source::{ObjectChange, ObjectSource};
use crate::request::{Attributes, Authorizer, Decision, ResourceAttributes};

pub mod escalation;

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// One rule of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    #[serde(deserialize_with = "null_is_empty")]
    pub verbs: Vec<String>,
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub api_groups: Vec<String>,
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resources: Vec<String>,
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resource_names: Vec<String>,
    #[serde(
        rename = "nonResourceURLs",
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub non_resource_urls: Vec<String>,
}

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|item| item == "*" || item == value)
}

impl Rule {
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !has(&self.verbs, attributes.verb) {
            return false;
        }
        match &attributes.resource {
            Some(resource) => self.covers(resource),
            None => self.covers_path(attributes.path),
        }
    }

    fn covers(&self, resource: &ResourceAttributes<'_>) -> bool {
        has(&self.api_groups, resource.group)
            && self
                .resources
                .iter()
                .any(|own| covers_resource(own, resource))
            && (self.resource_names.is_empty()
                || self.resource_names.iter().any(|name| name == resource.name))
    }

    fn covers_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|own| {
            own == "*"
                || own == path
                || own
                    .strip_suffix('*')
                    .is_some_and(|prefix| path.starts_with(prefix.trim_end_matches('*')))
        })
    }
}

fn covers_resource(own: &str, wanted: &ResourceAttributes<'_>) -> bool {
    if own == "*" {
        return true;
    }
    match own.split_once('/') {
        None => own == wanted.resource && wanted.subresource.is_empty(),
        Some((resource, subresource)) => {
            subresource == wanted.subresource
                && !subresource.is_empty()
                && (resource == "*" || resource == wanted.resource)
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RoleObject {
    #[serde(deserialize_with = "null_is_empty")]
    rules: Vec<Rule>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BindingObject {
    #[serde(deserialize_with = "null_is_empty")]
    subjects: Vec<Subject>,
    role_ref: RoleRef,
}

/// `(namespace, name)`; the namespace is empty for cluster-wide ones.
type Key = (String, String);

#[derive(Debug)]
struct Binding {
    key: Key,
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// Who a binding may name: a user or a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Principal {
    User(String),
    Group(String),
}

impl Principal {
    fn of(subject: &Subject, binding_namespace: &str) -> Option<Self> {
        match subject.kind.as_str() {
            "User" => Some(Self::User(subject.name.clone())),
            "Group" => Some(Self::Group(subject.name.clone())),
            "ServiceAccount" => {
                let namespace = if subject.namespace.is_empty() {
                    binding_namespace
                } else {
                    &subject.namespace
                };
                (!namespace.is_empty()).then(|| {
                    Self::User(format!(
                        "{}{namespace}:{}",
                        well_known::SERVICE_ACCOUNT_USER_PREFIX,
                        subject.name
                    ))
                })
            }
            _ => None,
        }
    }
}

#[derive(Default)]
struct Index {
    /// Rules of roles and cluster roles.
    roles: HashMap<Key, Arc<[Rule]>>,
    bindings: HashMap<Key, Arc<Binding>>,
    by_principal: HashMap<Principal, Vec<Arc<Binding>>>,
}

impl Index {
    fn set_role(&mut self, key: Key, rules: Option<Vec<Rule>>) {
        match rules {
            Some(rules) => self.roles.insert(key, rules.into()),
            None => self.roles.remove(&key),
        };
    }

    fn set_binding(&mut self, key: Key, binding: Option<Binding>) {
        if let Some(old) = self.bindings.remove(&key) {
            for subject in &old.subjects {
                if let Some(principal) = Principal::of(subject, &old.key.0)
                    && let Some(list) = self.by_principal.get_mut(&principal)
                {
                    list.retain(|other| other.key != old.key);
                    if list.is_empty() {
                        self.by_principal.remove(&principal);
                    }
                }
            }
        }
        let Some(binding) = binding.map(Arc::new) else {
            return;
        };
        for subject in &binding.subjects {
            if let Some(principal) = Principal::of(subject, &binding.key.0) {
                let list = self.by_principal.entry(principal).or_default();
                if !list.iter().any(|other| Arc::ptr_eq(other, &binding)) {
                    list.push(Arc::clone(&binding));
                }
            }
        }
        self.bindings.insert(key, binding);
    }

    /// Bindings that apply to the user in this namespace, cluster-wide ones first.
    fn bindings_of<'a>(
        &'a self,
        user: &'a UserInfo,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Binding>> {
        let principals = std::iter::once(Principal::User(user.username.clone()))
            .chain(user.groups.iter().cloned().map(Principal::Group))
            .collect::<Vec<_>>();
        let lists: Vec<&[Arc<Binding>]> = principals
            .iter()
            .filter_map(|principal| self.by_principal.get(principal))
            .map(Vec::as_slice)
            .collect();
        let of = move |cluster: bool| {
            lists.clone().into_iter().flatten().filter(move |binding| {
                match binding.key.0.as_str() {
                    "" => cluster,
                    own => !cluster && own == namespace,
                }
            })
        };
        of(true).chain(of(false))
    }

    fn rules_of(&self, binding: &Binding) -> Result<&Arc<[Rule]>, String> {
        let key = match binding.role.kind.as_str() {
            "ClusterRole" => (String::new(), binding.role.name.clone()),
            _ => (binding.key.0.clone(), binding.role.name.clone()),
        };
        self.roles.get(&key).ok_or_else(|| {
            format!(
                "{}.{GROUP} {:?} not found",
                binding.role.kind.to_lowercase(),
                binding.role.name
            )
        })
    }
}

/// Answers from roles and bindings.
#[derive(Default)]
pub struct Rbac {
    index: RwLock<Index>,
}

/// What cannot be read grants nothing, which somebody will wonder about.
fn read_object<T: serde::de::DeserializeOwned>(
    what: &str,
    change: &ObjectChange,
    object: &[u8],
) -> Option<T> {
    serde_json::from_slice(object)
        .inspect_err(|error| {
            tracing::error!(namespace = change.namespace, name = change.name, %error,
                "a {what} cannot be read; it grants nothing");
        })
        .ok()
}

impl Rbac {
    /// Follows all roles and bindings of `source`.
    pub fn follow(source: &dyn ObjectSource) -> Arc<Self> {
        let rbac = Arc::new(Self::default());
        type Apply = fn(&Rbac, &ObjectChange);
        let resources: [(&str, Apply); 4] = [
            ("roles", Self::role_changed),
            ("clusterroles", Self::role_changed),
            ("rolebindings", Self::binding_changed),
            ("clusterrolebindings", Self::binding_changed),
        ];
        for (resource, apply) in resources {
            let rbac = Arc::clone(&rbac);
            source.subscribe(
                GROUP,
                resource,
                Arc::new(move |change| apply(&rbac, change)),
            );
        }
        rbac
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn role_changed(&self, change: &ObjectChange) {
        let rules = change.new.as_deref().map(|object| {
            let role: Option<RoleObject> = read_object("role", change, object);
            role.map(|role| role.rules).unwrap_or_default()
        });
        let key = (change.namespace.clone(), change.name.clone());
        self.write().set_role(key, rules);
    }

    fn binding_changed(&self, change: &ObjectChange) {
        let key = (change.namespace.clone(), change.name.clone());
        let binding = change.new.as_deref().and_then(|object| {
            let object: BindingObject = read_object("role binding", change, object)?;
            Some(Binding {
                key: key.clone(),
                role: object.role_ref,
                subjects: object.subjects,
            })
        });
        self.write().set_binding(key, binding);
    }

    /// All rules of the user in a namespace (empty: cluster-wide only), and what could not be read.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let index = self.read();
        let mut rules = Vec::new();
        let mut errors = Vec::new();
        for binding in index.bindings_of(user, namespace) {
            match index.rules_of(binding) {
                Ok(found) => rules.extend(found.iter().cloned()),
                Err(error) => errors.push(error),
            }
        }
        (rules, errors)
    }

    /// The rules of a role; `namespace` is empty for a cluster role.
    pub fn role_rules(&self, namespace: &str, name: &str) -> Option<Arc<[Rule]>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.read().roles.get(&key).cloned()
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let namespace = attributes
            .resource
            .map(|resource| resource.namespace)
            .unwrap_or_default();
        let index = self.read();
        let mut errors: Vec<String> = Vec::new();
        for binding in index.bindings_of(attributes.user, namespace) {
            match index.rules_of(binding) {
                Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                    return Decision::Allow(describe(binding, attributes.user));
                }
                Ok(_) => {}
                Err(error) if !errors.contains(&error) => errors.push(error),
                Err(_) => {}
            }
        }
        Decision::NoOpinion(match errors.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        })
    }
}

fn describe(binding: &Binding, user: &UserInfo) -> String {
    let (namespace, name) = &binding.key;
    let mut text = "RBAC: allowed by ".to_owned();
    let written = if namespace.is_empty() {
        write!(text, "ClusterRoleBinding {name:?}")
    } else {
        let full = format!("{name}/{namespace}");
        write!(text, "RoleBinding {full:?}")
    };
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
    text.push_str(&format!(
        " of {} {:?} to ",
        binding.role.kind, binding.role.name
    ));
    let subject = binding
        .subjects
        .iter()
        .find(|subject| match Principal::of(subject, namespace) {
            Some(Principal::User(name)) => name == user.username,
            Some(Principal::Group(group)) => user.in_group(&group),
            None => false,
        });
    if let Some(subject) = subject {
        match subject.kind.as_str() {
            "ServiceAccount" => {
                let full = format!("{}/{}", subject.name, subject.namespace);
                text.push_str(&format!("ServiceAccount {full:?}"));
            }
            kind => text.push_str(&format!("{kind} {:?}", subject.name)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn change(namespace: &str, name: &str, new: Option<serde_json::Value>) -> ObjectChange {
        ObjectChange {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            old: None,
            new: new.map(|object| Bytes::from(object.to_string())),
        }
    }

    fn ask(rbac: &Rbac, user: &UserInfo, verb: &str, resource: &str, namespace: &str) -> Decision {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        rbac.authorize(&Attributes {
            user,
            verb,
            resource: Some(ResourceAttributes {
                resource,
                subresource,
                namespace,
                name: "x",
                ..ResourceAttributes::default()
            }),
            path: "",
        })
    }

    #[test]
    fn bindings_come_and_go() {
        let rbac = Rbac::default();
        let alice = UserInfo::authenticated("alice", &["dev"]);
        rbac.role_changed(&change(
            "a",
            "r",
            Some(json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "*/scale"]}]})),
        ));
        let binding = json!({
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "Group", "name": "dev"}],
        });
        rbac.binding_changed(&change("a", "b", Some(binding)));
        assert_eq!(
            ask(&rbac, &alice, "get", "pods", "a"),
            Decision::Allow(
                "RBAC: allowed by RoleBinding \"b/a\" of Role \"r\" to Group \"dev\"".to_owned()
            )
        );
        let refused = Decision::NoOpinion(String::new());
        assert_eq!(ask(&rbac, &alice, "get", "pods", "b"), refused);
        assert_eq!(ask(&rbac, &alice, "get", "pods", ""), refused);
        assert_eq!(ask(&rbac, &alice, "list", "pods", "a"), refused);
        assert_eq!(ask(&rbac, &alice, "get", "pods/log", "a"), refused);
        assert!(matches!(
            ask(&rbac, &alice, "get", "things/scale", "a"),
            Decision::Allow(_)
        ));
        rbac.role_changed(&change("a", "r", None));
        assert_eq!(
            ask(&rbac, &alice, "get", "pods", "a"),
            Decision::NoOpinion("RBAC: role.rbac.authorization.k8s.io \"r\" not found".to_owned())
        );
        rbac.binding_changed(&change("a", "b", None));
        assert_eq!(ask(&rbac, &alice, "get", "pods", "a"), refused);
        assert!(rbac.read().by_principal.is_empty());
    }

    #[test]
    fn paths() {
        let rule = Rule {
            verbs: vec!["get".to_owned()],
            non_resource_urls: vec!["/apis/*".to_owned(), "/version".to_owned()],
            ..Rule::default()
        };
        for (path, expected) in [
            ("/apis/apps", true),
            ("/apis", false),
            ("/version", true),
            ("/version/", false),
        ] {
            assert_eq!(rule.covers_path(path), expected, "{path}");
        }
    }
}
