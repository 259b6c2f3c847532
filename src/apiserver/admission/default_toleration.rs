//! DefaultTolerationSeconds: pods stay five minutes on a node that is gone.

use sampan_api::Status;
use sampan_api::meta::{self, items, text};
use serde_json::{Value, json};

use super::{is, writes};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};

const SECONDS: i64 = 300;
const TAINTS: &[&str] = &[
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

pub(super) struct DefaultTolerationSeconds;

impl Admission for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, operation: Operation) -> bool {
        writes(operation)
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if is(request, "", "pods") {
            for key in TAINTS {
                tolerate(&mut request.object, key);
            }
        }
        Ok(())
    }
}

fn tolerate(pod: &mut Value, key: &str) {
    let tolerated = items(pod, &["spec", "tolerations"]).iter().any(|one| {
        let own = text(one, &["key"]);
        let effect = text(one, &["effect"]);
        (own == key || own.is_empty()) && (effect == "NoExecute" || effect.is_empty())
    });
    if tolerated {
        return;
    }
    let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute",
        "tolerationSeconds": SECONDS});
    match meta::entry(pod, &["spec", "tolerations"]) {
        Value::Array(list) => list.push(toleration),
        slot => *slot = json!([toleration]),
    }
}
