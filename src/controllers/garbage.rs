//! The garbage collector: objects whose owners are gone go too.
//!
//! Follows the metadata of every resource that can be deleted, keeps who owns whom in a [`Graph`],
//! and acts on the server's word: before it deletes anything it reads the object and each owner it
//! does not know from the server. It also ends foreground deletion (an owner goes after those
//! dependents that block it) and orphaning (dependents are let go before their owner). The set of
//! resources changes at run time, objects are untyped: hence no
//! [`Controller`](crate::runtime::Controller), but its own functions on the same queue (decision record 51).

mod collector;
mod graph;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sampan_api::{GroupVersionResource, Meta, ResourceDef, Target, Verb};
use sampan_client::reflector::{Reflector, Sink};
use sampan_client::{ListParams, Queue};
use sampan_util::{Shutdown, task};
use tokio::sync::{Notify, watch};

use crate::runtime::{self, Context};
use collector::Collector;
use graph::{Graph, Row, Uid};

pub const NAME: &str = "generic-garbage-collector";
const WORKERS: usize = 8;
/// A custom resource's row appears a moment after its definition is written: so often, and after
/// so long each time, the registry is looked at again.
const ROW_LOOKS: u32 = 3;
const ROW_PATIENCE: Duration = Duration::from_secs(1);

/// The graph and what hangs on it, shared by all sinks and workers.
pub(crate) struct Shared {
    graph: Mutex<Graph>,
    queue: Queue<Uid>,
    /// Nothing is enqueued before every resource has been listed once.
    started: watch::Sender<bool>,
    /// Custom resources came or went.
    rows_changed: Notify,
}

impl Shared {
    fn new() -> Self {
        Self {
            graph: Mutex::default(),
            queue: Queue::new(),
            started: watch::Sender::new(false),
            rows_changed: Notify::new(),
        }
    }

    pub(crate) fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, uids: Vec<Uid>) {
        if *self.started.borrow() {
            for uid in uids {
                self.queue.add(uid);
            }
        }
    }
}

/// Who wants to know that objects of a namespace are gone; with `None` any may be. The garbage collector sees every
/// object go, so nobody else has to follow everything.
#[derive(Clone, Default)]
pub struct Departures(Arc<Mutex<Vec<Listener>>>);

type Listener = Box<dyn Fn(Option<&str>) + Send + Sync>;

impl Departures {
    /// The listener may only enqueue.
    pub(crate) fn on_departure(&self, listener: impl Fn(Option<&str>) + Send + Sync + 'static) {
        self.listeners().push(Box::new(listener));
    }

    fn tell(&self, namespace: Option<&str>) {
        for listener in self.listeners().iter() {
            listener(namespace);
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until shutdown.
pub async fn run(context: Arc<Context>) {
    let shared = Arc::new(Shared::new());
    let client = (context.client_of)(NAME);
    let following = task::spawn(
        "garbage-collector-rows",
        follow_rows(Arc::clone(&context), Arc::clone(&shared)),
    );
    let collector = Arc::new(Collector {
        client,
        registry: Arc::clone(&context.settings.registry),
        shared: Arc::clone(&shared),
    });
    let queue = shared.queue.clone();
    runtime::work(NAME, WORKERS, &context, queue, move |uid: Uid| {
        let collector = Arc::clone(&collector);
        async move { collector.attend(&uid).await }
    })
    .await;
    following.await.ok();
}

/// One followed resource.
struct Followed {
    shutdown: Shutdown,
    synced: watch::Receiver<bool>,
}

/// Follows every resource of the registry, as it is now and as it becomes.
async fn follow_rows(context: Arc<Context>, shared: Arc<Shared>) {
    let mut followed: HashMap<Followable, Followed> = HashMap::new();
    let mut looks = 0;
    loop {
        let rows = context.settings.registry.snapshot();
        let wanted: HashMap<Followable, &Arc<ResourceDef>> = rows
            .rows()
            .iter()
            .filter(|row| is_collected(row))
            .map(|row| (followable(row), row))
            .collect();
        followed.retain(|key, one| {
            let stays = wanted.contains_key(key);
            if !stays {
                one.shutdown.trigger();
                shared.graph().forget(&key.0);
            }
            stays
        });
        for (key, row) in wanted {
            followed
                .entry(key)
                .or_insert_with(|| follow(row, &context, &shared));
        }
        if !*shared.started.borrow() {
            for one in followed.values_mut() {
                tokio::select! {
                    _ = one.synced.wait_for(|synced| *synced) => {}
                    () = context.shutdown.wait() => return,
                }
            }
            shared.started.send_replace(true);
            let doubtful = shared.graph().doubtful();
            shared.enqueue(doubtful);
        }
        tokio::select! {
            () = shared.rows_changed.notified() => looks = ROW_LOOKS,
            () = tokio::time::sleep(ROW_PATIENCE), if looks > 0 => looks -= 1,
            () = context.shutdown.wait() => return,
        }
    }
}

/// What is followed: a resource that comes again may be of another kind.
type Followable = (GroupVersionResource, String);

fn followable(row: &ResourceDef) -> Followable {
    (row.storage_gvr(), row.kind.to_string())
}

/// Events come and go by themselves.
fn is_collected(row: &ResourceDef) -> bool {
    let verbs = [Verb::List, Verb::Watch, Verb::Delete];
    row.is_stored() && row.plural != "events" && verbs.iter().all(|verb| row.allows(*verb))
}

fn follow(row: &Arc<ResourceDef>, context: &Context, shared: &Arc<Shared>) -> Followed {
    let shutdown = context.shutdown.child();
    let synced = watch::Sender::new(false);
    let receiver = synced.subscribe();
    let resource = row.storage_gvr();
    let defines_rows = resource.resource == "customresourcedefinitions";
    let reflector = Reflector {
        client: context.shared.clone(),
        target: Target {
            resource: resource.clone(),
            namespace: None,
            name: None,
            subresource: None,
        },
        params: ListParams::default(),
        sink: Arc::new(RowSink {
            row: Arc::new(Row {
                resource,
                kind: row.kind.to_string(),
            }),
            shared: Arc::clone(shared),
            departures: context.departures.clone(),
            synced,
            defines_rows,
        }),
    };
    task::spawn("garbage-collector", reflector.run(shutdown.clone()));
    Followed {
        shutdown,
        synced: receiver,
    }
}

/// Pours one resource into the graph.
struct RowSink {
    row: Arc<Row>,
    shared: Arc<Shared>,
    departures: Departures,
    synced: watch::Sender<bool>,
    /// The resource's objects are custom resources' definitions.
    defines_rows: bool,
}

impl RowSink {
    fn read(&self, object: &Bytes) -> Option<Meta> {
        match Meta::from_bytes(object) {
            Ok(meta) => Some(meta),
            Err(error) => {
                tracing::error!(resource = %self.row.resource, %error, "cannot read an object");
                None
            }
        }
    }

    fn changed(&self, doubtful: Vec<Uid>) {
        self.shared.enqueue(doubtful);
        if self.defines_rows {
            self.shared.rows_changed.notify_one();
        }
    }
}

impl Sink for RowSink {
    fn replace(&self, items: Vec<Bytes>, _: &str) {
        let metas = items.iter().filter_map(|object| self.read(object));
        let doubtful = self.shared.graph().replace(&self.row, metas.collect());
        self.changed(doubtful);
        self.synced.send_replace(true);
        // A list does not say what went before it.
        self.departures.tell(None);
    }

    fn apply(&self, object: Bytes) {
        if let Some(meta) = self.read(&object) {
            let doubtful = self.shared.graph().apply(&self.row, meta);
            self.changed(doubtful);
        }
    }

    fn delete(&self, object: Bytes) {
        if let Some(meta) = self.read(&object) {
            let doubtful = self.shared.graph().delete(&meta.uid);
            self.changed(doubtful);
            if !meta.namespace.is_empty() {
                self.departures.tell(Some(&meta.namespace));
            }
        }
    }
}

#[cfg(test)]
mod tests;
