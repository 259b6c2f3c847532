//! What a pod as a whole may use: pure arithmetic over its spec.

use crate::pod;
use crate::qos::{self, Amounts, amount};
use k8s_openapi::api::core::v1::{Container, Pod};
use sampan_api::quantity::Quantity;
use std::collections::BTreeMap;

pub const MIN_SHARES: u64 = 2;
pub const MAX_SHARES: u64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
pub const CPU_PERIOD: u64 = 100_000;
const MIN_QUOTA: i64 = 1000;

/// Limits of one cgroup. `None` leaves a limit as it is; zero and less lift it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    pub cpu_shares: Option<u64>,
    /// Microseconds in each period.
    pub cpu_quota: Option<i64>,
    pub cpu_period: u64,
    pub memory_limit: Option<i64>,
    pub pids_limit: Option<i64>,
    /// Bytes by page size in the kernel's spelling (`2MB`).
    pub huge_pages: BTreeMap<String, i64>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpu_shares: None,
            cpu_quota: None,
            cpu_period: CPU_PERIOD,
            memory_limit: None,
            pids_limit: None,
            huge_pages: BTreeMap::new(),
        }
    }
}

/// The pod's own limits. A limit holds only if every container has one: else one of them may use what it finds.
pub fn pod_resources(pod: &Pod) -> Resources {
    if qos::class(pod) == qos::BEST_EFFORT {
        return Resources {
            cpu_shares: Some(MIN_SHARES),
            ..Resources::default()
        };
    }
    let request = request(pod, "cpu").milli_value();
    let cpu = limit(pod, "cpu").map(|limit| quota(limit.milli_value(), CPU_PERIOD));
    Resources {
        cpu_shares: Some(shares(request)),
        cpu_quota: cpu,
        memory_limit: limit(pod, "memory").map(Quantity::value),
        ..Resources::default()
    }
}

/// What the pod asks for of one resource: containers run together, init containers one after the other beside the
/// sidecars that started before them.
pub fn request(pod: &Pod, resource: &str) -> Quantity {
    let of = |container: &Container| {
        let resources = container.resources.as_ref();
        let requests = resources.and_then(|r| r.requests.as_ref());
        let limits = resources.and_then(|r| r.limits.as_ref());
        match requests.is_some_and(|list| list.contains_key(resource)) {
            true => amount(requests, resource),
            false => amount(limits, resource),
        }
    };
    let whole = pod::spec(pod).resources.as_ref();
    let own = whole.and_then(|r| r.requests.as_ref());
    let sum = match own.filter(|list| list.contains_key(resource)) {
        Some(own) => amount(Some(own), resource),
        None => peak(pod, of),
    };
    sum + amount(pod::spec(pod).overhead.as_ref(), resource)
}

/// The pod's limit of one resource, if it has one.
pub fn limit(pod: &Pod, resource: &str) -> Option<Quantity> {
    let limits = |container: &Container| -> Quantity {
        let resources = container.resources.as_ref();
        amount(resources.and_then(|r| r.limits.as_ref()), resource)
    };
    let overhead: Option<&Amounts> = pod::spec(pod).overhead.as_ref();
    let whole = pod::spec(pod).resources.as_ref();
    let own = amount(whole.and_then(|r| r.limits.as_ref()), resource);
    if !own.is_zero() {
        return Some(own + amount(overhead, resource));
    }
    let mut all = pod::init_containers(pod)
        .iter()
        .chain(&pod::spec(pod).containers);
    if all.any(|container| limits(container).is_zero()) {
        return None;
    }
    Some(peak(pod, limits) + amount(overhead, resource))
}

/// The most that is used at one time, given what each container uses.
pub(crate) fn peak(pod: &Pod, of: impl Fn(&Container) -> Quantity) -> Quantity {
    let mut sidecars = Quantity::ZERO;
    let mut starting = Quantity::ZERO;
    for container in pod::init_containers(pod) {
        let together = sidecars + of(container);
        if pod::is_sidecar(container) {
            sidecars = together;
        }
        starting = starting.max(together);
    }
    let running = pod::spec(pod)
        .containers
        .iter()
        .fold(sidecars, |sum, container| sum + of(container));
    running.max(starting)
}

/// Relative weight of a request in thousandths of a processor.
pub fn shares(milli_cpu: i64) -> u64 {
    let shares = milli_cpu.saturating_mul(SHARES_PER_CPU) / 1000;
    u64::try_from(shares).map_or(MIN_SHARES, |shares| shares.clamp(MIN_SHARES, MAX_SHARES))
}

/// Microseconds of processor time in each period for a limit in thousandths of a processor; 0 is no limit.
pub fn quota(milli_cpu: i64, period: u64) -> i64 {
    if milli_cpu == 0 {
        return 0;
    }
    let period = i64::try_from(period).unwrap_or(i64::MAX);
    (milli_cpu.saturating_mul(period) / 1000).max(MIN_QUOTA)
}

/// Version 2's weight for version 1's shares, on the curve that current runtimes use: 1024 becomes 100, the ends stay
/// the ends.
pub fn weight(shares: u64) -> u64 {
    if shares <= MIN_SHARES {
        return 1;
    }
    if shares >= MAX_SHARES {
        return 10_000;
    }
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    10_f64.powf(exponent).ceil() as u64
}

/// The way back, to the nearest share.
pub fn shares_of_weight(weight: u64) -> u64 {
    let exponent = (weight.max(1) as f64).log10() + 7.0 / 34.0;
    let log = ((125.0_f64 * 125.0 + 4.0 * 612.0 * exponent).sqrt() - 125.0) / 2.0;
    (log.exp2().round() as u64).clamp(MIN_SHARES, MAX_SHARES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    #[test]
    fn limits_hold_only_if_all_have_one() {
        let limited = json!({"name": "a", "resources": {
            "requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}});
        let both = pod(json!({"containers": [limited, limited]}));
        let made = pod_resources(&both);
        assert_eq!(made.cpu_shares, Some(204));
        assert_eq!(made.cpu_quota, Some(100_000));
        assert_eq!(made.memory_limit, Some(128 << 20));
        let one = pod(json!({"containers": [limited, {"name": "b"}]}));
        let made = pod_resources(&one);
        assert_eq!((made.cpu_quota, made.memory_limit), (None, None));
        let none = pod_resources(&pod(json!({"containers": [{"name": "b"}]})));
        assert_eq!(none.cpu_shares, Some(2));
    }

    #[test]
    fn init_containers_count_while_they_run_and_sidecars_always() {
        let with = |cpu: &str, policy: Option<&str>| json!({"name": "x", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
        let pod = pod(json!({
            "initContainers": [with("200m", Some("Always")), with("1", None)],
            "containers": [with("300m", None)],
            "overhead": {"cpu": "10m"},
        }));
        assert_eq!(request(&pod, "cpu").milli_value(), 1210);
    }

    #[test]
    fn conversions_keep_their_ends() {
        assert_eq!(
            [shares(0), shares(1000), shares(i64::MAX)],
            [2, 1024, MAX_SHARES]
        );
        assert_eq!([quota(0, CPU_PERIOD), quota(1, CPU_PERIOD)], [0, 1000]);
        assert_eq!(
            [weight(2), weight(1024), weight(MAX_SHARES)],
            [1, 100, 10_000]
        );
        for shares in [2, 512, 1024, 4096, MAX_SHARES] {
            let back = shares_of_weight(weight(shares));
            assert!(back.abs_diff(shares) <= shares / 20, "{shares} {back}");
        }
    }
}
