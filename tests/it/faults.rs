//! The store on disks that fail: power lost at any moment, syncs that fail or lie, bytes that rot.

mod clock;
mod disk;
mod full;
mod history;
mod lost;
mod vfs;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sampan_store::{Class, Error, SqliteOptions, SqliteStore, Store};

use crate::support::{Scratch, long};
use disk::{Disk, Platter, Unsynced};
use history::{Loaded, Note, Promise, State, Writing};
use vfs::Op;

/// Small limits, so that everything happens often.
fn options(directory: &Path) -> SqliteOptions {
    SqliteOptions {
        history: 30,
        volatile_delay: Duration::from_millis(3),
        volatile_bytes: 30_000,
        reserve: 100,
        idle: Duration::from_millis(5),
        copy_age: Duration::from_secs(1_000_000),
        ballast: 0,
        ..SqliteOptions::new(directory)
    }
}

/// What a workload left: every file operation with marks, what the marks mean, a copy from its middle.
struct Recording {
    ops: Vec<Op>,
    notes: Vec<Note>,
    copy: PathBuf,
    copied_at: usize,
    failures: u32,
}

#[derive(Clone, Copy)]
struct Plan {
    name: &'static str,
    writes: usize,
    volatile: bool,
    /// One sync and one write in so many fail.
    failing: u32,
}

fn record(scratch: &Scratch, seed: u64, plan: Plan) -> Recording {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let recorder = vfs::register(plan.name, seed);
    let directory = scratch.path().join(plan.name);
    let store = SqliteStore::open(SqliteOptions {
        vfs: Some(plan.name.to_owned()),
        ..options(&directory)
    })
    .unwrap();
    store.start(Arc::new(Loaded::default())).unwrap();
    recorder
        .failing_syncs
        .store(plan.failing, std::sync::atomic::Ordering::Relaxed);
    recorder
        .failing_writes
        .store(plan.failing * 5, std::sync::atomic::Ordering::Relaxed);
    let writing = Arc::new(Writing {
        store: Arc::new(store),
        notes: std::sync::Mutex::default(),
        recorder,
    });
    let copy = scratch.path().join(format!("{}.copy", plan.name));
    let copied_at = runtime.block_on(async {
        work(&writing, seed, plan.writes / 2, plan.volatile).await;
        if plan.failing == 0 {
            writing.store.backup(copy.clone()).await.unwrap();
        }
        let at = recorder.ops.lock().unwrap().len();
        work(&writing, !seed, plan.writes / 2, plan.volatile).await;
        at
    });
    let ops = recorder.ops.lock().unwrap().clone();
    let notes = writing.notes.lock().unwrap().clone();
    Recording {
        ops,
        notes,
        copy,
        copied_at,
        failures: recorder.failures.load(std::sync::atomic::Ordering::Relaxed),
    }
}

/// Eight writers with a few objects each, small and large, created, replaced and deleted.
async fn work(writing: &Arc<Writing>, seed: u64, writes: usize, volatile: bool) {
    let mut tasks = Vec::new();
    for task in 0..8_u64 {
        let writing = writing.clone();
        let mut random = SmallRng::seed_from_u64(seed ^ task);
        tasks.push(tokio::spawn(async move {
            for _ in 0..writes / 8 {
                let class = match volatile && random.random_bool(0.4) {
                    true => Class::Volatile,
                    false => Class::Durable,
                };
                let key = format!("/{class:?}/{task}/{}", random.random_range(0..10));
                let size = match random.random_range(0..10) {
                    0 => random.random_range(0..40_000),
                    _ => random.random_range(0..600),
                };
                let value = random.random_bool(0.85).then(|| {
                    let mut bytes = vec![0; size];
                    random.fill(&mut bytes[..]);
                    Bytes::from(bytes)
                });
                let _ = writing.write(&key, value, class).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Where files live in memory if that can be had: thousands of databases are made and thrown away.
fn image_directory(scratch: &Scratch) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let name = scratch.path().file_name().unwrap();
    match memory.is_dir() {
        true => memory.join(name),
        false => scratch.path().join("image"),
    }
}

/// Writes an image to a fresh directory.
fn lay_out(directory: &Path, image: &[Option<Vec<u8>>; 2], copy: Option<&Path>) {
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).unwrap();
    for (name, content) in ["state.db", "state.db-wal"].iter().zip(image) {
        if let Some(content) = content {
            std::fs::write(directory.join(name), content).unwrap();
        }
    }
    if let Some(copy) = copy {
        std::fs::copy(copy, directory.join("state.db.good")).unwrap();
    }
}

struct Opened {
    state: State,
    revision: u64,
    next: u64,
}

/// Opens the image as the server would, loads it and writes once more.
fn open(directory: &Path, runtime: &tokio::runtime::Runtime) -> Result<Opened, Error> {
    let store = SqliteStore::open(options(directory))?;
    let loaded = Arc::new(Loaded::default());
    let revision = store.start(loaded.clone())?;
    let next = runtime.block_on(store.commit(sampan_store::Mutation {
        key: "/after".into(),
        expect: sampan_store::Expect::Any,
        change: sampan_store::Change::Put(Bytes::new()),
        class: Class::Durable,
        attachment: None,
    }))?;
    let state = loaded.state.lock().unwrap().clone();
    Ok(Opened {
        state,
        revision,
        next,
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Moments at which power is lost, in order: where syncs failed, every other one is soon after such a failure.
fn moments(recording: &Recording, cuts: usize, random: &mut SmallRng) -> Vec<usize> {
    let end = recording.ops.len();
    let lost = |(at, op): (usize, &Op)| matches!(op, Op::LostSync { .. }).then_some(at);
    let lost: Vec<usize> = recording.ops.iter().enumerate().filter_map(lost).collect();
    let mut all: Vec<_> = (0..cuts)
        .map(|_| match lost.is_empty() || random.random_bool(0.5) {
            true => random.random_range(0..=end),
            false => {
                (lost[random.random_range(0..lost.len())] + random.random_range(1..100)).min(end)
            }
        })
        .collect();
    all.sort_unstable();
    all
}

fn cut_honestly(
    recording: &Recording,
    cuts: usize,
    seed: u64,
    directory: &Path,
) -> (usize, Vec<String>) {
    let (runtime, mut random) = (runtime(), SmallRng::seed_from_u64(seed));
    let (mut platter, mut promise) = (Platter::new(Disk::Honest), Promise::default());
    let (mut at, mut promised, mut faults) = (0, 0, Vec::new());
    for cut in moments(recording, cuts, &mut random) {
        for op in &recording.ops[at..cut] {
            platter.step(op, &mut random);
            promise.step(op, &recording.notes);
        }
        at = cut;
        promised += promise.acknowledged;
        let unsynced =
            [Unsynced::Gone, Unsynced::Written, Unsynced::Mixed][random.random_range(0..3)];
        lay_out(directory, &platter.cut(unsynced, &mut random), None);
        match open(directory, &runtime) {
            Err(error) => faults.push(format!("cut at {cut}: {error}")),
            Ok(opened) => {
                let broken = promise.broken(&opened.state).into_iter();
                faults.extend(broken.map(|text| format!("cut at {cut}: {text}")));
                if opened.revision < promise.newest || opened.next <= promise.newest {
                    let (next, newest) = (opened.next, promise.newest);
                    faults.push(format!("cut at {cut}: {next} after {newest}"));
                }
            }
        }
    }
    let _ = std::fs::remove_dir_all(directory);
    (promised, faults)
}

#[test]
fn power_cuts_lose_nothing_acknowledged() {
    let scratch = Scratch::new("cuts");
    let seed: u64 = rand::random();
    let (writes, cuts) = if long() {
        (12_000, 6_000)
    } else {
        (4_000, 400)
    };
    for (name, failing) in [("honest", 0), ("failing", 40)] {
        let plan = Plan {
            name,
            writes,
            volatile: true,
            failing,
        };
        let recording = record(&scratch, seed, plan);
        let syncs = |op: &&Op| matches!(op, Op::Sync { .. });
        let syncs = recording.ops.iter().filter(syncs).count();
        let (promised, faults) = cut_honestly(&recording, cuts, seed, &image_directory(&scratch));
        println!(
            "power cuts ({name} disk): {cuts} cuts in {} file operations with {syncs} syncs and {} injected failures, \
             acknowledged writes checked {promised}, lost {} (seed {seed})",
            recording.ops.len(),
            recording.failures,
            faults.len()
        );
        assert!(faults.is_empty(), "{:#?}", &faults[..faults.len().min(20)]);
        assert!(promised > cuts && (recording.failures > 0) == (failing > 0));
    }
}

#[derive(Default)]
struct Outcomes {
    newest: usize,
    older: usize,
    copy: usize,
    refused: usize,
    faults: Vec<String>,
}

impl Outcomes {
    /// What opening made of a damaged image: a state that once existed as a whole, the copy, or a refusal.
    fn judge(
        &mut self,
        opened: Result<Opened, Error>,
        states: &std::collections::BTreeMap<u64, State>,
        copied: Option<&State>,
        newest: u64,
        what: &str,
    ) {
        let opened = match opened {
            Ok(opened) => opened,
            Err(Error::Corrupt { what, .. }) if what.contains("Restore a backup") => {
                self.refused += 1;
                return;
            }
            Err(error) => return self.faults.push(format!("{what}: {error}")),
        };
        if opened.revision > newest + 1_000_000 {
            self.copy += 1;
            if copied != Some(&opened.state) {
                self.faults.push(format!("{what}: the copy is wrong"));
            }
            return;
        }
        let last = opened.state.values().map(|(revision, _)| *revision).max();
        let found = states
            .range(last.unwrap_or(0)..)
            .find(|(_, state)| **state == opened.state);
        match found {
            Some((revision, _)) if *revision >= newest => self.newest += 1,
            Some(_) => self.older += 1,
            None => self.faults.push(format!("{what}: a state that never was")),
        }
    }
}

#[test]
fn a_lying_disk_or_rotten_bytes_are_never_served() {
    let scratch = Scratch::new("lies");
    let seed: u64 = rand::random();
    let (writes, cuts) = if long() {
        (12_000, 6_000)
    } else {
        (4_000, 400)
    };
    let plan = Plan {
        name: "lying",
        writes,
        volatile: false,
        failing: 0,
    };
    let recording = record(&scratch, seed, plan);
    let states = history::states(&recording.notes);
    let copied = copied_state(&recording, &states);
    let directory = image_directory(&scratch);
    let (runtime, mut random) = (runtime(), SmallRng::seed_from_u64(seed));
    let (mut lies, mut rot) = (Outcomes::default(), Outcomes::default());
    let (mut liar, mut honest) = (Platter::new(Disk::Lying), Platter::new(Disk::Honest));
    let (mut at, mut promise) = (0, Promise::default());
    for cut in moments(&recording, cuts, &mut random) {
        for op in &recording.ops[at..cut] {
            liar.step(op, &mut random);
            honest.step(op, &mut random);
            promise.step(op, &recording.notes);
        }
        at = cut;
        let has_copy = cut >= recording.copied_at && random.random_bool(0.75);
        let copy = has_copy.then_some(&*recording.copy);
        let judge = |outcomes: &mut Outcomes, image: &disk::Image, what: &str| {
            lay_out(&directory, image, copy);
            let opened = open(&directory, &runtime);
            let what = format!("{what}, cut at {cut}");
            outcomes.judge(opened, &states, Some(&copied), promise.newest, &what);
        };
        let image = liar.cut(Unsynced::Mixed, &mut random);
        judge(&mut lies, &image, "lie");
        let mut image = honest.cut(Unsynced::Written, &mut random);
        damage(&mut image, &mut random);
        judge(&mut rot, &image, "rot");
    }
    let _ = std::fs::remove_dir_all(&directory);
    for (name, outcomes) in [("syncs that lie", &lies), ("rotten bytes", &rot)] {
        println!(
            "{name}: {cuts} cuts, opened with the newest state {}, with an older whole state {}, \
             from the last good copy {}, refused with advice {}, broken data served {} (seed {seed})",
            outcomes.newest,
            outcomes.older,
            outcomes.copy,
            outcomes.refused,
            outcomes.faults.len()
        );
        let faults = &outcomes.faults;
        assert!(faults.is_empty(), "{:#?}", &faults[..faults.len().min(20)]);
        assert!(outcomes.copy > 0 && outcomes.refused > 0);
    }
}

/// The state that the copy holds.
fn copied_state(recording: &Recording, states: &std::collections::BTreeMap<u64, State>) -> State {
    let before = Promise::of(&recording.ops[..recording.copied_at], &recording.notes);
    states[&before.newest].clone()
}

/// Changes a few bytes of the files at random places.
fn damage(image: &mut [Option<Vec<u8>>; 2], random: &mut SmallRng) {
    for content in image
        .iter_mut()
        .flatten()
        .filter(|content| !content.is_empty())
    {
        for _ in 0..random.random_range(1..8) {
            let at = random.random_range(0..content.len());
            let end = (at + random.random_range(1..600)).min(content.len());
            random.fill(&mut content[at..end]);
        }
    }
}
