//! Follows CustomResourceDefinitions: rows come and go with them, their names are accepted or refused, and a
//! definition that is deleted takes its objects with it.
//!
//! A row is there before the writer of its definition is answered: the cache tells of the change first. What has to
//! be written back goes through the pipeline, as the server itself.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sampan_api::custom::{self, CLEANUP, names};
use sampan_api::meta::{self, at, items, text};
use sampan_api::resource::Target;
use sampan_api::{Options, Reason, ResourceDef, Status, UserInfo, Verb};
use sampan_client::{Body, Request};
use sampan_util::shutdown::Shutdown;
use sampan_util::task;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

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
            if let Some(row) = custom::row(&definition) {
                let before = core.row(row.group(), &row.plural);
                if before.is_none_or(|before| before.is_custom() && !is_same(&before, &row)) {
                    core.add_row(Arc::new(row));
                }
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

/// Whether both rows say the same: most changes of a definition only concern its status.
fn is_same(a: &ResourceDef, b: &ResourceDef) -> bool {
    let state = |row: &ResourceDef| {
        let custom = row.custom.as_ref();
        custom.map(|custom| (custom.uid.clone(), custom.generation))
    };
    state(a) == state(b)
        && a.verbs == b.verbs
        && (&a.kind, &a.list_kind, &a.singular) == (&b.kind, &b.list_kind, &b.singular)
        && (&a.short_names, &a.categories) == (&b.short_names, &b.categories)
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
    loop {
        let name = tokio::select! {
            () = shutdown.wait() => return,
            name = receiver.recv() => name,
        };
        let Some(name) = name else {
            return;
        };
        // What came meanwhile is looked at together.
        let mut names = BTreeSet::from([name]);
        while let Ok(name) = receiver.try_recv() {
            names.insert(name);
        }
        for name in names {
            keeper.look_at(&name).await;
        }
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
    async fn look_at(self: &Arc<Self>, name: &str) {
        let Some(definition) = self.definition(name) else {
            // Its names are free again.
            let group = name.split_once('.').map_or("", |(_, group)| group);
            for other in self.of_group(group) {
                self.name(&other).await;
            }
            return;
        };
        if at(&definition, &["metadata", "deletionTimestamp"]).is_null() {
            self.name(&definition).await;
            return;
        }
        let held = items(&definition, &["metadata", "finalizers"])
            .iter()
            .any(|one| one == CLEANUP);
        let mut emptying = self.emptying.lock().unwrap_or_else(PoisonError::into_inner);
        if held && emptying.insert(name.to_owned()) {
            let (this, name) = (Arc::clone(self), name.to_owned());
            drop(task::spawn("custom resources", async move {
                this.empty(&name).await;
                this.emptying
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(&name);
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
    async fn name(&self, definition: &Value) {
        let name = text(definition, &["metadata", "name"]);
        let mut others = self.of_group(text(definition, &["spec", "group"]));
        others.retain(|other| text(other, &["metadata", "name"]) != name);
        let Some(status) = names::status(definition, &others, self.server.core().now()) else {
            return;
        };
        let mut changed = definition.clone();
        changed["status"] = status;
        self.write(changed, Some("status")).await;
    }

    async fn write(&self, object: Value, subresource: Option<&'static str>) {
        let name = text(&object, &["metadata", "name"]).to_owned();
        let Some(row) = self.row() else {
            return;
        };
        let target = Target {
            resource: row.storage_gvr(),
            namespace: None,
            name: Some(name.clone()),
            subresource: subresource.map(Into::into),
        };
        match self.send(Verb::Update, target, Body::Object(object)).await {
            Ok(()) => {}
            // Whoever changed it made an event, by which it is looked at again.
            Err(status) if status.is(Reason::Conflict) || status.is(Reason::NotFound) => {}
            Err(status) => tracing::error!(definition = name, %status, "cannot write a definition"),
        }
    }

    async fn send(&self, verb: Verb, target: Target, body: Body) -> Result<(), Status> {
        let request = ApiRequest {
            user: self.user.clone(),
            user_agent: "kube-apiserver".to_owned(),
            strict_errors: Vec::new(),
            request: Request {
                verb,
                target,
                options: Options::default(),
                body,
            },
        };
        self.server.handle(request).await.map(drop)
    }

    /// Deletes the objects of a definition, waits until they are gone, and lets it go.
    async fn empty(&self, name: &str) {
        let Some(definition) = self.definition(name) else {
            return;
        };
        let group = text(&definition, &["spec", "group"]);
        let plural = text(&definition, &["spec", "names", "plural"]);
        let row = self
            .server
            .core()
            .row(group, plural)
            .filter(|row| row.is_custom());
        if let Some(row) = row {
            let bucket = self.server.core().cache.bucket(&row);
            let mut changes = bucket.subscribe();
            loop {
                changes.borrow_and_update();
                if bucket.is_empty() {
                    break;
                }
                if let Err(status) = self.delete_all(&row).await {
                    tracing::warn!(definition = name, %status, "cannot delete a custom resource");
                }
                if bucket.is_empty() {
                    break;
                }
                // Finalizers of others hold some: a change tells when they go. Failures are tried again.
                tokio::select! {
                    () = self.shutdown.wait() => return,
                    changed = changes.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
        self.release(name).await;
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

    async fn release(&self, name: &str) {
        for _ in 0..RACES {
            let Some(mut definition) = self.definition(name) else {
                return;
            };
            let slot = meta::entry(&mut definition, &["metadata", "finalizers"]);
            let Some(list) = slot.as_array_mut() else {
                return;
            };
            list.retain(|one| one != CLEANUP);
            self.write(definition, None).await;
            let held = |definition: Value| {
                items(&definition, &["metadata", "finalizers"])
                    .iter()
                    .any(|one| one == CLEANUP)
            };
            if !self.definition(name).is_some_and(held) {
                return;
            }
        }
    }
}

/// A deletion that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(5);
/// Races lost before a definition is left as it is.
const RACES: usize = 16;
