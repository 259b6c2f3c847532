//! The layer table of the architecture page, held by `cargo metadata`: a crate reaches only what its row allows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::cargo_metadata;

const FOUNDATION: &[&str] = &[
    "api",
    "util",
    "config",
    "pki",
    "netlink",
    "cri",
    "host",
    "net",
    "store",
    "client",
    "apiserver",
];

/// Crate, then what it may use of ours.
const LAYERS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("util", &[]),
    ("config", &["util"]),
    ("pki", &["util"]),
    ("netlink", &["util"]),
    ("cri", &["util"]),
    ("host", &["util"]),
    ("net", &["util", "pki"]),
    ("store", &["util"]),
    ("client", &["api", "util", "net", "pki"]),
    (
        "apiserver",
        &["api", "util", "net", "pki", "store", "client"],
    ),
    ("controllers", ACTOR),
    ("scheduler", ACTOR),
    ("kubelet", ACTOR),
    ("proxy", ACTOR),
    ("network", ACTOR),
    ("dns", ACTOR),
    ("ingress", ACTOR),
    ("addons", ACTOR),
    ("cluster", FOUNDATION),
    ("kubectl", &["api", "util", "client", "net"]),
];

/// Actors: never each other, never the store, never the API server.
const ACTOR: &[&str] = &[
    "api", "util", "client", "net", "pki", "netlink", "cri", "host",
];

/// What a pure crate must not reach, by any way.
const IMPURE: &[&str] = &[
    "tokio",
    "async-trait",
    "rand",
    "hyper",
    "rusqlite",
    "futures-executor",
    "reqwest",
];

struct Graph {
    /// Package name, then the names it depends on (without build and test dependencies).
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn read() -> Self {
        let metadata = cargo_metadata();
        let names: BTreeMap<&str, &str> = list(&metadata["packages"])
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        let edges = list(&metadata["resolve"]["nodes"])
            .map(|node| {
                let used = list(&node["deps"])
                    .filter(|dep| list(&dep["dep_kinds"]).any(|kind| kind["kind"].is_null()))
                    .map(|dep| names[text(&dep["pkg"])].to_owned())
                    .collect();
                (names[text(&node["id"])].to_owned(), used)
            })
            .collect();
        Self { edges }
    }

    fn reachable(&self, from: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.to_owned()];
        while let Some(name) = open.pop() {
            for used in self.edges.get(&name).into_iter().flatten() {
                if seen.insert(used.clone()) {
                    open.push(used.clone());
                }
            }
        }
        seen
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

#[test]
fn crates_reach_only_what_their_layer_allows() {
    let graph = Graph::read();
    let mut wrong = Vec::new();
    for name in graph
        .edges
        .keys()
        .filter_map(|name| name.strip_prefix("sampan-"))
    {
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| *layer == name) else {
            if !["daemon", "cli", "bench"].contains(&name) {
                wrong.push(format!("{name} is in no row of the layer table"));
            }
            continue;
        };
        for used in graph.reachable(&format!("sampan-{name}")) {
            if let Some(used) = used.strip_prefix("sampan-")
                && !allowed.contains(&used)
            {
                wrong.push(format!("{name} reaches {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_vocabulary_is_pure() {
    let reached = Graph::read().reachable("sampan-api");
    let impure: Vec<&&str> = IMPURE
        .iter()
        .filter(|name| reached.contains(**name))
        .collect();
    assert!(impure.is_empty(), "api reaches {impure:?}");
}
