//! The writers: each owns its objects, so that what it was told can be compared with what is there.

use std::sync::{Arc, Mutex};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sampan_client::Error;
use serde_json::{Value, json};
use tokio::sync::{RwLock, watch};

use super::promises::{Faults, Id, Promises};
use crate::support::rest::{CONFIG_MAPS, EVENTS, LEASES, Plural, Rest, SECRETS, revision};

/// What all writers share.
#[derive(Clone)]
pub struct Load {
    pub rest: Rest,
    pub promises: Arc<Mutex<Promises>>,
    pub faults: Arc<Mutex<Faults>>,
    /// Held by every writer as long as the server lives; closed while results are compared.
    pub gate: Arc<RwLock<()>>,
}

/// Whether the writer can go on in this life of the server.
type Alive = bool;

impl Load {
    fn fault(&self, faults: Faults) {
        self.faults.lock().unwrap().extend(faults);
    }

    /// Notes how a request that was noted as sent has ended.
    fn ended(&self, id: &Id, result: Result<Value, Error>, durable: bool, deletes: bool) -> Alive {
        let mut promises = self.promises.lock().unwrap();
        match result {
            Ok(answer) => {
                let at = (!deletes).then(|| revision(&answer));
                self.fault(promises.acknowledge(id, at, durable));
                true
            }
            Err(error) if definite(&error) => {
                promises.refused(id);
                self.fault(vec![format!("{id:?}: {error}")]);
                true
            }
            Err(_) => {
                promises.unanswered();
                false
            }
        }
    }

    fn sent(&self, id: &Id, state: Option<String>) {
        self.promises.lock().unwrap().sent(id, state);
    }

    fn state(&self, id: &Id) -> Option<(u64, String)> {
        self.promises.lock().unwrap().state(id)
    }

    async fn put(&self, id: &Id, object: Value, durable: bool) -> Alive {
        let (plural, name) = id;
        let exists = !object["metadata"]["resourceVersion"].is_null();
        self.sent(id, Some(content(*plural, &object)));
        let result = match exists {
            true => self.rest.update(*plural, name, object).await,
            false => self.rest.create(*plural, object).await,
        };
        self.ended(id, result, durable, false)
    }

    /// One random change of a durable object.
    async fn change(&self, id: &Id, random: &mut SmallRng) -> Alive {
        let text = format!("{:016x}", random.random::<u64>());
        let size = if random.random_bool(0.05) {
            60_000
        } else {
            200
        };
        let object = |at: Option<u64>| data(id, at, &text, size);
        match (self.state(id), random.random_range(0..10)) {
            (None, _) => self.put(id, object(None), true).await,
            (Some(_), 0 | 1) => {
                self.sent(id, None);
                let result = self.rest.delete(id.0, &id.1).await;
                self.ended(id, result, true, true)
            }
            (Some((at, _)), 2) => {
                let stale = object(Some(at.saturating_sub(1).max(1)));
                match self.rest.update(id.0, &id.1, stale).await {
                    Err(error) if error.is_conflict() => {
                        self.promises.lock().unwrap().conflicts += 1;
                        true
                    }
                    Err(error) if !definite(&error) => false,
                    other => {
                        self.fault(vec![format!("a stale update of {id:?}: {other:?}")]);
                        true
                    }
                }
            }
            (Some((at, _)), _) => self.put(id, object(Some(at)), true).await,
        }
    }

    /// Several writers raise one number by compare-and-set.
    async fn raise(&self, id: &Id, raised: &Mutex<Vec<u64>>) -> Alive {
        let current = match self.rest.get(id.0, &id.1).await {
            Ok(object) => object,
            Err(error) if error.is_not_found() => {
                let made = self.rest.create(id.0, data(id, None, "0", 0)).await;
                return made.is_ok() || made.is_err_and(|error| definite(&error));
            }
            Err(error) => return definite(&error),
        };
        let next = current["data"]["k"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            + 1;
        let object = data(id, Some(revision(&current)), &next.to_string(), 0);
        match self.rest.update(id.0, &id.1, object).await {
            Ok(answer) => {
                let mut promises = self.promises.lock().unwrap();
                promises.durable += 1;
                promises.shown(revision(&answer));
                raised.lock().unwrap().push(next);
                true
            }
            Err(error) if error.is_conflict() => {
                self.promises.lock().unwrap().conflicts += 1;
                true
            }
            Err(error) => definite(&error),
        }
    }
}

/// The server answered, and nothing was changed.
fn definite(error: &Error) -> bool {
    !error.is_uncertain() && error.status().is_some_and(|status| status.code < 500)
}

fn data(id: &Id, at: Option<u64>, text: &str, size: usize) -> Value {
    let (plural, name) = id;
    let kind = if *plural == SECRETS {
        "Secret"
    } else {
        "ConfigMap"
    };
    let field = if *plural == SECRETS {
        "stringData"
    } else {
        "data"
    };
    let mut object = json!({"kind": kind, "apiVersion": "v1", "metadata": {"name": name}});
    object[field] = json!({"k": text});
    if size > 0 {
        object[field]["fill"] = json!(text.chars().cycle().take(size).collect::<String>());
    }
    if let Some(at) = at {
        object["metadata"]["resourceVersion"] = json!(at.to_string());
    }
    object
}

/// What is compared: the part of an object that its writer chose.
pub fn content(plural: Plural, object: &Value) -> String {
    use base64::Engine as _;
    let encode = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        base64::engine::general_purpose::STANDARD.encode(text)
    };
    match plural {
        SECRETS => match object.get("stringData") {
            Some(plain) => format!("{} {}", encode(&plain["k"]), encode(&plain["fill"])),
            None => format!(
                "{} {}",
                object["data"]["k"].as_str().unwrap_or_default(),
                object["data"]["fill"].as_str().unwrap_or_default()
            ),
        },
        CONFIG_MAPS => format!("{} {}", object["data"]["k"], object["data"]["fill"]),
        EVENTS => object["message"].to_string(),
        // A renewal is volatile, the holder is not.
        _ => object["spec"]["holderIdentity"].to_string(),
    }
}

fn event(name: &str, number: u64) -> Value {
    json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": name}, "reason": "Test",
        "message": format!("number {number}"), "type": "Normal",
        "involvedObject": {"kind": "ConfigMap", "apiVersion": "v1", "name": "x", "namespace": "crash"}})
}

fn lease(name: &str, at: Option<u64>, holder: &str, number: u64) -> Value {
    let mut object = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": name}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 40,
        "renewTime": format!("2030-01-01T00:00:00.{:06}Z", number % 1_000_000)}});
    if let Some(at) = at {
        object["metadata"]["resourceVersion"] = json!(at.to_string());
    }
    object
}

/// Waits for a life of the server; `None` when the test is over.
async fn next_life(life: &mut watch::Receiver<u64>, seen: u64) -> Option<u64> {
    let found = life.wait_for(|life| *life > seen).await.ok()?;
    Some(*found)
}

/// Changes its own few objects at random, one request after the other.
pub async fn durable(load: Load, plural: Plural, seed: u64, mut life: watch::Receiver<u64>) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut seen = 0;
    while let Some(now) = next_life(&mut life, seen).await {
        seen = now;
        let _open = load.gate.read().await;
        loop {
            let name = format!("w{seed:x}-{}", random.random_range(0..6));
            if !load.change(&(plural, name), &mut random).await {
                break;
            }
        }
    }
}

pub async fn hot(load: Load, raised: Arc<Mutex<Vec<u64>>>, mut life: watch::Receiver<u64>) {
    let id = (CONFIG_MAPS, "hot".to_owned());
    let mut seen = 0;
    while let Some(now) = next_life(&mut life, seen).await {
        seen = now;
        let _open = load.gate.read().await;
        while load.raise(&id, &raised).await {}
    }
}

/// Events and renewals of a Lease; now and then the Lease gets another holder, which must last.
pub async fn volatile(load: Load, seed: u64, mut life: watch::Receiver<u64>) {
    let (mut seen, mut number) = (0, 0_u64);
    let lease_id = (LEASES, format!("l{seed:x}"));
    while let Some(now) = next_life(&mut life, seen).await {
        seen = now;
        let _open = load.gate.read().await;
        loop {
            number += 1;
            let event_id = (EVENTS, format!("e{seed:x}-{number}"));
            if !load.put(&event_id, event(&event_id.1, number), false).await {
                break;
            }
            let state = load.state(&lease_id);
            let holder = format!("holder-{}", number / 10);
            let durable = state
                .as_ref()
                .is_none_or(|(_, current)| *current != format!("\"{holder}\""));
            let at = state.map(|(at, _)| at);
            let object = lease(&lease_id.1, at, &holder, number);
            if !load.put(&lease_id, object, durable).await {
                break;
            }
        }
    }
}
