//! `/healthz`, `/livez` and `/readyz`: named checks, each as a path of its own and all in a list.
//!
//! [`Health::tell`] adds lines to `/readyz?verbose` that count for nothing: how other parts of the process are doing.

use std::sync::{Arc, PoisonError, RwLock};

use http::{Response, StatusCode};
use sampan_net::Body;

use crate::http::query::Query;
use crate::http::respond::text_response;

/// `Err` says why; the reason is logged and not told.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Where a check counts: readiness always, liveness only if a restart could help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    ReadyOnly,
    LiveAndReady,
}

/// Names and states of what is told but does not count. Unlike a check's, the reason is told.
pub type Told = Arc<dyn Fn() -> Vec<(String, Result<(), String>)> + Send + Sync>;

/// All checks of the process; cheap to clone.
#[derive(Clone, Default)]
pub struct Health(Arc<RwLock<Checks>>);

#[derive(Default)]
struct Checks {
    entries: Vec<Entry>,
    told: Vec<Told>,
}

#[derive(Clone)]
struct Entry {
    name: String,
    scope: Scope,
    check: Check,
}

impl Health {
    /// With the check that always passes.
    pub fn new() -> Self {
        let health = Self::default();
        health.add("ping", Scope::LiveAndReady, Arc::new(|| Ok(())));
        health
    }

    pub fn add(&self, name: &str, scope: Scope, check: Check) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .entries
            .push(Entry {
                name: name.to_owned(),
                scope,
                check,
            });
    }

    /// Shows this in `/readyz?verbose`, and each name as a path below `/readyz`, whatever it says.
    pub fn tell(&self, told: Told) {
        let mut checks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        checks.told.push(told);
    }

    /// Whether all readiness checks pass.
    pub fn is_ready(&self) -> bool {
        self.entries("readyz")
            .iter()
            .all(|entry| (entry.check)().is_ok())
    }

    fn entries(&self, endpoint: &str) -> Vec<Entry> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .entries
            .iter()
            .filter(|entry| endpoint == "readyz" || entry.scope == Scope::LiveAndReady)
            .cloned()
            .collect()
    }

    /// What a check or something told says now, by its name; `None` if there is no such name.
    pub fn state(&self, name: &str) -> Option<Result<(), String>> {
        let entries = self.entries("readyz");
        let checked = entries.iter().find(|entry| entry.name == name);
        let told = || {
            self.told("readyz")
                .into_iter()
                .find(|(told, _)| told == name)
        };
        let state = checked.map(|entry| (entry.check)());
        state.or_else(|| told().map(|(_, state)| state))
    }

    fn told(&self, endpoint: &str) -> Vec<(String, Result<(), String>)> {
        if endpoint != "readyz" {
            return Vec::new();
        }
        let checks = self.0.read().unwrap_or_else(PoisonError::into_inner);
        checks.told.iter().flat_map(|source| source()).collect()
    }

    /// Answers `/ENDPOINT` and `/ENDPOINT/CHECK`; `None` if there is no such path.
    pub fn answer(&self, path: &str, query: &Query) -> Option<Response<Body>> {
        let path = path.strip_prefix('/')?;
        let (endpoint, check) = match path.split_once('/') {
            Some((endpoint, check)) => (endpoint, Some(check)),
            None => (path, None),
        };
        if !matches!(endpoint, "healthz" | "livez" | "readyz") {
            return None;
        }
        let entries = self.entries(endpoint);
        let told = self.told(endpoint);
        let Some(name) = check else {
            return Some(list(endpoint, &entries, &told, query));
        };
        let known = entries.iter().any(|entry| entry.name == name)
            || told.iter().any(|(told, _)| told == name);
        known.then(|| self.state(name)).flatten().map(single)
    }
}

fn single(state: Result<(), String>) -> Response<Body> {
    match state {
        Ok(()) => text_response(StatusCode::OK, "ok"),
        Err(why) => text_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {why}\n"),
        ),
    }
}

fn list(
    endpoint: &str,
    entries: &[Entry],
    told: &[(String, Result<(), String>)],
    query: &Query,
) -> Response<Body> {
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut text = String::new();
    let mut failed = false;
    for entry in entries {
        let name = &entry.name;
        if excluded.contains(&name.as_str()) {
            text.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        match (entry.check)() {
            Ok(()) => text.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                tracing::info!(check = name, why, "{endpoint} check failed");
                failed = true;
                text.push_str(&format!("[-]{name} failed: reason withheld\n"));
            }
        }
    }
    for (name, state) in told {
        match state {
            Ok(()) => text.push_str(&format!("[+]{name} ok\n")),
            Err(why) => text.push_str(&format!("[-]{name} failed: {why}\n")),
        }
    }
    if failed {
        text.push_str(&format!("{endpoint} check failed\n"));
        return text_response(StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    if !query.pairs().iter().any(|(key, _)| key == "verbose") {
        return text_response(StatusCode::OK, "ok");
    }
    text.push_str(&format!("{endpoint} check passed\n"));
    text_response(StatusCode::OK, text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::BodyExt as _;

    use super::*;

    async fn ask(health: &Health, path: &str, query: &str) -> Option<(u16, String)> {
        let answer = health.answer(path, &Query::parse(query))?;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Some((code, String::from_utf8(body.to_vec()).unwrap()))
    }

    #[tokio::test]
    async fn checks() {
        let health = Health::new();
        let good = Arc::new(AtomicBool::new(true));
        let state = Arc::clone(&good);
        let check: Check = Arc::new(move || match state.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("broken".to_owned()),
        });
        health.add("etcd", Scope::ReadyOnly, check);
        let text = |code: u16, text: &str| Some((code, text.to_owned()));
        assert_eq!(ask(&health, "/readyz", "").await, text(200, "ok"));
        assert_eq!(
            ask(&health, "/readyz", "verbose").await,
            text(200, "[+]ping ok\n[+]etcd ok\nreadyz check passed\n")
        );
        assert_eq!(ask(&health, "/livez/etcd", "").await, None);
        assert_eq!(ask(&health, "/readyz/", "").await, None);
        good.store(false, Ordering::Relaxed);
        assert_eq!(
            ask(&health, "/readyz", "").await,
            text(
                500,
                "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"
            )
        );
        assert_eq!(ask(&health, "/livez", "").await, text(200, "ok"));
        assert_eq!(
            ask(&health, "/readyz", "verbose&exclude=etcd").await,
            text(
                200,
                "[+]ping ok\n[+]etcd excluded: ok\nreadyz check passed\n"
            )
        );
        assert!(!health.is_ready());
    }

    #[tokio::test]
    async fn what_is_told_does_not_count() {
        let health = Health::new();
        let parts = || {
            let down = Err("it panicked".to_owned());
            vec![("part/a".to_owned(), Ok(())), ("part/b".to_owned(), down)]
        };
        health.tell(Arc::new(parts));
        let text = |code: u16, text: &str| Some((code, text.to_owned()));
        assert_eq!(ask(&health, "/readyz", "").await, text(200, "ok"));
        assert_eq!(
            ask(&health, "/readyz", "verbose").await,
            text(
                200,
                "[+]ping ok\n[+]part/a ok\n[-]part/b failed: it panicked\nreadyz check passed\n"
            )
        );
        assert_eq!(ask(&health, "/readyz/part/a", "").await, text(200, "ok"));
        let down = ask(&health, "/readyz/part/b", "").await;
        assert_eq!(down, text(500, "internal server error: it panicked\n"));
        assert_eq!(ask(&health, "/livez/part/b", "").await, None);
        assert!(health.is_ready());
    }
}
