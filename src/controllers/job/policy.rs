//! What a Job's policies say about failed pods and succeeded indexes.

use k8s_openapi::api::batch::v1::{
    PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule, SuccessPolicy,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use sampan_client::ObjectKey;

use super::indexes::Indexes;

/// What the first rule that fits a failed pod asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    Count,
    Ignore,
    FailIndex,
    /// With the message that tells why.
    FailJob(String),
}

pub(crate) fn react(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Reaction {
    let rules = policy.iter().flat_map(|policy| &policy.rules).enumerate();
    for (number, rule) in rules {
        if let Some(cause) = cause(rule, pod) {
            return match rule.action.as_str() {
                "Ignore" => Reaction::Ignore,
                "FailIndex" => Reaction::FailIndex,
                "FailJob" => {
                    let action = &rule.action;
                    let text = format!("{cause} matching {action} rule at index {number}");
                    Reaction::FailJob(text)
                }
                _ => Reaction::Count,
            };
        }
    }
    Reaction::Count
}

/// In words what makes the rule fit, if it does.
fn cause(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let key = ObjectKey::of(&pod.metadata);
    let status = pod.status.as_ref()?;
    if let Some(requirement) = &rule.on_exit_codes {
        let init = status.init_container_statuses.iter().flatten();
        let mut containers = status.container_statuses.iter().flatten().chain(init);
        let (name, code) = containers.find_map(|one| exit_code(one, requirement))?;
        return Some(format!(
            "Container {name} for pod {key} failed with exit code {code}"
        ));
    }
    let patterns = rule.on_pod_conditions.as_ref()?;
    let condition = status.conditions.iter().flatten().find(|condition| {
        patterns.iter().any(|pattern| {
            let wanted = pattern.status.as_deref().unwrap_or("True");
            pattern.type_ == condition.type_ && wanted == condition.status
        })
    })?;
    Some(format!("Pod {key} has condition {}", condition.type_))
}

fn exit_code<'a>(
    container: &'a ContainerStatus,
    requirement: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
    let named = requirement.container_name.as_ref();
    if code == 0 || named.is_some_and(|name| *name != container.name) {
        return None;
    }
    let listed = requirement.values.contains(&code);
    let fits = match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    fits.then_some((&container.name, code))
}

/// The rule by which the succeeded indexes are enough.
pub(crate) fn is_success(
    policy: Option<&SuccessPolicy>,
    succeeded: &Indexes,
    completions: i32,
) -> Option<String> {
    if succeeded.count() == 0 {
        return None;
    }
    let mut rules = policy?.rules.iter();
    let number = rules.position(|rule| match &rule.succeeded_indexes {
        Some(text) => {
            let wanted = Indexes::parse(text, completions);
            let common = succeeded.common(&wanted);
            let enough = rule.succeeded_count.is_some_and(|count| common >= count);
            wanted.count() > 0 && (common == wanted.count() || enough)
        }
        None => rule
            .succeeded_count
            .is_some_and(|count| succeeded.count() >= count),
    })?;
    Some(format!("Matched rules at index {number}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::object;

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy: PodFailurePolicy = object(json!({"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        ]}));
        let pod = |status: serde_json::Value| -> Pod {
            object(json!({"metadata": {"namespace": "ns", "name": "p"}, "status": status}))
        };
        let exit = |code: i32| {
            json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code}}}])
        };
        let failed = pod(json!({"containerStatuses": exit(42)}));
        let message =
            "Container c for pod ns/p failed with exit code 42 matching FailJob rule at index 1";
        assert_eq!(
            react(Some(&policy), &failed),
            Reaction::FailJob(message.to_owned())
        );
        assert_eq!(
            react(Some(&policy), &pod(json!({"containerStatuses": exit(1)}))),
            Reaction::Count
        );
        let disrupted = pod(json!({
            "containerStatuses": exit(42),
            "conditions": [{"type": "DisruptionTarget", "status": "True"}],
        }));
        assert_eq!(react(Some(&policy), &disrupted), Reaction::Ignore);
        assert_eq!(react(None, &failed), Reaction::Count);
    }

    #[test]
    fn success_may_need_only_some_indexes() {
        let policy: SuccessPolicy = object(json!({"rules": [
            {"succeededIndexes": "0-4", "succeededCount": 2},
            {"succeededIndexes": "7"},
        ]}));
        let met = |indexes: &[i32]| {
            let succeeded = indexes.iter().copied().collect();
            is_success(Some(&policy), &succeeded, 10)
        };
        assert_eq!(met(&[0, 8]), None);
        assert_eq!(met(&[0, 3]).as_deref(), Some("Matched rules at index 0"));
        assert_eq!(met(&[7]).as_deref(), Some("Matched rules at index 1"));
    }
}
