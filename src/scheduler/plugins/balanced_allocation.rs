//! CPU and memory should run out together.

use super::{Cycle, MAX_SCORE, Normalize, Plugin, Scorer, never_wakes};
use crate::node_info::NodeInfo;

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesBalancedAllocation",
    weight: 1,
    filter: None,
    score: Some(score),
    wakes: never_wakes,
};

fn score<'a>(cycle: Cycle<'a>, _: &[usize]) -> Option<Scorer<'a>> {
    let wanted = &cycle.pod.requests.exact;
    if wanted.milli_cpu == 0 && wanted.memory == 0 {
        return None;
    }
    let raw = move |node: &NodeInfo| {
        let (has, used) = (&node.allocatable, &node.requested);
        let with_pod = balance(
            [
                used.milli_cpu + wanted.milli_cpu,
                used.memory + wanted.memory,
            ],
            [has.milli_cpu, has.memory],
        );
        let without_pod = balance([used.milli_cpu, used.memory], [has.milli_cpu, has.memory]);
        MAX_SCORE / 2 + (MAX_SCORE / 2 + with_pod - without_pod) / 2
    };
    Some(Scorer {
        raw: Box::new(raw),
        normalize: Normalize::No,
    })
}

/// 100 when both resources are used to the same degree, 50 when one is full and the other empty.
fn balance(used: [i64; 2], has: [i64; 2]) -> i64 {
    if has[0] == 0 || has[1] == 0 {
        return MAX_SCORE;
    }
    let fraction = |at: usize| (used[at] as f64 / has[at] as f64).min(1.0);
    let deviation = ((fraction(0) - fraction(1)) / 2.0).abs();
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
