//! Every dependency is permissive, and no unknown C library comes in by a `-sys` crate.

use serde_json::Value;

use crate::support::cargo_metadata;

const ALLOWED: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "Unlicense",
    "Unicode-3.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "BSL-1.0",
];

/// Crates that link C code we looked at.
const SYS_CRATES: &[&str] = &[
    "libsqlite3-sys",
    "zstd-sys",
    "libmimalloc-sys",
    "linux-raw-sys",
    "netlink-sys",
    // Declarations of platforms we do not build for.
    "windows-sys",
    "js-sys",
    "web-sys",
    "core-foundation-sys",
    "security-framework-sys",
];

fn packages() -> Vec<Value> {
    cargo_metadata()["packages"]
        .as_array()
        .expect("packages")
        .clone()
}

/// An SPDX expression of `AND`, `OR` and parentheses holds if the allowed licences satisfy it.
fn permitted(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut tokens: Vec<&str> = spaced.split_whitespace().collect();
    tokens.reverse();
    either(&mut tokens)
}

fn either(tokens: &mut Vec<&str>) -> bool {
    let mut holds = both(tokens);
    while tokens.last() == Some(&"OR") {
        tokens.pop();
        holds |= both(tokens);
    }
    holds
}

fn both(tokens: &mut Vec<&str>) -> bool {
    let mut holds = one(tokens);
    while tokens.last() == Some(&"AND") {
        tokens.pop();
        holds &= one(tokens);
    }
    holds
}

fn one(tokens: &mut Vec<&str>) -> bool {
    match tokens.pop() {
        Some("(") => {
            let holds = either(tokens);
            tokens.pop();
            holds
        }
        Some(name) if tokens.last() == Some(&"WITH") => {
            tokens.pop();
            let exception = tokens.pop().unwrap_or_default();
            ALLOWED.contains(&format!("{name} WITH {exception}").as_str())
        }
        Some(name) => ALLOWED.contains(&name),
        None => false,
    }
}

#[test]
fn dependencies_are_permissive() {
    let wrong: Vec<String> = packages()
        .iter()
        .filter(|package| {
            let licence = package["license"].as_str().unwrap_or_default();
            !permitted(licence)
        })
        .map(|package| {
            format!(
                "{} {}: {}",
                package["name"], package["version"], package["license"]
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn c_libraries_are_known() {
    let wrong: Vec<String> = packages()
        .iter()
        .filter_map(|package| package["name"].as_str())
        .filter(|name| name.ends_with("-sys") && !SYS_CRATES.contains(name))
        .map(str::to_owned)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Lines `- name version: licence` of NOTICE.
fn noticed() -> Vec<(String, String)> {
    let lines = include_str!("../../NOTICE").lines();
    let crates = lines.filter_map(|line| line.strip_prefix("- ")?.split_once(": "));
    crates
        .filter_map(|(which, licence)| Some((which.split_once(' ')?.0.into(), licence.into())))
        .collect()
}

/// Name and version of every crate from a registry that `sampan` is made of, also by proc macros.
fn built_in() -> Vec<String> {
    let metadata = cargo_metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let package = |id: &Value| packages.iter().find(|package| package["id"] == *id);
    let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
    let mut reached: Vec<&Value> = nodes
        .iter()
        .map(|node| &node["id"])
        .filter(|id| package(id).is_some_and(|package| package["name"] == "sampan"))
        .collect();
    let mut next = 0;
    while let Some(&id) = reached.get(next) {
        next += 1;
        let node = nodes.iter().find(|node| node["id"] == *id);
        for edge in node
            .and_then(|node| node["deps"].as_array())
            .into_iter()
            .flatten()
        {
            let mut kinds = edge["dep_kinds"].as_array().into_iter().flatten();
            if kinds.any(|kind| kind["kind"].is_null()) && !reached.contains(&&edge["pkg"]) {
                reached.push(&edge["pkg"]);
            }
        }
    }
    let crates = reached.into_iter().filter_map(package);
    crates
        .filter(|package| !package["source"].is_null())
        .map(|package| {
            let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("name"), text("version"))
        })
        .collect()
}

#[test]
fn notice_names_every_crate() {
    let notice = include_str!("../../NOTICE");
    let crates = built_in();
    let missing: Vec<&String> = crates
        .iter()
        .filter(|name| !notice.contains(&format!("\n- {name}: ")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(crates.len() > 100, "{} crates", crates.len());
}

#[test]
fn texts_of_licences_are_shipped() {
    let texts = include_str!("../../packaging/LICENSES");
    let named: Vec<&str> = texts
        .lines()
        .filter_map(|line| line.strip_prefix("For: "))
        .flat_map(|names| names.split(", "))
        .collect();
    let missing: Vec<String> = noticed()
        .into_iter()
        .filter(|(_, licence)| !licence.contains("Apache-2.0") || licence.contains(" AND "))
        .map(|(name, _)| name)
        .filter(|name| !named.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(named.len() > 50, "{} crates", named.len());
}

#[test]
fn expressions_are_read_right() {
    assert!(permitted("MIT OR Apache-2.0"));
    assert!(permitted("MIT/Apache-2.0"));
    assert!(permitted("(MIT OR GPL-3.0) AND ISC"));
    assert!(permitted("GPL-2.0 OR BSD-3-Clause"));
    assert!(!permitted("MIT AND GPL-2.0"));
    assert!(!permitted("GPL-3.0-only"));
    assert!(!permitted(""));
}
