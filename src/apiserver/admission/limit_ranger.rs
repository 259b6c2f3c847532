//! LimitRanger: containers get a namespace's defaults and must keep its bounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use sampan_api::Status;
use sampan_api::meta::{self, entries, get, items, items_mut, text};
use sampan_api::quantity::Quantity;
use serde_json::{Value, json};

use super::{all_in, forbidden};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

pub(super) struct LimitRanger(pub(super) Arc<Core>);

type Amounts = BTreeMap<String, Quantity>;

fn concerns(request: &AdmissionRequest<'_>) -> bool {
    let core = request.def.group().is_empty();
    match (&*request.def.plural, request.subresource) {
        ("pods", "") => core && request.operation == Operation::Create,
        ("pods", "resize") => core && request.operation == Operation::Update,
        ("persistentvolumeclaims", "") => core,
        _ => false,
    }
}

impl Admission for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, operation: Operation) -> bool {
        super::writes(operation)
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if concerns(request) && request.def.plural == "pods" {
            for range in all_in(&self.0, "", "limitranges", request.namespace) {
                fill_in(&mut request.object, &range);
            }
        }
        Ok(())
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let deleting = !meta::at(&request.object, &["metadata", "deletionTimestamp"]).is_null();
        if !concerns(request) || deleting {
            return Ok(());
        }
        for range in all_in(&self.0, "", "limitranges", request.namespace) {
            let faults = if request.def.plural == "pods" {
                pod_faults(&request.object, &range)
            } else {
                claim_faults(&request.object, &range)
            };
            match faults.len() {
                0 => {}
                1 => return Err(forbidden(request, &faults[0])),
                _ => return Err(forbidden(request, &format!("[{}]", faults.join(", ")))),
            }
        }
        Ok(())
    }
}

fn limits_of<'v>(range: &'v Value, kind: &'v str) -> impl Iterator<Item = &'v Value> {
    items(range, &["spec", "limits"])
        .iter()
        .filter(move |limit| text(limit, &["type"]) == kind)
}

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Requests and limits that containers leave out.
fn fill_in(pod: &mut Value, range: &Value) {
    let mut told = Vec::new();
    for (list, what) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        for container in items_mut(pod, &["spec", list]) {
            let name = text(container, &["name"]).to_owned();
            let mut set: [Vec<String>; 2] = [Vec::new(), Vec::new()];
            for limit in limits_of(range, "Container") {
                for (slot, (from, into)) in [("defaultRequest", "requests"), ("default", "limits")]
                    .into_iter()
                    .enumerate()
                {
                    for (resource, amount) in entries(limit, &[from]) {
                        let path = ["resources", into, resource];
                        if meta::at(container, &path).is_null() {
                            meta::set(container, &path, amount.clone());
                            set[slot].push(resource.clone());
                        }
                    }
                }
            }
            for (names, kind) in set.iter_mut().zip(["request", "limit"]) {
                names.sort();
                if !names.is_empty() {
                    told.push(format!("{} {kind} for {what} {name}", names.join(", ")));
                }
            }
        }
    }
    if !told.is_empty() {
        let text = format!("LimitRanger plugin set: {}", told.join("; "));
        meta::set(pod, &["metadata", "annotations", ANNOTATION], json!(text));
    }
}

fn amounts(list: &Value) -> Amounts {
    entries(list, &[])
        .map(|(name, value)| {
            let amount = value.as_str().and_then(|text| text.parse().ok());
            (name.clone(), amount.unwrap_or(Quantity::ZERO))
        })
        .collect()
}

/// Sums and maxima over the containers of a pod, as the scheduler counts them.
fn pod_total(pod: &Value, list: &str) -> Amounts {
    let add = |total: &mut Amounts, more: &Amounts| {
        for (name, amount) in more {
            let slot = total.entry(name.clone()).or_insert(Quantity::ZERO);
            *slot = *slot + *amount;
        }
    };
    let of = |container: &Value| amounts(meta::at(container, &["resources", list]));
    let mut total = Amounts::new();
    for container in items(pod, &["spec", "containers"]) {
        add(&mut total, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in items(pod, &["spec", "initContainers"]) {
        let mut own = of(container);
        if text(container, &["restartPolicy"]) == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        keep_larger(&mut peak, &own);
    }
    keep_larger(&mut total, &peak);
    for (name, value) in entries(pod, &["spec", "resources", list]) {
        if let Some(amount) = value.as_str().and_then(|text| text.parse().ok()) {
            total.insert(name.clone(), amount);
        }
    }
    total
}

fn keep_larger(total: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let slot = total.entry(name.clone()).or_insert(*amount);
        *slot = (*slot).max(*amount);
    }
}

fn pod_faults(pod: &Value, range: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for limit in items(range, &["spec", "limits"]) {
        match text(limit, &["type"]) {
            "Container" => {
                let containers = ["containers", "initContainers"]
                    .into_iter()
                    .flat_map(|list| items(pod, &["spec", list]));
                for container in containers {
                    let of = |list: &str| amounts(meta::at(container, &["resources", list]));
                    check(
                        limit,
                        "Container",
                        &of("requests"),
                        &of("limits"),
                        &mut faults,
                    );
                }
            }
            "Pod" => {
                let (requests, limits) = (pod_total(pod, "requests"), pod_total(pod, "limits"));
                check(limit, "Pod", &requests, &limits, &mut faults);
            }
            _ => {}
        }
    }
    faults
}

fn check(
    limit: &Value,
    kind: &str,
    requests: &Amounts,
    limits: &Amounts,
    faults: &mut Vec<String>,
) {
    for (name, bound) in amounts(get(limit, "min")) {
        faults.extend(minimum(
            kind,
            &name,
            bound,
            requests.get(&name),
            limits.get(&name),
        ));
    }
    for (name, bound) in amounts(get(limit, "max")) {
        faults.extend(maximum(
            kind,
            &name,
            bound,
            requests.get(&name),
            limits.get(&name),
        ));
    }
    for (name, bound) in amounts(get(limit, "maxLimitRequestRatio")) {
        faults.extend(ratio(
            kind,
            &name,
            bound,
            requests.get(&name),
            limits.get(&name),
        ));
    }
}

type Amount<'a> = Option<&'a Quantity>;

fn minimum(
    kind: &str,
    name: &str,
    bound: Quantity,
    request: Amount<'_>,
    limit: Amount<'_>,
) -> Option<String> {
    let intro = format!("minimum {name} usage per {kind} is {bound}");
    match (request, limit) {
        (None, _) => Some(format!("{intro}.  No request is specified")),
        (Some(request), _) if *request < bound => {
            Some(format!("{intro}, but request is {request}"))
        }
        (_, Some(limit)) if *limit < bound => Some(format!("{intro}, but limit is {limit}")),
        _ => None,
    }
}

fn maximum(
    kind: &str,
    name: &str,
    bound: Quantity,
    request: Amount<'_>,
    limit: Amount<'_>,
) -> Option<String> {
    let intro = format!("maximum {name} usage per {kind} is {bound}");
    match (limit, request) {
        (None, _) => Some(format!("{intro}.  No limit is specified")),
        (Some(limit), _) if *limit > bound => Some(format!("{intro}, but limit is {limit}")),
        (_, Some(request)) if *request > bound => {
            Some(format!("{intro}, but request is {request}"))
        }
        _ => None,
    }
}

fn ratio(
    kind: &str,
    name: &str,
    bound: Quantity,
    request: Amount<'_>,
    limit: Amount<'_>,
) -> Option<String> {
    let intro = format!("{name} max limit to request ratio per {kind} is {bound}, but");
    let Some(request) = request.filter(|amount| !amount.is_zero()) else {
        return Some(format!("{intro} no request is specified or request is 0"));
    };
    let Some(limit) = limit.filter(|amount| !amount.is_zero()) else {
        return Some(format!("{intro} no limit is specified or limit is 0"));
    };
    let actual = limit.as_f64() / request.as_f64();
    (actual > bound.as_f64()).then(|| format!("{intro} provided ratio is {actual:.6}"))
}

fn claim_faults(claim: &Value, range: &Value) -> Vec<String> {
    let requests = amounts(meta::at(claim, &["spec", "resources", "requests"]));
    let mut faults = Vec::new();
    let kind = "PersistentVolumeClaim";
    for limit in limits_of(range, kind) {
        for (name, bound) in amounts(get(limit, "min")) {
            faults.extend(minimum(kind, &name, bound, requests.get(&name), None));
        }
        for (name, bound) in amounts(get(limit, "max")) {
            let intro = format!("maximum {name} usage per {kind} is {bound}");
            match requests.get(&name) {
                None => faults.push(format!("{intro}.  No request is specified")),
                Some(request) if *request > bound => {
                    faults.push(format!("{intro}, but request is {request}"));
                }
                Some(_) => {}
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_bounds() {
        let range = json!({"spec": {"limits": [
            {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}},
            {"type": "Pod", "max": {"cpu": "400m"}},
        ]}});
        let mut pod = json!({"spec": {"containers": [{"name": "c"}]}});
        fill_in(&mut pod, &range);
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
        );
        assert_eq!(
            pod_faults(&pod, &range),
            ["maximum cpu usage per Pod is 400m, but limit is 500m"]
        );
    }
}
