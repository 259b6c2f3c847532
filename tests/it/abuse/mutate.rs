//! Valid objects made wrong by machine. Pure.

use rand::Rng as _;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

/// Every place in a tree, as JSON pointers.
pub fn places(tree: &Value) -> Vec<String> {
    let mut all = Vec::new();
    walk(tree, String::new(), &mut all);
    all
}

fn walk(tree: &Value, at: String, all: &mut Vec<String>) {
    match tree {
        Value::Object(map) => {
            for (key, value) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                walk(value, format!("{at}/{key}"), all);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, format!("{at}/{index}"), all);
            }
        }
        _ => {}
    }
    all.push(at);
}

/// One value of every type, and some that are just unlikely.
pub fn strangers() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(9_223_372_036_854_775_807_i64),
        json!(18_446_744_073_709_551_615_u64),
        json!(1.5e300),
        json!(""),
        json!("0"),
        json!("\u{0}\u{7f}\u{fffd}💥"),
        json!("x".repeat(70_000)),
        json!("-1"),
        json!("1e99999999"),
        json!("999999999999999999999999999999Ei"),
        json!("../../../etc/passwd"),
        json!("2026-99-99T99:99:99Z"),
        json!("[::ffff:1.2.3.4]/129"),
        json!([]),
        json!({}),
        json!([null]),
        json!([[[[[[{}]]]]]]),
        json!({"": {"": {"": []}}}),
        json!([{"name": "a"}, {"name": "a"}, {"name": null}, "a", 1]),
        json!({"$patch": "replace"}),
        json!({"$patch": "nothing", "$retainKeys": [1], "$setElementOrder/x": {}}),
        Value::Object(
            (0..2_000)
                .map(|n| (format!("k{n}"), json!(n)))
                .collect::<Map<_, _>>(),
        ),
    ]
}

pub fn replaced(tree: &Value, place: &str, with: Value) -> Value {
    let mut tree = tree.clone();
    match tree.pointer_mut(place) {
        Some(found) => *found = with,
        None => tree = with,
    }
    tree
}

/// Bytes changed, taken out, put in, doubled.
pub fn scrambled(text: &[u8], random: &mut SmallRng) -> Vec<u8> {
    const LIKELY: &[u8] = b"{}[]\",:0-9e.\\/\x00\xff\x80\x7f \n\t'&*!|>%@`#~";
    let mut text = text.to_vec();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=text.len());
        match random.random_range(0..5) {
            0 if at < text.len() => text[at] ^= 1 << random.random_range(0..8),
            1 if at < text.len() => text[at] = LIKELY[random.random_range(0..LIKELY.len())],
            2 => text.insert(at, LIKELY[random.random_range(0..LIKELY.len())]),
            3 => text.truncate(at),
            _ => {
                let end = (at + random.random_range(0..40)).min(text.len());
                let piece = text[at..end].to_vec();
                text.splice(at..at, piece);
            }
        }
    }
    text
}
