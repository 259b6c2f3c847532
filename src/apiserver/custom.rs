//! Follows CustomResourceDefinitions: rows come and go with them, their names are accepted or refused, and a
//! definition that is deleted takes its objects with it.
//!
//! A row is there before the writer of its definition is answered: the cache tells of the change first. What has to
//! be written back goes through the pipeline, as the server itself.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use sampan_api::custom::{self, CLEANUP, names};
use sampan_api::meta::{self, at, items, text};
use sampan_api::resource::{Name, Target};
use sampan_api::{Options, Reason, ResourceDef, Status, UserInfo, Verb};
use sampan_client::{Body, Request};
use sampan_util::shutdown::Shutdown;
use sampan_util::task;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::again::{Again, RETRY};
use crate::auth::ObjectChange;
use crate::registry::server::{ApiServer, Core};
use crate::request::{ApiRequest, Pipeline};

const GROUP: &str = "apiextensions.k8s.io";
const KIND: &str = "CustomResourceDefinition";

/// Names of definitions that have changed.
pub(crate) struct Changes(Mutex<Option<UnboundedReceiver<String>>>);

/// Serves the rows of all definitions from now on. Called once for a server, before it answers anybody.
pub(crate) fn follow(core: &Arc<Core>) -> Changes {
    let (sender, receiver) = unbounded_channel();
    let definitions = core.registry.snapshot().by_kind(GROUP, "v1", KIND);
    if let Some(row) = definitions {
        let weak = Arc::downgrade(core);
        core.cache
            .bucket(&row)
            .observe(Arc::new(move |change: &ObjectChange| {
                if let Some(core) = weak.upgrade() {
                    changed(&core, change, &sender);
                }
            }));
    }
    Changes(Mutex::new(Some(receiver)))
}

fn changed(core: &Core, change: &ObjectChange, sender: &UnboundedSender<String>) {
    let parse = |bytes: &Option<bytes::Bytes>| -> Option<Value> {
        serde_json::from_slice(bytes.as_ref()?).ok()
    };
    match parse(&change.new) {
        Some(definition) => {
            let group = text(&definition, &["spec", "group"]);
            let plural = text(&definition, &["status", "acceptedNames", "plural"]);
            let before = core.row(group, plural);
            // To make a row is much work, and nobody writes meanwhile.
            if before.is_none_or(|before| before.is_custom() && !stands_for(&before, &definition))
                && let Some(row) = custom::row(&definition)
            {
                core.add_row(Arc::new(row));
            }
        }
        None => {
            if let Some(old) = parse(&change.old) {
                let names = at(&old, &["spec", "names"]);
                let (group, plural) = (text(&old, &["spec", "group"]), text(names, &["plural"]));
                if !is_builtin(core, group, plural) {
                    core.remove_row(group, plural);
                }
            }
        }
    }
    // Nobody listens any more while the server stops.
    let _told = sender.send(change.name.clone());
}

/// Whether the row is still that of the definition: most changes only concern its conditions.
fn stands_for(row: &ResourceDef, definition: &Value) -> bool {
    let Some(custom) = &row.custom else {
        return false;
    };
    let names = at(definition, &["status", "acceptedNames"]);
    let one = |key: &str, known: &str| text(names, &[key]) == known;
    let all = |key: &str, known: &[Name]| {
        let listed = items(names, &[key]).iter().filter_map(Value::as_str);
        listed.eq(known.iter().map(|name| &**name))
    };
    custom.uid == text(definition, &["metadata", "uid"])
        && Some(custom.generation)
            == meta::integer(definition, &["metadata", "generation"]).or(Some(0))
        && row.allows(Verb::Create) != is_dying(definition)
        && one("kind", &row.kind)
        && one("listKind", &row.list_kind)
        && one("singular", &row.singular)
        && all("shortNames", &row.short_names)
        && all("categories", &row.categories)
}

fn is_dying(definition: &Value) -> bool {
    !at(definition, &["metadata", "deletionTimestamp"]).is_null()
}

/// Whether a definition that is being deleted still waits for its objects.
fn is_held(definition: &Value) -> bool {
    let finalizers = items(definition, &["metadata", "finalizers"]);
    is_dying(definition) && finalizers.iter().any(|one| one == CLEANUP)
}

/// A definition never takes the place of a resource of ours.
fn is_builtin(core: &Core, group: &str, plural: &str) -> bool {
    core.row(group, plural).is_some_and(|row| !row.is_custom())
}

/// Keeps conditions and finalizers of definitions right until shutdown.
pub(crate) async fn run(server: ApiServer, changes: Arc<Changes>, shutdown: Shutdown) {
    let receiver = changes
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(mut receiver) = receiver else {
        return;
    };
    let keeper = Arc::new(Keeper {
        server,
        user: Arc::new(UserInfo::authenticated(
            "system:apiserver",
            &["system:masters"],
        )),
        emptying: Mutex::default(),
        shutdown: shutdown.clone(),
    });
    let mut again = Again::new();
    loop {
        let mut names = tokio::select! {
            () = shutdown.wait() => return,
            name = receiver.recv() => match name {
                Some(name) => BTreeSet::from([name]),
                None => return,
            },
            failed = again.due() => failed,
        };
        // What came meanwhile is looked at together.
        while let Ok(name) = receiver.try_recv() {
            names.insert(name);
        }
        for name in names {
            for failed in keeper.look_at(&name).await {
                again.add(failed);
            }
        }
    }
}

/// Takes a name out of those being emptied, however that ends.
struct Emptying(Arc<Keeper>, String);

impl Drop for Emptying {
    fn drop(&mut self) {
        let mut emptying = self
            .0
            .emptying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        emptying.remove(&self.1);
    }
}

struct Keeper {
    server: ApiServer,
    user: Arc<UserInfo>,
    /// Definitions whose objects are being deleted.
    emptying: Mutex<HashSet<String>>,
    shutdown: Shutdown,
}

impl Keeper {
    /// Returns the definitions that could not be written.
    async fn look_at(self: &Arc<Self>, name: &str) -> Vec<String> {
        let definitions = match self.definition(name) {
            Some(definition) if is_dying(&definition) => {
                if is_held(&definition) {
                    self.begin_emptying(name);
                }
                return Vec::new();
            }
            Some(definition) => vec![definition],
            // Its names are free again.
            None => self.of_group(name.split_once('.').map_or("", |(_, group)| group)),
        };
        let mut failed = Vec::new();
        for definition in definitions {
            if let Err(status) = self.name(&definition).await {
                let name = text(&definition, &["metadata", "name"]).to_owned();
                tracing::error!(definition = name, %status, "cannot write a definition");
                failed.push(name);
            }
        }
        failed
    }

    fn begin_emptying(self: &Arc<Self>, name: &str) {
        let mut emptying = self.emptying.lock().unwrap_or_else(PoisonError::into_inner);
        if emptying.insert(name.to_owned()) {
            let one = Emptying(Arc::clone(self), name.to_owned());
            drop(task::spawn("custom resources", async move {
                one.0.empty(&one.1).await;
            }));
        }
    }

    fn row(&self) -> Option<Arc<ResourceDef>> {
        self.server
            .core()
            .registry
            .snapshot()
            .by_kind(GROUP, "v1", KIND)
    }

    fn definition(&self, name: &str) -> Option<Value> {
        let object = self.server.core().cache.get(&*self.row()?, None, name)?;
        serde_json::from_slice(&object.bytes).ok()
    }

    /// All definitions of a group.
    fn of_group(&self, group: &str) -> Vec<Value> {
        let Some(row) = self.row() else {
            return Vec::new();
        };
        let cache = &self.server.core().cache;
        let suffix = format!(".{group}");
        let snapshot = cache.snapshot(&cache.bucket(&row));
        let all = snapshot
            .map
            .iter_from("")
            .filter(|object| object.name().ends_with(&suffix));
        all.filter_map(|object| serde_json::from_slice::<Value>(&object.bytes).ok())
            .filter(|other| text(other, &["spec", "group"]) == group)
            .collect()
    }

    /// Brings the conditions of a definition in line with its names.
    async fn name(&self, definition: &Value) -> Result<(), Status> {
        let name = text(definition, &["metadata", "name"]);
        let mut others = self.of_group(text(definition, &["spec", "group"]));
        others.retain(|other| text(other, &["metadata", "name"]) != name);
        let Some(status) = names::status(definition, &others, self.server.core().now()) else {
            return Ok(());
        };
        let mut changed = definition.clone();
        changed["status"] = status;
        self.write(changed, Some("status")).await
    }

    async fn write(&self, object: Value, subresource: Option<&'static str>) -> Result<(), Status> {
        let name = text(&object, &["metadata", "name"]).to_owned();
        let Some(row) = self.row() else {
            return Ok(());
        };
        let target = Target {
            resource: row.storage_gvr(),
            namespace: None,
            name: Some(name),
            subresource: subresource.map(Into::into),
        };
        match self.send(Verb::Update, target, Body::Object(object)).await {
            // Whoever changed it made an event, by which it is looked at again.
            Err(status) if status.is(Reason::Conflict) || status.is(Reason::NotFound) => Ok(()),
            result => result,
        }
    }

    async fn send(&self, verb: Verb, target: Target, body: Body) -> Result<(), Status> {
        let request = Request {
            verb,
            target,
            options: Options::default(),
            body,
        };
        let request = ApiRequest::own(self.user.clone(), request);
        self.server.handle(request).await.map(drop)
    }

    /// Deletes the objects of a definition, waits until they are gone, and lets it go.
    async fn empty(&self, name: &str) {
        let mut races = 0;
        while let Some(definition) = self.definition(name).filter(is_held) {
            let group = text(&definition, &["spec", "group"]);
            let plural = text(&definition, &["spec", "names", "plural"]);
            let row = self.server.core().row(group, plural);
            let row = row.filter(|row| row.is_custom());
            if let Some(row) = &row
                && !self.drain(name, row).await
            {
                return;
            }
            match self.release(name, row.as_ref()).await {
                Ok(()) => races += 1,
                Err(status) => {
                    tracing::error!(definition = name, %status, "cannot let a definition go");
                    races = RACES;
                }
            }
            if races >= RACES {
                races = 0;
                tokio::select! {
                    () = self.shutdown.wait() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }

    /// Deletes until nothing is left; `false` if the server stops before.
    async fn drain(&self, name: &str, row: &Arc<ResourceDef>) -> bool {
        let bucket = self.server.core().cache.bucket(row);
        let mut changes = bucket.subscribe();
        loop {
            changes.borrow_and_update();
            if bucket.is_empty() {
                return true;
            }
            if let Err(status) = self.delete_all(row).await {
                tracing::warn!(definition = name, %status, "cannot delete a custom resource");
            }
            if bucket.is_empty() {
                return true;
            }
            // Finalizers of others hold some: a change tells when they go. Failures are tried again.
            tokio::select! {
                () = self.shutdown.wait() => return false,
                changed = changes.changed() => if changed.is_err() { return false },
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn delete_all(&self, row: &Arc<ResourceDef>) -> Result<(), Status> {
        let cache = &self.server.core().cache;
        let snapshot = cache.snapshot(&cache.bucket(row));
        let places: Vec<(Option<String>, String)> = snapshot
            .map
            .iter_from("")
            .map(|object| {
                let namespace = row.is_namespaced().then(|| object.namespace().to_owned());
                (namespace, object.name().to_owned())
            })
            .collect();
        for (namespace, name) in places {
            let target = Target {
                resource: row.storage_gvr(),
                namespace,
                name: Some(name),
                subresource: None,
            };
            match self.send(Verb::Delete, target, Body::None).await {
                Err(status) if !status.is(Reason::NotFound) => return Err(status),
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes our finalizer away. A lost race, or an object that was being made, leaves it there.
    async fn release(&self, name: &str, row: Option<&Arc<ResourceDef>>) -> Result<(), Status> {
        let Some(mut definition) = self.definition(name).filter(is_held) else {
            return Ok(());
        };
        let slot = meta::entry(&mut definition, &["metadata", "finalizers"]);
        if let Some(list) = slot.as_array_mut() {
            list.retain(|one| one != CLEANUP);
        }
        if row.is_some_and(|row| !self.server.core().cache.bucket(row).is_empty()) {
            return Ok(());
        }
        self.write(definition, None).await
    }
}

/// Races lost one after the other before there is a pause.
const RACES: usize = 16;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_made_again_only_for_what_counts() {
        let definition = json!({
            "metadata": {"name": "as.g.example", "uid": "u", "generation": 1},
            "spec": {"group": "g.example", "scope": "Namespaced",
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]},
            "status": {
                "acceptedNames": {"plural": "as", "singular": "a", "kind": "A", "listKind": "AList",
                    "shortNames": ["x"]},
                "conditions": [{"type": "Established", "status": "True"}]},
        });
        let row = custom::row(&definition).unwrap();
        let with = |path: &[&str], value: Value| {
            let mut changed = definition.clone();
            meta::set(&mut changed, path, value);
            stands_for(&row, &changed)
        };
        assert!(stands_for(&row, &definition));
        assert!(with(&["status", "storedVersions"], json!(["v1"])));
        assert!(with(&["metadata", "labels"], json!({"a": "b"})));
        assert!(!with(&["metadata", "uid"], json!("other")));
        assert!(!with(&["metadata", "generation"], json!(2)));
        let at = "2026-01-01T00:00:00Z";
        assert!(!with(&["metadata", "deletionTimestamp"], json!(at)));
        assert!(!with(&["status", "acceptedNames", "kind"], json!("B")));
        let names = ["status", "acceptedNames", "shortNames"];
        assert!(!with(&names, json!(["x", "y"])));
        assert!(!with(&names, json!([])));
    }
}
