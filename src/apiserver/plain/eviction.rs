//! Eviction: a delete that a disruption budget may refuse.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sampan_api::meta::{self, at, integer, items, text};
use sampan_api::resource::Target;
use sampan_api::status::{Cause, Details};
use sampan_api::{Reason, ResourceDef, Selector, Status, Verb, time};
use sampan_client::{Body, Request};
use serde_json::{Value, json};

use super::Plain;
use crate::registry::hooks::Subresource;
use crate::registry::server::ApiServer;
use crate::request::{ApiRequest, Pipeline, Reply};

const GROUP: &str = "policy";
const BUDGETS: &str = "poddisruptionbudgets";

pub(super) struct Eviction;

impl Subresource for Eviction {
    fn serves(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        vec![("", "pods", "eviction")]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        Box::pin(
            async move { evict(Plain::new(server, def, request)?.only(&[Verb::Create])?).await },
        )
    }
}

async fn evict(mut plain: Plain) -> Result<Reply, Status> {
    let mut eviction = plain.body(GROUP, "v1", "Eviction")?;
    if text(&eviction, &["metadata", "name"]) != plain.call.name() {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    plain.admit(&mut eviction, None).await?;
    let mut options = match meta::get(&eviction, "deleteOptions") {
        Value::Null => json!({}),
        options => options.clone(),
    };
    options["kind"] = json!("DeleteOptions");
    options["apiVersion"] = json!("v1");
    if plain.call.options.is_dry_run() {
        options["dryRun"] = json!(["All"]);
    }
    let dry_run = !items(&options, &["dryRun"]).is_empty();
    let pod = plain.current()?;
    if !ignores_budgets(&pod) {
        check_budgets(&plain, &pod, dry_run).await?;
    }
    delete(&plain, &options, dry_run).await?;
    Ok(plain.success())
}

/// Pods that are not running disturb nobody.
fn ignores_budgets(pod: &Value) -> bool {
    matches!(
        text(pod, &["status", "phase"]),
        "Succeeded" | "Failed" | "Pending"
    ) || !at(pod, &["metadata", "deletionTimestamp"]).is_null()
}

fn is_ready(pod: &Value) -> bool {
    items(pod, &["status", "conditions"])
        .iter()
        .any(|one| text(one, &["type"]) == "Ready" && text(one, &["status"]) == "True")
}

async fn check_budgets(plain: &Plain, pod: &Value, dry_run: bool) -> Result<(), Status> {
    let server = &plain.call.server;
    let (def, _) = super::row(server, GROUP, BUDGETS)?;
    let prefix = def.key(Some(plain.call.namespace()), "");
    let snapshot = server
        .core()
        .cache
        .snapshot(&server.core().cache.bucket(&def));
    let budgets: Vec<Value> = snapshot
        .map
        .under(&prefix)
        .filter_map(|object| serde_json::from_slice(&object.bytes).ok())
        .filter(|budget| covers(budget, pod))
        .collect();
    let budget = match budgets.as_slice() {
        [] => return Ok(()),
        [one] => one,
        _ => {
            return Err(Status::new(
                Reason::Unknown,
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
    };
    let count = |field: &str| integer(budget, &["status", field]).unwrap_or(0);
    if !is_ready(pod) {
        if text(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow" {
            return Ok(());
        }
        let desired = count("desiredHealthy");
        if count("currentHealthy") >= desired && desired > 0 {
            return Ok(());
        }
    }
    take(plain, budget, dry_run).await
}

fn covers(budget: &Value, pod: &Value) -> bool {
    let Ok(selector) = Selector::from_object(at(budget, &["spec", "selector"])) else {
        return false;
    };
    selector.matches(&at(pod, &["metadata", "labels"]).as_object())
}

fn too_many(message: String, retry: i32) -> Status {
    Status::new(
        Reason::TooManyRequests,
        "Cannot evict pod as it would violate the pod's disruption budget.",
    )
    .with_details(Details {
        causes: vec![Cause {
            reason: "DisruptionBudget".to_owned(),
            message,
            ..Cause::default()
        }],
        retry_after_seconds: retry,
        ..Details::default()
    })
}

/// Uses one of the disruptions that the budget allows.
async fn take(plain: &Plain, budget: &Value, dry_run: bool) -> Result<(), Status> {
    let name = text(budget, &["metadata", "name"]);
    let pod = plain.call.name().to_owned();
    let now = time::format(plain.call.now);
    let (def, version) = super::row(&plain.call.server, GROUP, BUDGETS)?;
    let mut options = plain.call.options.clone();
    if dry_run {
        options.dry_run = vec!["All".to_owned()];
    }
    let request = ApiRequest {
        user: plain.call.user.clone(),
        user_agent: plain.call.user_agent.clone(),
        strict_errors: Vec::new(),
        request: Request {
            verb: Verb::Update,
            target: Target {
                resource: def.gvr(&version),
                namespace: Some(plain.call.namespace().to_owned()),
                name: Some(name.to_owned()),
                subresource: None,
            },
            options,
            body: Body::None,
        },
    };
    let inner = Plain::new(plain.call.server.clone(), def, request)?;
    inner
        .change(&|budget: &mut Value| check_and_decrement(budget, &pod, &now))
        .await
        .map(drop)
}

fn check_and_decrement(budget: &mut Value, pod: &str, now: &str) -> Result<(), Status> {
    let name = text(budget, &["metadata", "name"]).to_owned();
    let count = |field: &str| integer(budget, &["status", field]).unwrap_or(0);
    let generation = integer(budget, &["metadata", "generation"]).unwrap_or(0);
    if count("observedGeneration") < generation {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(too_many(why, 10));
    }
    let allowed = count("disruptionsAllowed");
    if allowed < 0 {
        return Err(Status::forbidden(
            GROUP,
            BUDGETS,
            &name,
            "pdb disruptions allowed is negative",
        ));
    }
    if allowed == 0 {
        let (desired, current) = (count("desiredHealthy"), count("currentHealthy"));
        return Err(too_many(
            format!(
                "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
            ),
            0,
        ));
    }
    meta::set(budget, &["status", "disruptionsAllowed"], allowed - 1);
    meta::set(budget, &["status", "disruptedPods", pod], now);
    Ok(())
}

/// Marks the pod and deletes it the usual way.
async fn delete(plain: &Plain, options: &Value, dry_run: bool) -> Result<(), Status> {
    if !dry_run {
        let now = time::format(plain.call.now);
        plain
            .change(&|pod: &mut Value| {
                mark(pod, &now);
                Ok(())
            })
            .await?;
    }
    let mut options = options.clone();
    // The mark changed the version that the client may have named.
    meta::remove(&mut options, &["preconditions", "resourceVersion"]);
    let mut target = plain.call.target.clone();
    target.subresource = None;
    let request = ApiRequest {
        user: Arc::new(sampan_api::UserInfo::authenticated(
            "system:apiserver",
            &["system:masters"],
        )),
        user_agent: plain.call.user_agent.clone(),
        strict_errors: Vec::new(),
        request: Request {
            verb: Verb::Delete,
            target,
            options: sampan_api::Options::default(),
            body: Body::Object(options),
        },
    };
    plain.call.server.handle(request).await.map(drop)
}

fn mark(pod: &mut Value, now: &str) {
    let condition = json!({"type": "DisruptionTarget", "status": "True",
        "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
        "lastProbeTime": null, "lastTransitionTime": now});
    match meta::entry(pod, &["status", "conditions"]) {
        Value::Array(list) => {
            list.retain(|one| text(one, &["type"]) != "DisruptionTarget");
            list.push(condition);
        }
        slot => *slot = json!([condition]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_count_down() {
        let mut budget = json!({"metadata": {"name": "b", "generation": 1},
            "status": {"observedGeneration": 1, "disruptionsAllowed": 1, "desiredHealthy": 1, "currentHealthy": 1}});
        assert!(check_and_decrement(&mut budget, "p", "now").is_ok());
        assert_eq!(budget["status"]["disruptedPods"]["p"], "now");
        let refused = check_and_decrement(&mut budget, "q", "now");
        assert!(refused.is_err_and(|status| status.code == 429));
    }
}
