//! Which names of a definition are accepted, and the conditions that follow: pure, over all definitions of a group.

use serde_json::{Value, json};

use crate::meta::{self, at, get, items, text};
use crate::time;

/// The status that a definition should have beside the others of its group; `None` if it has it.
pub fn status(definition: &Value, others: &[Value], now: jiff::Timestamp) -> Option<Value> {
    let mut status = get(definition, "status").clone();
    if !status.is_object() {
        status = json!({});
    }
    let verdict = accept(definition, others);
    status["acceptedNames"] = verdict.accepted;
    let (kind, reason, message) = match &verdict.conflict {
        Some((reason, message)) => ("False", *reason, message.as_str()),
        None => ("True", "NoConflicts", "no conflicts found"),
    };
    set(&mut status, "NamesAccepted", kind, reason, message, now);
    let established = condition(&status, "Established") == "True";
    if verdict.conflict.is_none() && !established {
        let message = "the initial names have been accepted";
        set(
            &mut status,
            "Established",
            "True",
            "InitialNamesAccepted",
            message,
            now,
        );
    } else if verdict.conflict.is_some() && !established {
        let message = "not all names are accepted";
        set(
            &mut status,
            "Established",
            "False",
            "NotAccepted",
            message,
            now,
        );
    }
    approval(definition, &mut status, now);
    (status != *get(definition, "status")).then_some(status)
}

pub fn is_established(definition: &Value) -> bool {
    condition(get(definition, "status"), "Established") == "True"
}

/// The state of a condition, empty if it is not there.
pub fn condition<'v>(status: &'v Value, kind: &str) -> &'v str {
    let conditions = items(status, &["conditions"]);
    let found = conditions.iter().find(|one| text(one, &["type"]) == kind);
    found.map_or("", |one| text(one, &["status"]))
}

/// Sets a condition; its time changes with its state.
pub fn set(
    status: &mut Value,
    kind: &str,
    state: &str,
    reason: &str,
    message: &str,
    now: jiff::Timestamp,
) {
    let mut new = json!({"type": kind, "status": state, "lastTransitionTime": time::format(now),
        "reason": reason, "message": message});
    let slot = meta::entry(status, &["conditions"]);
    if !slot.is_array() {
        *slot = json!([]);
    }
    let Some(list) = slot.as_array_mut() else {
        return;
    };
    match list.iter_mut().find(|one| text(one, &["type"]) == kind) {
        Some(old) => {
            if text(old, &["status"]) == state {
                new["lastTransitionTime"] = get(old, "lastTransitionTime").clone();
            }
            *old = new;
        }
        None => list.push(new),
    }
}

struct Verdict {
    accepted: Value,
    conflict: Option<(&'static str, String)>,
}

/// Names that others of the group hold; `kinds` and `resources` are worlds of their own.
fn accept(definition: &Value, others: &[Value]) -> Verdict {
    let mut resources: Vec<&str> = Vec::new();
    let mut kinds: Vec<&str> = Vec::new();
    for other in others {
        let names = at(other, &["status", "acceptedNames"]);
        resources.extend(["plural", "singular"].map(|key| text(names, &[key])));
        resources.extend(
            items(names, &["shortNames"])
                .iter()
                .filter_map(Value::as_str),
        );
        kinds.extend(["kind", "listKind"].map(|key| text(names, &[key])));
    }
    let wanted = at(definition, &["spec", "names"]);
    let before = at(definition, &["status", "acceptedNames"]);
    let mut accepted = json!({"plural": "", "kind": ""});
    let mut conflict = None;
    for (key, reason, used) in [
        ("plural", "PluralConflict", &resources),
        ("singular", "SingularConflict", &resources),
        ("shortNames", "ShortNamesConflict", &resources),
        ("kind", "KindConflict", &kinds),
        ("listKind", "ListKindConflict", &kinds),
    ] {
        let asked = match get(wanted, key) {
            Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
            other => other.as_str().into_iter().collect::<Vec<_>>(),
        };
        let taken: Vec<String> = asked
            .iter()
            .filter(|name| used.contains(name))
            .map(|name| format!("{name:?} is already in use"))
            .collect();
        if taken.is_empty() {
            if !get(wanted, key).is_null() {
                accepted[key] = get(wanted, key).clone();
            }
        } else {
            let message = if taken.len() == 1 {
                taken[0].clone()
            } else {
                format!("[{}]", taken.join(", "))
            };
            conflict = Some((reason, message));
            if !get(before, key).is_null() {
                accepted[key] = get(before, key).clone();
            }
        }
    }
    if items(wanted, &["categories"]).is_empty() {
        meta::remove(&mut accepted, &["categories"]);
    } else {
        accepted["categories"] = get(wanted, "categories").clone();
    }
    Verdict { accepted, conflict }
}

const APPROVED: &str = "api-approved.kubernetes.io";

pub fn is_protected(group: &str) -> bool {
    group == "k8s.io"
        || group.ends_with(".k8s.io")
        || group == "kubernetes.io"
        || group.ends_with(".kubernetes.io")
}

/// Groups of the community say who approved them.
fn approval(definition: &Value, status: &mut Value, now: jiff::Timestamp) {
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    if !is_protected(text(definition, &["spec", "group"])) {
        return;
    }
    let value = text(definition, &["metadata", "annotations", APPROVED]);
    if value.starts_with("unapproved") {
        let message = format!("not approved: {value:?}");
        set(status, KIND, "False", "UnapprovedAnnotation", &message, now);
    } else if value.starts_with("http") {
        let message = format!("approved in {value}");
        set(status, KIND, "True", "ApprovedAnnotation", &message, now);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn definition(plural: &str, kind: &str) -> Value {
        json!({"spec": {"group": "g.example", "names": {"plural": plural, "singular": kind.to_lowercase(),
            "kind": kind, "listKind": format!("{kind}List")}}, "status": {}})
    }

    #[test]
    fn names_are_held_by_the_first() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let mut first = definition("things", "Thing");
        first["status"] = status(&first, &[], now).unwrap();
        assert!(is_established(&first));
        assert!(status(&first, &[], now).is_none());
        let second = definition("others", "Thing");
        let refused = status(&second, &[first], now).unwrap();
        assert_eq!(
            refused["acceptedNames"],
            json!({"plural": "others", "kind": ""})
        );
        assert_eq!(refused["conditions"][0]["reason"], "ListKindConflict");
        assert_eq!(
            refused["conditions"][0]["message"],
            "\"ThingList\" is already in use"
        );
        assert_eq!(condition(&refused, "Established"), "False");
    }
}
