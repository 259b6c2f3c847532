//! Nobody may give what he has not got: the check behind writes of roles and bindings.

use sampan_api::UserInfo;

use super::Rule;

/// The parts of `wanted` that `owned` does not cover, one verb and one resource each.
pub fn missing(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut missing: Vec<Rule> = Vec::new();
    for rule in wanted {
        for piece in break_down(rule) {
            if !owned.iter().any(|own| covers(own, &piece)) && !missing.contains(&piece) {
                missing.push(piece);
            }
        }
    }
    compact(missing)
}

/// One verb and one group, resource and name (or path) a rule.
fn break_down(rule: &Rule) -> Vec<Rule> {
    let mut pieces = Vec::new();
    for verb in &rule.verbs {
        for path in &rule.non_resource_urls {
            pieces.push(Rule {
                verbs: vec![verb.clone()],
                non_resource_urls: vec![path.clone()],
                ..Rule::default()
            });
        }
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let piece = Rule {
                    verbs: vec![verb.clone()],
                    api_groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    ..Rule::default()
                };
                if rule.resource_names.is_empty() {
                    pieces.push(piece.clone());
                }
                for name in &rule.resource_names {
                    pieces.push(Rule {
                        resource_names: vec![name.clone()],
                        ..piece.clone()
                    });
                }
            }
        }
    }
    pieces
}

fn covers(own: &Rule, piece: &Rule) -> bool {
    let every = |own: &[String], wanted: &[String]| {
        own.iter().any(|item| item == "*") || wanted.iter().all(|item| own.contains(item))
    };
    if !every(&own.verbs, &piece.verbs) {
        return false;
    }
    if !piece.non_resource_urls.is_empty() {
        return piece.non_resource_urls.iter().all(|path| {
            own.non_resource_urls.iter().any(|own| {
                own == path
                    || own
                        .strip_suffix('*')
                        .is_some_and(|prefix| path.starts_with(prefix))
            })
        });
    }
    every(&own.api_groups, &piece.api_groups)
        && piece.resources.iter().all(|resource| {
            own.resources
                .iter()
                .any(|own| covers_resource(own, resource))
        })
        && (own.resource_names.is_empty()
            || (!piece.resource_names.is_empty()
                && piece
                    .resource_names
                    .iter()
                    .all(|name| own.resource_names.contains(name))))
}

fn covers_resource(own: &str, wanted: &str) -> bool {
    own == "*"
        || own == wanted
        || own.strip_prefix("*/").is_some_and(|subresource| {
            wanted
                .split_once('/')
                .is_some_and(|(_, wanted)| wanted == subresource)
        })
}

/// Joins rules that differ in their verbs only.
fn compact(rules: Vec<Rule>) -> Vec<Rule> {
    let mut out: Vec<Rule> = Vec::new();
    for rule in rules {
        let same = out.iter_mut().find(|other| {
            other.api_groups == rule.api_groups
                && other.resources == rule.resources
                && other.resource_names == rule.resource_names
                && other.non_resource_urls == rule.non_resource_urls
        });
        match same {
            Some(other) => other.verbs.extend(rule.verbs),
            None => out.push(rule),
        }
    }
    out
}

/// The text of the refusal.
pub fn refusal(user: &UserInfo, missing: &[Rule], resolution_errors: &[String]) -> String {
    let mut lines: Vec<String> = missing.iter().map(short).collect();
    lines.sort();
    let mut text = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.username,
        quoted_list(&user.groups),
        lines.join("\n")
    );
    if !resolution_errors.is_empty() {
        let all = match resolution_errors {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        text.push_str(&format!("; resolution errors: {all}"));
    }
    text
}

fn short(rule: &Rule) -> String {
    let mut parts = Vec::new();
    for (name, list) in [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ] {
        if !list.is_empty() {
            parts.push(format!("{name}:{}", quoted_list(list)));
        }
    }
    format!("{{{}}}", parts.join(", "))
}

/// A list as Go's `%q` prints it.
fn quoted_list(items: &[String]) -> String {
    let quoted: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let list = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect();
        Rule {
            verbs: list(verbs),
            api_groups: list(groups),
            resources: list(resources),
            resource_names: list(names),
            ..Rule::default()
        }
    }

    #[test]
    fn what_is_missing() {
        let owned = [
            rule(&["get", "list"], &[""], &["pods"], &[]),
            rule(&["*"], &["apps"], &["*"], &[]),
            rule(&["get"], &[""], &["secrets"], &["mine"]),
        ];
        let covered = [
            rule(&["list"], &[""], &["pods"], &[]),
            rule(&["get"], &[""], &["pods"], &["one"]),
            rule(&["delete"], &["apps"], &["deployments/scale"], &[]),
            rule(&["get"], &[""], &["secrets"], &["mine"]),
        ];
        assert_eq!(missing(&owned, &covered), []);
        let uncovered = [rule(&["get", "watch"], &[""], &["pods", "secrets"], &[])];
        let found = missing(&owned, &uncovered);
        assert_eq!(
            found.iter().map(short).collect::<Vec<_>>(),
            [
                "{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"watch\"]}",
                "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"watch\"]}",
            ]
        );
    }
}
