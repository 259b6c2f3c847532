//! Reading the table of default roles and bindings.

use crate::auth::rbac::{GROUP, Rule, Subject};

const TABLE: &str = include_str!("policy.txt");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    ClusterRole,
    Role,
    ClusterRoleBinding,
    RoleBinding,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterRole => "ClusterRole",
            Self::Role => "Role",
            Self::ClusterRoleBinding => "ClusterRoleBinding",
            Self::RoleBinding => "RoleBinding",
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Self::ClusterRole => "clusterroles",
            Self::Role => "roles",
            Self::ClusterRoleBinding => "clusterrolebindings",
            Self::RoleBinding => "rolebindings",
        }
    }

    pub fn is_role(self) -> bool {
        matches!(self, Self::ClusterRole | Self::Role)
    }
}

/// A default role or binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    /// Roles: their rules; aggregated ones have those of the roles they gather.
    pub rules: Vec<Rule>,
    /// Roles: into which aggregated roles it goes.
    pub joins: Vec<String>,
    /// Roles: it is an aggregated role.
    pub gathers: Option<String>,
    /// Bindings: the role's name, and who gets it.
    pub role: String,
    pub subjects: Vec<Subject>,
}

/// All of them, roles first.
pub fn policies() -> Vec<Policy> {
    let mut all: Vec<Policy> = Vec::new();
    for line in TABLE.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(rule) = line.strip_prefix("  ") {
            if let Some(policy) = all.last_mut() {
                policy.rules.push(parse_rule(rule));
            }
            continue;
        }
        all.extend(parse_head(line));
    }
    aggregate(&mut all);
    all
}

fn parse_head(line: &str) -> Option<Policy> {
    let mut words = line.split(' ');
    let kind = match words.next()? {
        "clusterrole" => Kind::ClusterRole,
        "role" => Kind::Role,
        "clusterrolebinding" => Kind::ClusterRoleBinding,
        "rolebinding" => Kind::RoleBinding,
        _ => return None,
    };
    let namespace = match kind {
        Kind::Role | Kind::RoleBinding => words.next()?.to_owned(),
        _ => String::new(),
    };
    let name = words.next()?.to_owned();
    let mut policy = Policy {
        kind,
        namespace,
        name,
        rules: Vec::new(),
        joins: Vec::new(),
        gathers: None,
        role: String::new(),
        subjects: Vec::new(),
    };
    if !kind.is_role() {
        policy.role = words.next()?.to_owned();
    }
    for word in words {
        if let Some(target) = word.strip_prefix("joins=") {
            policy.joins.push(target.to_owned());
        } else if let Some(target) = word.strip_prefix("gathers=") {
            policy.gathers = Some(target.to_owned());
        } else {
            policy.subjects.extend(parse_subject(word));
        }
    }
    Some(policy)
}

fn parse_subject(word: &str) -> Option<Subject> {
    let (kind, name) = word.split_once(':')?;
    let named = |kind: &str| Subject {
        kind: kind.to_owned(),
        api_group: GROUP.to_owned(),
        name: name.to_owned(),
        namespace: String::new(),
    };
    match kind {
        "user" => Some(named("User")),
        "group" => Some(named("Group")),
        "account" => {
            let (namespace, name) = name.split_once('/')?;
            Some(Subject {
                kind: "ServiceAccount".to_owned(),
                api_group: String::new(),
                name: name.to_owned(),
                namespace: namespace.to_owned(),
            })
        }
        _ => None,
    }
}

fn parse_rule(line: &str) -> Rule {
    let words: Vec<&str> = line.split(' ').collect();
    let list = |index: usize| -> Vec<String> {
        words
            .get(index)
            .into_iter()
            .flat_map(|word| word.split(','))
            .map(|item| if item == "-" { "" } else { item }.to_owned())
            .collect()
    };
    if words.get(1) == Some(&"url") {
        return Rule {
            verbs: list(0),
            non_resource_urls: list(2),
            ..Rule::default()
        };
    }
    Rule {
        verbs: list(0),
        api_groups: list(1),
        resources: list(2),
        resource_names: list(3),
        non_resource_urls: Vec::new(),
    }
}

/// Fills aggregated roles as the aggregation controller would, so that they work without it.
fn aggregate(all: &mut [Policy]) {
    // `admin` gathers `edit`, which gathers `view`: as many passes as there are levels.
    for _ in 0..3 {
        for index in 0..all.len() {
            let Some(target) = all[index].gathers.clone() else {
                continue;
            };
            let mut rules: Vec<Rule> = Vec::new();
            for policy in all.iter().filter(|policy| policy.joins.contains(&target)) {
                for rule in &policy.rules {
                    if !rules.contains(rule) {
                        rules.push(rule.clone());
                    }
                }
            }
            all[index].rules = rules;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn table_is_sound() {
        let all = policies();
        let mut names = BTreeSet::new();
        for policy in &all {
            assert!(
                names.insert((policy.kind.as_str(), &policy.namespace, &policy.name)),
                "{} twice",
                policy.name
            );
            if policy.kind.is_role() {
                for rule in &policy.rules {
                    assert!(!rule.verbs.is_empty(), "{}", policy.name);
                }
                continue;
            }
            let wanted = match policy.kind {
                Kind::RoleBinding => (Kind::Role, &policy.namespace),
                _ => (Kind::ClusterRole, &String::new()),
            };
            assert!(
                all.iter().any(|role| role.kind == wanted.0
                    && role.namespace == *wanted.1
                    && role.name == policy.role),
                "{} refers to a role that is not there",
                policy.name
            );
        }
        assert!(all.len() > 100);
    }

    #[test]
    fn aggregated_roles_are_filled() {
        let all = policies();
        let rules = |name: &str| {
            &all.iter()
                .find(|policy| policy.name == name && policy.kind == Kind::ClusterRole)
                .unwrap()
                .rules
        };
        let view = rules("view");
        assert!(!view.is_empty());
        assert!(view.iter().all(|rule| rules("edit").contains(rule)));
        assert!(view.iter().all(|rule| rules("admin").contains(rule)));
        assert!(rules("admin").len() > rules("edit").len());
    }
}
