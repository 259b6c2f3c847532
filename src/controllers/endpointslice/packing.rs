//! Which endpoint stands in which slice: few slices, few changes.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};

pub(crate) const MOST_ENDPOINTS: usize = 100;

/// Endpoints that share their ports.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Group {
    pub(crate) ports: Vec<EndpointPort>,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// A slice that stays, with what it is to hold.
pub(crate) struct Kept {
    pub(crate) slice: Arc<EndpointSlice>,
    pub(crate) content: Group,
    /// Whether the content differs from what the slice holds.
    pub(crate) changed: bool,
}

#[derive(Default)]
pub(crate) struct Packed {
    pub(crate) kept: Vec<Kept>,
    pub(crate) created: Vec<Group>,
    pub(crate) deleted: Vec<Arc<EndpointSlice>>,
}

/// Ports in an order that does not depend on who wrote them.
fn sorted(ports: &[EndpointPort]) -> Vec<&EndpointPort> {
    let mut ports: Vec<&EndpointPort> = ports.iter().collect();
    ports.sort_by(|a, b| (&a.name, &a.protocol, a.port).cmp(&(&b.name, &b.protocol, b.port)));
    ports
}

fn same_ports(slice: &EndpointSlice, ports: &[EndpointPort]) -> bool {
    sorted(slice.ports.as_deref().unwrap_or_default()) == sorted(ports)
}

/// What makes two endpoints the same one, though its state may differ.
fn identity(endpoint: &Endpoint) -> (Vec<String>, Option<String>) {
    let target = endpoint.target_ref.as_ref();
    let uid = target.and_then(|target| target.uid.clone());
    (endpoint.addresses.clone(), uid)
}

/// Spreads the groups over the existing slices and as few new ones as possible.
pub(crate) fn pack(groups: Vec<Group>, existing: &[Arc<EndpointSlice>]) -> Packed {
    let mut packed = Packed::default();
    let mut rest: Vec<Arc<EndpointSlice>> = existing.to_vec();
    for group in groups {
        let (mine, others) = rest
            .into_iter()
            .partition(|slice| same_ports(slice, &group.ports));
        rest = others;
        pack_group(group, mine, &mut packed);
    }
    packed.deleted.extend(rest);
    reuse(&mut packed);
    packed
}

fn pack_group(group: Group, slices: Vec<Arc<EndpointSlice>>, packed: &mut Packed) {
    let Group { ports, endpoints } = group;
    let is_placeholder = endpoints.is_empty();
    let order: Vec<_> = endpoints.iter().map(identity).collect();
    let mut wanted: HashMap<_, Endpoint> = order.iter().cloned().zip(endpoints).collect();
    let mut kept: Vec<Kept> = slices
        .into_iter()
        .map(|slice| keep(slice, &ports, &mut wanted))
        .collect();
    let mut left: Vec<Endpoint> = order.iter().filter_map(|key| wanted.remove(key)).collect();
    // Slices that change anyway are filled first, the fullest before the others.
    kept.sort_by_key(|slice| (!slice.changed, usize::MAX - slice.content.endpoints.len()));
    for slice in kept.iter_mut().filter(|slice| slice.changed) {
        fill(slice, &mut left);
    }
    if let Some(slice) = best_fit(&mut kept, left.len()) {
        fill(slice, &mut left);
    }
    for chunk in left.chunks(MOST_ENDPOINTS) {
        packed.created.push(Group {
            ports: ports.clone(),
            endpoints: chunk.to_vec(),
        });
    }
    if is_placeholder && kept.is_empty() {
        packed.created.push(Group {
            ports,
            endpoints: Vec::new(),
        });
    }
    let mut placeholder = is_placeholder;
    for slice in kept {
        // One empty slice stays if there is nothing else.
        if slice.content.endpoints.is_empty() && !std::mem::take(&mut placeholder) {
            packed.deleted.push(slice.slice);
        } else {
            packed.kept.push(slice);
        }
    }
}

/// Takes from `wanted` what the slice holds already.
fn keep(
    slice: Arc<EndpointSlice>,
    ports: &[EndpointPort],
    wanted: &mut HashMap<(Vec<String>, Option<String>), Endpoint>,
) -> Kept {
    let old: &[Endpoint] = slice.endpoints.as_deref().unwrap_or_default();
    let mut changed = false;
    let mut endpoints = Vec::new();
    for endpoint in old {
        match wanted.remove(&identity(endpoint)) {
            Some(new) => {
                changed |= !same(&new, endpoint);
                endpoints.push(new);
            }
            None => changed = true,
        }
    }
    Kept {
        content: Group {
            ports: ports.to_vec(),
            endpoints,
        },
        slice,
        changed,
    }
}

/// Equal, the target's resourceVersion and the like apart.
fn same(new: &Endpoint, old: &Endpoint) -> bool {
    new.conditions == old.conditions
        && new.hints == old.hints
        && new.hostname == old.hostname
        && new.node_name == old.node_name
        && new.zone == old.zone
        && new.addresses == old.addresses
}

fn fill(slice: &mut Kept, left: &mut Vec<Endpoint>) {
    let room = MOST_ENDPOINTS.saturating_sub(slice.content.endpoints.len());
    let count = room.min(left.len());
    if count > 0 {
        slice.changed = true;
        slice.content.endpoints.extend(left.drain(..count));
    }
}

/// The unchanged slice that `count` more endpoints fill best.
fn best_fit(kept: &mut [Kept], count: usize) -> Option<&mut Kept> {
    if count == 0 {
        return None;
    }
    kept.iter_mut()
        .filter(|slice| slice.content.endpoints.len() + count <= MOST_ENDPOINTS)
        .max_by_key(|slice| slice.content.endpoints.len())
}

/// A slice to be deleted becomes one that was to be created: one write instead of two.
fn reuse(packed: &mut Packed) {
    while !packed.created.is_empty() {
        let Some(slice) = packed.deleted.pop() else {
            return;
        };
        packed.kept.push(Kept {
            slice,
            content: packed.created.remove(0),
            changed: true,
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn endpoint(number: usize) -> Endpoint {
        Endpoint {
            addresses: vec![format!("10.0.0.{number}")],
            ..Endpoint::default()
        }
    }

    fn slice(name: &str, numbers: std::ops::Range<usize>) -> Arc<EndpointSlice> {
        let mut slice = EndpointSlice {
            endpoints: Some(numbers.map(endpoint).collect()),
            ..EndpointSlice::default()
        };
        slice.metadata.name = Some(name.to_owned());
        Arc::new(slice)
    }

    fn group(numbers: std::ops::Range<usize>) -> Group {
        Group {
            ports: Vec::new(),
            endpoints: numbers.map(endpoint).collect(),
        }
    }

    #[test]
    fn many_endpoints_take_several_slices() {
        let packed = pack(vec![group(0..250)], &[]);
        let sizes: Vec<usize> = packed
            .created
            .iter()
            .map(|one| one.endpoints.len())
            .collect();
        assert_eq!(sizes, [100, 100, 50]);
    }

    #[test]
    fn what_fits_goes_into_one_existing_slice() {
        let slices = [slice("full", 0..95), slice("half", 100..150)];
        let mut wanted = group(0..95);
        wanted.endpoints.extend((100..160).map(endpoint));
        let packed = pack(vec![wanted], &slices);
        assert!(packed.created.is_empty() && packed.deleted.is_empty());
        let changed: Vec<_> = packed.kept.iter().filter(|kept| kept.changed).collect();
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].content.endpoints.len(), 60);
    }

    #[test]
    fn an_emptied_slice_goes_unless_it_is_the_last() {
        let packed = pack(vec![group(0..1)], &[slice("a", 0..1), slice("b", 5..6)]);
        assert_eq!(packed.deleted.len(), 1);
        let packed = pack(vec![Group::default()], &[slice("a", 0..1)]);
        assert!(packed.deleted.is_empty());
        assert!(packed.kept[0].changed && packed.kept[0].content.endpoints.is_empty());
    }

    #[test]
    fn other_ports_take_over_the_old_slice() {
        let mut wanted = group(0..2);
        wanted.ports = vec![EndpointPort {
            port: Some(80),
            ..EndpointPort::default()
        }];
        let packed = pack(vec![wanted], &[slice("a", 0..2)]);
        assert!(packed.created.is_empty() && packed.deleted.is_empty());
        assert_eq!(packed.kept[0].content.ports.len(), 1);
        assert!(packed.kept[0].changed);
    }
}
