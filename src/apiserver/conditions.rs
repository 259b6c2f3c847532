//! Conditions that the server itself keeps, because no controller does: whether the level that a flow schema names is
//! there, whether an API service can be reached. A kind is a row of [`KEPT`].

use std::collections::BTreeSet;
use std::sync::Arc;

use sampan_api::custom::names;
use sampan_api::meta::{get, text};
use sampan_api::resource::Target;
use sampan_api::{Options, Reason, ResourceDef, Status, UserInfo, Verb};
use sampan_client::{Body, Request};
use sampan_util::shutdown::Shutdown;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use crate::again::Again;
use crate::auth::ObjectChange;
use crate::registry::server::{ApiServer, Core};
use crate::request::{ApiRequest, Pipeline};

/// A condition: type, status, reason, message.
type Condition = (&'static str, &'static str, &'static str, String);

struct Kept {
    group: &'static str,
    kind: &'static str,
    /// Another kind of the group whose changes matter to all objects.
    depends: Option<&'static str>,
    /// `None` if there is nothing to say.
    condition: fn(&Core, &Value) -> Option<Condition>,
}

const KEPT: &[Kept] = &[
    Kept {
        group: FLOW,
        kind: "FlowSchema",
        depends: Some(LEVEL),
        condition: dangling,
    },
    Kept {
        group: "apiregistration.k8s.io",
        kind: "APIService",
        depends: None,
        condition: available,
    },
];

const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const LEVEL: &str = "PriorityLevelConfiguration";

fn row(core: &Core, group: &str, kind: &str) -> Option<Arc<ResourceDef>> {
    core.registry.snapshot().by_kind(group, "v1", kind)
}

fn dangling(core: &Core, schema: &Value) -> Option<Condition> {
    let level = text(schema, &["spec", "priorityLevelConfiguration", "name"]);
    let found = core
        .cache
        .get(&*row(core, FLOW, LEVEL)?, None, level)
        .is_some();
    let what =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    Some(if found {
        (
            "Dangling",
            "False",
            "Found",
            format!("{what} and it exists"),
        )
    } else {
        (
            "Dangling",
            "True",
            "NotFound",
            format!("{what} but there is no such object"),
        )
    })
}

/// Requests are not passed on to other servers yet, so those of services never are.
fn available(core: &Core, service: &Value) -> Option<Condition> {
    let backend = get(get(service, "spec"), "service");
    if backend.is_null() {
        let message = "Local APIServices are always available".to_owned();
        return Some(("Available", "True", "Local", message));
    }
    let (namespace, name) = (text(backend, &["namespace"]), text(backend, &["name"]));
    let there = row(core, "", "Service")
        .is_some_and(|row| core.cache.get(&row, Some(namespace), name).is_some());
    Some(if there {
        let message =
            format!("service/{name} in {namespace:?} is not reached: aggregation is not supported");
        ("Available", "False", "FailedDiscoveryCheck", message)
    } else {
        let message = format!("service/{name} in {namespace:?} is not present");
        ("Available", "False", "ServiceNotFound", message)
    })
}

/// Keeps the conditions until shutdown.
pub(crate) async fn run(server: ApiServer, shutdown: Shutdown) {
    let (sender, mut receiver) = unbounded_channel::<(usize, Option<String>)>();
    for (index, kept) in KEPT.iter().enumerate() {
        for kind in [Some(kept.kind), kept.depends].into_iter().flatten() {
            let Some(row) = row(server.core(), kept.group, kind) else {
                continue;
            };
            let (sender, own) = (sender.clone(), kind == kept.kind);
            server
                .core()
                .cache
                .bucket(&row)
                .observe(Arc::new(move |change: &ObjectChange| {
                    // An update of a level changes nothing: only whether it is there counts.
                    if own || change.old.is_none() || change.new.is_none() {
                        let _told = sender.send((index, own.then(|| change.name.clone())));
                    }
                }));
        }
    }
    drop(sender);
    let mut again = Again::new();
    loop {
        let mut todo = tokio::select! {
            () = shutdown.wait() => return,
            first = receiver.recv() => match first {
                Some(first) => BTreeSet::from([first]),
                None => return,
            },
            failed = again.due() => failed,
        };
        while let Ok(next) = receiver.try_recv() {
            todo.insert(next);
        }
        for (index, name) in todo {
            if let Err(status) = look_at(&server, &KEPT[index], name.clone()).await {
                tracing::warn!(kind = KEPT[index].kind, %status, "cannot write a condition");
                again.add((index, name));
            }
        }
    }
}

/// One object, or all.
async fn look_at(server: &ApiServer, kept: &Kept, name: Option<String>) -> Result<(), Status> {
    let core = server.core();
    let Some(row) = row(core, kept.group, kept.kind) else {
        return Ok(());
    };
    let mut result = Ok(());
    let objects: Vec<bytes::Bytes> = match name {
        Some(name) => core
            .cache
            .get(&row, None, &name)
            .map(|object| object.bytes.clone())
            .into_iter()
            .collect(),
        None => {
            let snapshot = core.cache.snapshot(&core.cache.bucket(&row));
            snapshot
                .map
                .iter_from("")
                .map(|object| object.bytes.clone())
                .collect()
        }
    };
    for bytes in objects {
        let Ok(object) = serde_json::from_slice::<Value>(&bytes) else {
            continue;
        };
        if let Some(condition) = (kept.condition)(core, &object) {
            // One that cannot be written does not keep the others waiting.
            let written = write(server, &row, object, &condition).await;
            result = result.and(written);
        }
    }
    result
}

async fn write(
    server: &ApiServer,
    row: &ResourceDef,
    mut object: Value,
    condition: &Condition,
) -> Result<(), Status> {
    let before = get(&object, "status").clone();
    let mut status = if before.is_object() {
        before.clone()
    } else {
        json!({})
    };
    let (kind, state, reason, message) = condition;
    names::set(
        &mut status,
        kind,
        state,
        reason,
        message,
        server.core().now(),
    );
    if status == before {
        return Ok(());
    }
    object["status"] = status;
    let name = text(&object, &["metadata", "name"]).to_owned();
    let request = Request {
        verb: Verb::Update,
        target: Target {
            resource: row.storage_gvr(),
            namespace: None,
            name: Some(name),
            subresource: Some("status".into()),
        },
        options: Options::default(),
        body: Body::Object(object),
    };
    let user = UserInfo::authenticated("system:apiserver", &["system:masters"]);
    let request = ApiRequest::own(Arc::new(user), request);
    match server.handle(request).await {
        // Whoever changed the object meanwhile made an event, by which it is looked at again.
        Err(status) if !status.is(Reason::Conflict) && !status.is(Reason::NotFound) => Err(status),
        _ => Ok(()),
    }
}
