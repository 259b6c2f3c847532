//! Which of a Service's endpoints this node uses. Pure.
//!
//! Upstream counterpart: `pkg/proxy/topology.go`.

use crate::model::{Endpoint, ServicePort};

/// What of a Service's endpoints is usable from here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// For traffic policy `Cluster`.
    pub cluster: Vec<Endpoint>,
    /// For traffic policy `Local`.
    pub local: Vec<Endpoint>,
    /// Whether any node has a usable endpoint, even if this one may not use it.
    pub any: bool,
}

impl Choice {
    /// Both lists together, each endpoint once.
    pub fn reachable(&self) -> impl Iterator<Item = &Endpoint> {
        let only_local = |endpoint: &&Endpoint| !self.cluster.contains(endpoint);
        self.cluster
            .iter()
            .chain(self.local.iter().filter(only_local))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Everywhere,
    SameNode,
    SameZone,
}

/// Ready endpoints, narrowed by topology hints; where none is ready, those that still serve while
/// they terminate.
pub fn choose(
    endpoints: &[Endpoint],
    port: &ServicePort,
    node: &str,
    zone: Option<&str>,
) -> Choice {
    let cluster = if port.uses_cluster_endpoints() {
        cluster_endpoints(endpoints, node, zone)
    } else {
        Vec::new()
    };
    let local = if port.uses_local_endpoints() {
        ready_or_last_resort(endpoints, |endpoint| endpoint.local)
    } else {
        Vec::new()
    };
    Choice {
        any: endpoints.iter().any(|e| e.ready || e.is_last_resort()),
        cluster,
        local,
    }
}

fn cluster_endpoints(endpoints: &[Endpoint], node: &str, zone: Option<&str>) -> Vec<Endpoint> {
    let mode = mode_from_hints(endpoints, node, zone);
    let near = |endpoint: &Endpoint| match mode {
        Mode::Everywhere => true,
        Mode::SameNode => names(&endpoint.for_nodes, node),
        Mode::SameZone => zone.is_some_and(|zone| names(&endpoint.for_zones, zone)),
    };
    // Only ready endpoints decide the mode, so a mode that excludes all of them cannot come out.
    ready_or_last_resort(endpoints, near)
}

fn ready_or_last_resort(
    endpoints: &[Endpoint],
    wanted: impl Fn(&Endpoint) -> bool,
) -> Vec<Endpoint> {
    let select = |usable: fn(&Endpoint) -> bool| {
        let fits = |e: &&Endpoint| usable(e) && wanted(e);
        endpoints.iter().filter(fits).cloned().collect::<Vec<_>>()
    };
    let ready = select(|e| e.ready);
    if ready.is_empty() {
        return select(Endpoint::is_last_resort);
    }
    ready
}

fn names(hints: &[String], name: &str) -> bool {
    hints.iter().any(|hint| hint == name)
}

/// Hints count only if every ready endpoint has them and one is meant for us: otherwise they are
/// stale or incomplete and following them would overload or lose endpoints.
fn mode_from_hints(endpoints: &[Endpoint], node: &str, zone: Option<&str>) -> Mode {
    let ready = || endpoints.iter().filter(|e| e.ready);
    if ready().next().is_none() {
        return Mode::Everywhere;
    }
    if ready().all(|e| !e.for_nodes.is_empty()) && ready().any(|e| names(&e.for_nodes, node)) {
        return Mode::SameNode;
    }
    let zoned = ready().all(|e| !e.for_zones.is_empty());
    if zoned && zone.is_some_and(|zone| ready().any(|e| names(&e.for_zones, zone))) {
        return Mode::SameZone;
    }
    Mode::Everywhere
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::ServiceName;

    fn port(internal_local: bool, external_local: bool, node_port: Option<u16>) -> ServicePort {
        ServicePort {
            service: ServiceName::new("default", "web"),
            name: String::new(),
            protocol: 6,
            port: 80,
            node_port,
            cluster_ip: "10.43.0.1".parse().unwrap(),
            external_ips: vec![],
            load_balancer_ips: vec![],
            source_ranges: vec![],
            affinity: None,
            internal_local,
            external_local,
        }
    }

    /// `r` ready, `t` serving while terminating, `-` dead; `L` on this node; `n:`/`z:` hints.
    fn endpoint(index: usize, text: &str) -> Endpoint {
        let mut words = text.split(' ');
        let state = words.next().unwrap();
        let hints: Vec<_> = words.collect();
        let hint = |prefix: &str| {
            let names = hints.iter().filter_map(|h| h.strip_prefix(prefix));
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        Endpoint {
            address: format!("10.42.0.{}", index + 1).parse().unwrap(),
            port: 80,
            ready: state.contains('r'),
            serving: !state.contains('-'),
            terminating: state.contains('t'),
            local: state.contains('L'),
            for_nodes: hint("n:"),
            for_zones: hint("z:"),
        }
    }

    fn check(port: &ServicePort, endpoints: &[&str], expected: (&[usize], &[usize], bool)) {
        let all: Vec<_> = endpoints
            .iter()
            .enumerate()
            .map(|(i, e)| endpoint(i, e))
            .collect();
        let choice = choose(&all, port, "here", Some("east"));
        let indices = |chosen: &[Endpoint]| {
            let index = |e: &Endpoint| all.iter().position(|a| a == e).unwrap();
            chosen.iter().map(index).collect::<Vec<_>>()
        };
        let found = (indices(&choice.cluster), indices(&choice.local), choice.any);
        assert_eq!(
            found,
            (expected.0.to_vec(), expected.1.to_vec(), expected.2),
            "{endpoints:?}"
        );
    }

    #[test]
    fn ready_first_then_those_that_still_serve() {
        let cluster = port(false, false, None);
        check(&cluster, &["r", "rL", "t", "-"], (&[0, 1], &[], true));
        check(&cluster, &["t", "-", "tL"], (&[0, 2], &[], true));
        check(&cluster, &["-"], (&[], &[], false));
        check(&cluster, &[], (&[], &[], false));
    }

    #[test]
    fn local_policies_keep_to_this_node() {
        let internal = port(true, false, None);
        check(&internal, &["r", "rL", "tL"], (&[], &[1], true));
        check(&internal, &["r", "tL"], (&[], &[1], true));
        check(&internal, &["r"], (&[], &[], true));
        let external = port(false, true, Some(30000));
        check(&external, &["r", "rL"], (&[0, 1], &[1], true));
        check(&external, &["r", "tL"], (&[0], &[1], true));
    }

    #[test]
    fn hints_count_only_when_complete_and_for_us() {
        let cluster = port(false, false, None);
        check(&cluster, &["r n:here", "r n:there"], (&[0], &[], true));
        check(&cluster, &["r n:here", "r"], (&[0, 1], &[], true));
        check(&cluster, &["r n:there", "r n:there"], (&[0, 1], &[], true));
        check(
            &cluster,
            &["r n:there z:east", "r n:there z:west"],
            (&[0], &[], true),
        );
        check(&cluster, &["r z:west", "r z:south"], (&[0, 1], &[], true));
        check(&cluster, &["- n:here", "t n:here"], (&[1], &[], true));
    }
}
