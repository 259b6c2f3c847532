//! Nodes that already hold the pod's images are preferred, the more so the larger the images are.

use super::{Cycle, MAX_SCORE, Normalize, Plugin, Scorer, never_wakes};
use crate::node_info::NodeInfo;

pub const PLUGIN: Plugin = Plugin {
    name: "ImageLocality",
    weight: 1,
    filter: None,
    score: Some(score),
    wakes: never_wakes,
};

const MEBIBYTE: i64 = 1024 * 1024;
const LEAST: i64 = 23 * MEBIBYTE;
const MOST_PER_CONTAINER: i64 = 1000 * MEBIBYTE;

fn score<'a>(cycle: Cycle<'a>, _: &[usize]) -> Option<Scorer<'a>> {
    let (pod, snapshot) = (cycle.pod, cycle.snapshot);
    if pod
        .images
        .iter()
        .all(|image| snapshot.nodes_with_image(image) == 0)
    {
        return None;
    }
    let total = snapshot.nodes().len() as f64;
    let most = MOST_PER_CONTAINER * i64::try_from(pod.containers).unwrap_or(1).max(1);
    let raw = move |node: &NodeInfo| {
        let present = pod
            .images
            .iter()
            .filter_map(|image| Some((image, *node.images.get(image)?)));
        // An image that is on few nodes counts less, so that one node does not draw all pods of an image.
        let sum: i64 = present
            .map(|(image, size)| {
                (size as f64 * (snapshot.nodes_with_image(image) as f64 / total)) as i64
            })
            .sum();
        MAX_SCORE * (sum.clamp(LEAST, most) - LEAST) / (most - LEAST)
    };
    Some(Scorer {
        raw: Box::new(raw),
        normalize: Normalize::No,
    })
}
