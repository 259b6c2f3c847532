//! `sampan server` is killed at random moments under load: what it acknowledged is there afterwards.

mod load;
mod promises;
mod watcher;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::long;
use crate::support::process::ControlPlane;
use crate::support::rest::{CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, Rest, SECRETS, revision};
use load::{Load, content};
use promises::{Faults, Promises};
use watcher::{Seen, Watcher};

const NAMESPACE: &str = "crash";

/// Everything that goes on beside the server.
struct Storm {
    load: Load,
    raised: Arc<Mutex<Vec<u64>>>,
    seen: Vec<(crate::support::rest::Plural, Arc<Mutex<Seen>>)>,
    life: watch::Sender<u64>,
}

impl Storm {
    fn begin(rest: &Rest, seed: u64) -> Self {
        let load = Load {
            rest: rest.clone(),
            promises: Arc::default(),
            faults: Arc::default(),
            gate: Arc::default(),
        };
        let storm = Self {
            load,
            raised: Arc::default(),
            seen: Vec::new(),
            life: watch::Sender::new(0),
        };
        storm.start_writers(seed);
        storm.start_watchers()
    }

    fn start_writers(&self, seed: u64) {
        let life = || self.life.subscribe();
        for (number, plural) in [CONFIG_MAPS, CONFIG_MAPS, CONFIG_MAPS, SECRETS]
            .into_iter()
            .enumerate()
        {
            let seed = (seed & 0xffff_ff00) + number as u64;
            tokio::spawn(load::durable(self.load.clone(), plural, seed, life()));
        }
        for number in 0..2 {
            tokio::spawn(load::hot(self.load.clone(), self.raised.clone(), life()));
            tokio::spawn(load::volatile(self.load.clone(), number, life()));
        }
    }

    fn start_watchers(mut self) -> Self {
        for plural in [CONFIG_MAPS, SECRETS, EVENTS, LEASES] {
            for seconds in [None, Some(1)] {
                let seen = Arc::new(Mutex::new(Seen::default()));
                self.seen.push((plural, seen.clone()));
                let watcher = Watcher {
                    plural,
                    seen,
                    seconds,
                };
                tokio::spawn(watcher.run(self.load.rest.clone(), self.life.subscribe()));
            }
        }
        self
    }

    /// Compares every resource with what was promised. No writer runs.
    async fn verify(&self) -> Faults {
        let mut faults = Faults::new();
        for (plural, volatile) in [
            (CONFIG_MAPS, false),
            (SECRETS, false),
            (EVENTS, true),
            (LEASES, false),
        ] {
            let list = self.load.rest.list(plural).await.unwrap();
            let mut promises = self.load.promises.lock().unwrap();
            let at: u64 = list.resource_version.parse().unwrap();
            if at < promises.newest {
                faults.push(format!("a list at {at} after {}", promises.newest));
            }
            promises.shown(at);
            let mut found = BTreeMap::new();
            for item in &list.items {
                let object: Value = serde_json::from_slice(item).unwrap();
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                found.insert(name, (revision(&object), content(plural, &object)));
            }
            match plural {
                LEASES => faults.extend(check_leases(&mut promises, &found)),
                _ => faults.extend(promises.check(plural, &found, volatile)),
            }
        }
        faults.extend(self.verify_hot().await);
        faults
    }

    /// The number that all raise is at least as high as the highest acknowledged one.
    async fn verify_hot(&self) -> Faults {
        let id = (CONFIG_MAPS, "hot".to_owned());
        let mut raised = self.raised.lock().unwrap().clone();
        let count = raised.len();
        raised.sort_unstable();
        raised.dedup();
        let mut faults = Faults::new();
        if raised.len() != count {
            faults.push("two compare-and-sets made the same number".to_owned());
        }
        let Some(highest) = raised.last() else {
            return faults;
        };
        let object = self.load.rest.get(id.0, &id.1).await.unwrap();
        let value: u64 = object["data"]["k"].as_str().unwrap().parse().unwrap();
        if value < *highest {
            faults.push(format!("the number is {value}, {highest} was acknowledged"));
        }
        faults
    }
}

/// The holder lasts; the renewal, and so the revision, may be an earlier one.
fn check_leases(promises: &mut Promises, found: &BTreeMap<String, (u64, String)>) -> Faults {
    let expected: BTreeMap<_, _> = found
        .iter()
        .map(|(name, (at, holder))| {
            let known = promises.state(&(LEASES, name.clone()));
            let kept = known.as_ref().is_some_and(|(_, known)| known == holder);
            let at = known.filter(|_| kept).map_or(*at, |(at, _)| at);
            (name.clone(), (at, holder.clone()))
        })
        .collect();
    let faults = promises.check(LEASES, &expected, false);
    // From now on with the revisions that are really there.
    promises.check(LEASES, found, true);
    faults
}

async fn make_namespace(rest: &Rest) {
    let namespace =
        json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}});
    rest.create(NAMESPACES, namespace).await.unwrap();
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(storm(if long() { 200 } else { 25 }));
}

async fn storm(kills: u64) {
    let seed: u64 = rand::random();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut plane = ControlPlane::start(&[]);
    let rest = Rest::admin(&plane, NAMESPACE);
    make_namespace(&rest).await;
    let storm = Storm::begin(&rest, seed);
    let mut faults = Faults::new();
    let mut slowest = Duration::ZERO;
    for kill in 1..=kills {
        storm.life.send_replace(kill);
        tokio::time::sleep(Duration::from_millis(random.random_range(50..1_000))).await;
        plane.sampan.kill();
        storm.life.send_replace(0);
        let closed = storm.load.gate.write().await;
        // Some lives end before they have begun.
        if random.random_bool(0.2) {
            plane.start_again();
            tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
            plane.sampan.kill();
        }
        let start = Instant::now();
        plane.start_again();
        rest.ready(Duration::from_secs(30)).await.unwrap();
        slowest = slowest.max(start.elapsed());
        faults.extend(storm.verify().await);
        drop(closed);
    }
    report(&storm, kills, seed, slowest, faults);
}

fn report(storm: &Storm, kills: u64, seed: u64, slowest: Duration, mut faults: Faults) {
    let lost = faults.len();
    faults.extend(storm.load.faults.lock().unwrap().drain(..));
    let promises = storm.load.promises.lock().unwrap();
    let (mut events, mut expired, mut resumed) = (0, 0, 0);
    for (plural, seen) in &storm.seen {
        let mut seen = seen.lock().unwrap();
        faults.append(&mut seen.faults);
        let known = promises.by_resource.get(plural);
        faults.extend(seen.gaps(known.map_or(&[][..], Vec::as_slice)));
        events += seen.events;
        expired += seen.expired;
        resumed += seen.resumed;
    }
    println!(
        "kill -9 under load: kills {kills}, acknowledged writes {} durable and {} volatile, unanswered {}, \
         conflicts {}, lost {lost}, watch events {events} in {resumed} watches, 410s {expired}, other faults {}, \
         newest revision {}, slowest start {} ms (seed {seed})",
        promises.durable,
        promises.volatile,
        promises.uncertain,
        promises.conflicts,
        faults.len() - lost,
        promises.newest,
        slowest.as_millis()
    );
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(promises.durable > kills && promises.volatile > kills && promises.conflicts > 0);
    assert!(events > kills && expired > 0 && resumed > expired);
}
