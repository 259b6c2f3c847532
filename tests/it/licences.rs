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
