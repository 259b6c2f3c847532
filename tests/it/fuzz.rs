//! The fuzz targets over the committed corpus, the sample objects of all rows, and many mutations of both.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sampan_api::{protobuf, schema};

use crate::abuse::mutate;
use crate::rows;
use crate::support::long;
use targets::{TARGETS, Target};

/// So long may one input take in a build without optimisation, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);
/// The stack of the server's threads.
const STACK: usize = 2 << 20;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz/corpus")
        .join(name);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut seeds: Vec<_> = files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    seeds.extend(samples(name));
    assert!(!seeds.is_empty(), "{} is empty", folder.display());
    seeds
}

/// The objects of all rows in the encoding of the target.
fn samples(name: &str) -> Vec<Vec<u8>> {
    let objects = rows::objects();
    let mut seeds = Vec::new();
    for row in rows::stored_rows() {
        let object = rows::sample(&objects, &row);
        let text = object.to_string();
        let gvk = row.storage_gvk();
        match name {
            "json" | "yaml" => seeds.push(format!("\0{text}").into_bytes()),
            "json-text" => seeds.push(text.into_bytes()),
            "protobuf" => {
                if let Some(schema) = schema::of_kind(&gvk.group, &gvk.version, &gvk.kind) {
                    let raw = protobuf::encode(schema, &object);
                    let wire = protobuf::wrap(&gvk.api_version(), &gvk.kind, &raw);
                    seeds.push([&[0], &wire[..]].concat());
                }
            }
            "merge-patch" | "strategic-patch" | "apply" => {
                seeds.push(format!("{text}\n{text}").into_bytes());
            }
            _ => return seeds,
        }
    }
    seeds
}

struct Outcome {
    name: &'static str,
    inputs: usize,
    faults: Vec<String>,
}

fn run(name: &'static str, target: Target, inputs: usize, seed: u64) -> Outcome {
    let seeds = corpus(name);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut faults = Vec::new();
    for number in 0..inputs {
        let first = &seeds[number % seeds.len()];
        let input = match number / seeds.len() {
            0 => first.clone(),
            _ => mutated(first, &seeds, &mut random),
        };
        let start = Instant::now();
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| target(&input)));
        let slow = start.elapsed() > PATIENCE;
        if result.is_err() || slow {
            let shown =
                base64::engine::general_purpose::STANDARD.encode(&input[..input.len().min(3_000)]);
            let what = if slow { "takes too long" } else { "panics" };
            faults.push(format!("{name} {what} on {} bytes: {shown}", input.len()));
        }
        if faults.len() >= 5 {
            break;
        }
    }
    Outcome {
        name,
        inputs,
        faults,
    }
}

fn mutated(first: &[u8], seeds: &[Vec<u8>], random: &mut SmallRng) -> Vec<u8> {
    let mut input = first.to_vec();
    if random.random_bool(0.1) {
        // The beginning of one, the end of another.
        let second = &seeds[random.random_range(0..seeds.len())];
        input.truncate(random.random_range(0..=input.len()));
        input.extend_from_slice(&second[random.random_range(0..=second.len())..]);
    }
    mutate::scrambled(&input, random)
}

#[test]
fn no_parser_panics() {
    let seed = 20_260_601;
    let inputs = if long() { 100_000 } else { 2_500 };
    // Two at a time, each on a stack like the server's.
    let mut outcomes = Vec::new();
    for pair in TARGETS.chunks(2) {
        let threads: Vec<_> = pair
            .iter()
            .map(|(name, target)| {
                let builder = std::thread::Builder::new().stack_size(STACK);
                let work = move || run(name, *target, inputs, seed);
                builder.spawn(work).unwrap()
            })
            .collect();
        outcomes.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    }
    let total: usize = outcomes.iter().map(|outcome| outcome.inputs).sum();
    let faults: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| &outcome.faults)
        .collect();
    let names: Vec<_> = outcomes.iter().map(|outcome| outcome.name).collect();
    println!(
        "fuzz: {} parsers ({}), {total} inputs, panics and hangs {} (seed {seed})",
        names.len(),
        names.join(", "),
        faults.len()
    );
    assert!(faults.is_empty(), "{faults:#?}");
}
