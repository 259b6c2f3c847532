//! What a Namespace's conditions say about its deletion.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, NamespaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Remains;

/// Type, status, reason and message of each condition.
type Row = (&'static str, bool, &'static str, String);

fn rows(remains: &Remains) -> [Row; 5] {
    let discovered = "All resources successfully discovered".to_owned();
    let parsed = "All legacy kube types successfully parsed".to_owned();
    let content = if remains.failures.is_empty() {
        let message = "All content successfully deleted, may be waiting on finalization".to_owned();
        (
            "NamespaceDeletionContentFailure",
            false,
            "ContentDeleted",
            message,
        )
    } else {
        let message = format!(
            "Failed to delete all resource types, {} remaining: {}",
            remains.failures.len(),
            remains.failures.join(", ")
        );
        (
            "NamespaceDeletionContentFailure",
            true,
            "ContentDeletionFailed",
            message,
        )
    };
    [
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            discovered,
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            parsed,
        ),
        content,
        remaining(remains),
        finalizers(remains),
    ]
}

fn remaining(remains: &Remains) -> Row {
    let kind = "NamespaceContentRemaining";
    if remains.counts.is_empty() {
        let message = "All content successfully removed".to_owned();
        return (kind, false, "ContentRemoved", message);
    }
    let counts = remains.counts.iter();
    let texts: Vec<String> = counts
        .map(|(name, count)| format!("{name} has {count} resource instances"))
        .collect();
    let message = format!("Some resources are remaining: {}", texts.join(", "));
    (kind, true, "SomeResourcesRemain", message)
}

fn finalizers(remains: &Remains) -> Row {
    let kind = "NamespaceFinalizersRemaining";
    if remains.finalizers.is_empty() {
        let message = "All content-preserving finalizers finished".to_owned();
        return (kind, false, "ContentHasNoFinalizers", message);
    }
    let counts = remains.finalizers.iter();
    let texts: Vec<String> = counts
        .map(|(name, count)| format!("{name} in {count} resource instances"))
        .collect();
    let message = format!(
        "Some content in the namespace has finalizers remaining: {}",
        texts.join(", ")
    );
    (kind, true, "SomeFinalizersRemain", message)
}

/// The status to write, or `None` if it says all that already.
pub(super) fn updated(
    namespace: &Namespace,
    remains: &Remains,
    now: Timestamp,
) -> Option<NamespaceStatus> {
    let old = namespace.status.clone().unwrap_or_default();
    let mut new = old.clone();
    new.phase = Some("Terminating".to_owned());
    let conditions = new.conditions.get_or_insert_default();
    for (kind, value, reason, message) in rows(remains) {
        let status = if value { "True" } else { "False" };
        let known = conditions
            .iter()
            .position(|condition| condition.type_ == kind);
        let since = known
            .map(|at| &conditions[at])
            .filter(|known| known.status == status)
            .and_then(|known| known.last_transition_time.clone());
        let condition = NamespaceCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        };
        match known {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
    }
    (new != old).then_some(new)
}
