//! TaintNodesByCondition: a new node takes no pods before it says that it is ready.

use sampan_api::Status;
use sampan_api::meta::{self, items, text};
use serde_json::{Value, json};

use super::is;
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub(super) struct TaintNodesByCondition;

impl Admission for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "", "nodes") {
            return Ok(());
        }
        let tainted = items(&request.object, &["spec", "taints"])
            .iter()
            .any(|taint| {
                text(taint, &["key"]) == NOT_READY && text(taint, &["effect"]) == "NoSchedule"
            });
        if !tainted {
            let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
            match meta::entry(&mut request.object, &["spec", "taints"]) {
                Value::Array(list) => list.push(taint),
                slot => *slot = json!([taint]),
            }
        }
        Ok(())
    }
}
