//! A Deployment changes its size, perhaps in the middle of a rollout.

use k8s_openapi::api::apps::v1::Deployment;

use super::revision;
use super::sets::{Set, Sets, is_recreate, max_surge, replicas_of};

/// One active set (or the newest of none) takes the whole size; several share it in proportion.
pub(super) fn scale(deployment: &Deployment, sets: &mut Sets) {
    let wanted = replicas_of(deployment);
    let active = sets.active();
    if active.len() <= 1 {
        let newest = || sets.new.or_else(|| sets.old().last().copied());
        let only = active.first().copied().or_else(newest);
        if let Some(index) = only
            && sets.all[index].replicas() != wanted
        {
            sets.all[index].scale(deployment, wanted);
        }
        return;
    }
    if sets
        .new_set()
        .is_some_and(|set| set.is_saturated(deployment))
    {
        for index in sets.active_old() {
            sets.all[index].scale(deployment, 0);
        }
        return;
    }
    if !is_recreate(deployment) {
        scale_in_proportion(deployment, sets, active);
    }
}

fn scale_in_proportion(deployment: &Deployment, sets: &mut Sets, mut active: Vec<usize>) {
    let wanted = replicas_of(deployment);
    let allowed = if wanted > 0 {
        wanted + max_surge(deployment)
    } else {
        0
    };
    let to_add = allowed - sets.wanted();
    // The largest first; of equals the newer ones grow and the older ones shrink first.
    active.sort_by(|a, b| {
        let (a, b) = (&sets.all[*a], &sets.all[*b]);
        let age = if to_add > 0 { b.by_age(a) } else { a.by_age(b) };
        b.replicas().cmp(&a.replicas()).then(age)
    });
    let mut added = 0;
    let mut sizes: Vec<(usize, i32)> = Vec::new();
    for index in active {
        let set = &sets.all[index];
        let share = proportion(deployment, set, to_add, added);
        added += share;
        sizes.push((index, set.replicas() + share));
    }
    if let Some((_, largest)) = sizes.first_mut() {
        *largest = (*largest + to_add - added).max(0);
    }
    for (index, size) in sizes {
        sets.all[index].scale(deployment, size);
    }
}

/// The part of what is to be added (or taken) that falls on this set.
fn proportion(deployment: &Deployment, set: &Set, to_add: i32, added: i32) -> i32 {
    if set.replicas() == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let fraction = fraction(deployment, set);
    let rest = to_add - added;
    if to_add > 0 {
        fraction.min(rest)
    } else {
        fraction.max(rest)
    }
}

/// By how much the set would change if it kept its share of the whole.
fn fraction(deployment: &Deployment, set: &Set) -> i32 {
    let wanted = replicas_of(deployment);
    if wanted == 0 {
        return -set.replicas();
    }
    let most = wanted + max_surge(deployment);
    let told = set.count(revision::MAX_REPLICAS).filter(|most| *most != 0);
    let before = told.or_else(|| {
        let status = deployment.status.as_ref()?;
        status.replicas.filter(|replicas| *replicas != 0)
    });
    let Some(before) = before else { return 0 };
    let size = f64::from(set.replicas()) * f64::from(most) / f64::from(before);
    // Sizes are small: no precision or sign is lost.
    #[allow(clippy::cast_possible_truncation, reason = "bounded by i32 above")]
    let size = size.round() as i32;
    size - set.replicas()
}
