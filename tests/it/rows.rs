//! Over every row of the resource table: create, read, list, watch, update, patch, delete; death with the namespace;
//! refusal of those who have no right.

mod doors;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use sampan_api::registry::ServedVersion;
use sampan_api::resource::PatchType;
use sampan_api::{Options, Registry, ResourceDef, Target, Verb};
use sampan_client::{Body, Credentials, Error, EventKind, HttpsTransport, Request, Transport};
use serde_json::{Map, Value, json};

use crate::support::eventually;
use crate::support::process::{ADMIN_TOKEN, ControlPlane};

const OBJECTS: &str = include_str!("data/objects.json");
pub const NAMESPACE: &str = "rows";
const NAME: &str = "one";

fn rows() -> Vec<Arc<ResourceDef>> {
    Registry::builtin().snapshot().rows().to_vec()
}

/// Rows that are stored and can be created by a client.
pub fn stored_rows() -> Vec<Arc<ResourceDef>> {
    rows()
        .into_iter()
        .filter(|row| row.is_stored() && row.allows(Verb::Create))
        .collect()
}

struct Api {
    transport: HttpsTransport,
    runtime: tokio::runtime::Runtime,
}

impl Api {
    fn new(plane: &ControlPlane, credentials: &Credentials) -> Self {
        let ca = String::from_utf8(plane.ca()).unwrap();
        Self {
            transport: HttpsTransport::new(&plane.url, Some(&ca), credentials, "tests").unwrap(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
        }
    }

    fn admin(plane: &ControlPlane) -> Self {
        Self::new(plane, &Credentials::Token(ADMIN_TOKEN.to_owned()))
    }

    fn call(&self, verb: Verb, target: Target, body: Body) -> Result<Value, Error> {
        let request = Request {
            verb,
            target,
            options: Options::default(),
            body,
        };
        let bytes = self.runtime.block_on(self.transport.send(request))?;
        Ok(serde_json::from_slice(&bytes).unwrap())
    }

    fn list(&self, target: Target, options: Options) -> Result<sampan_client::List, Error> {
        let request = Request {
            verb: Verb::List,
            target,
            options,
            body: Body::None,
        };
        self.runtime.block_on(self.transport.list(request))
    }

    /// The first event after `resource_version` that concerns this object.
    fn next_event(&self, target: Target, resource_version: &str, name: &str) -> (EventKind, Value) {
        self.event(target, resource_version, name, |_| true)
    }

    /// The first such event of a wanted kind.
    fn event(
        &self,
        target: Target,
        resource_version: &str,
        name: &str,
        wanted: impl Fn(EventKind) -> bool,
    ) -> (EventKind, Value) {
        let options = Options {
            resource_version: Some(resource_version.to_owned()),
            ..Options::default()
        };
        let request = Request {
            verb: Verb::Watch,
            target,
            options,
            body: Body::None,
        };
        let wait = async {
            let mut stream = self.transport.watch(request).await.unwrap();
            loop {
                let event = stream.next().await.expect("the watch goes on").unwrap();
                let object: Value = serde_json::from_slice(&event.object).unwrap();
                if object["metadata"]["name"] == name && wanted(event.kind) {
                    return (event.kind, object);
                }
            }
        };
        let limited = async { tokio::time::timeout(Duration::from_secs(10), wait).await };
        self.runtime
            .block_on(limited)
            .expect("an event within ten seconds")
    }
}

fn target(row: &ResourceDef, version: &ServedVersion, name: Option<&str>) -> Target {
    Target {
        resource: row.gvr(version),
        namespace: row.is_namespaced().then(|| NAMESPACE.to_owned()),
        name: name.map(str::to_owned),
        subresource: None,
    }
}

fn collection(row: &ResourceDef, name: Option<&str>) -> Target {
    target(row, row.storage_version(), name)
}

/// A small object of the row's kind that upstream would take.
pub fn sample(objects: &Map<String, Value>, row: &ResourceDef) -> Value {
    let kind = row.storage_gvk();
    let fields = objects
        .get(&*kind.kind)
        .unwrap_or_else(|| panic!("tests/it/data/objects.json has no {}", kind.kind));
    let csr = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIWk1JR0FBZ0VBTUI0eEREQUtCZ05WQkFvTUEyUmxkakVPTUF3R0ExVUVBd3dGWTJGeWIyd3dXVEFUQmdjcQo=";
    let text = fields
        .to_string()
        .replace("{ns}", NAMESPACE)
        .replace("{csr}", csr);
    let mut object: Value = serde_json::from_str(&text).unwrap();
    let map = object.as_object_mut().unwrap();
    let name = map
        .remove("name")
        .and_then(|name| name.as_str().map(str::to_owned));
    map.insert("kind".to_owned(), json!(kind.kind));
    map.insert("apiVersion".to_owned(), json!(kind.api_version()));
    map.insert(
        "metadata".to_owned(),
        json!({"name": name.unwrap_or_else(|| NAME.to_owned())}),
    );
    object
}

fn create_namespace(api: &Api) {
    let row = rows()
        .into_iter()
        .find(|row| row.storage_gvk().kind == "Namespace")
        .unwrap();
    let body = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}});
    api.call(Verb::Create, collection(&row, None), Body::Object(body))
        .unwrap();
    // Pods need it. With controllers on, theirs may be there first.
    let row = rows()
        .into_iter()
        .find(|row| row.storage_gvk().kind == "ServiceAccount")
        .unwrap();
    let body =
        json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}});
    match api.call(Verb::Create, collection(&row, None), Body::Object(body)) {
        Err(error) if !error.is_already_exists() => panic!("{error}"),
        _ => {}
    }
}

pub fn objects() -> Map<String, Value> {
    serde_json::from_str(OBJECTS).unwrap()
}

#[test]
fn every_row_can_be_written_read_and_watched() {
    let plane = ControlPlane::start(&["--disable-scheduler", "--disable-controller-manager"]);
    let api = Api::admin(&plane);
    create_namespace(&api);
    let objects = objects();
    let mut wrong = Vec::new();
    let rows = stored_rows();
    for row in &rows {
        if let Err(error) = exercise(&api, &objects, row) {
            wrong.push(format!("{}: {error}", row.storage_gvk()));
        }
    }
    println!(
        "rows written, read and watched: {} of {}",
        rows.len() - wrong.len(),
        rows.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn exercise(api: &Api, objects: &Map<String, Value>, row: &ResourceDef) -> Result<(), String> {
    let text = |what: &'static str| move |error: Error| format!("{what}: {error}");
    let sample = sample(objects, row);
    let name = sample["metadata"]["name"].as_str().unwrap().to_owned();
    let one = || collection(row, Some(&name));
    let before = api
        .list(collection(row, None), Options::default())
        .map_err(text("list"))?;
    let made = api
        .call(
            Verb::Create,
            collection(row, None),
            Body::Object(sample.clone()),
        )
        .map_err(text("create"))?;
    same("uid given", made["metadata"]["uid"].is_string(), true)?;
    let again = api
        .call(Verb::Create, collection(row, None), Body::Object(sample))
        .err();
    same(
        "a second create",
        again.is_some_and(|error| error.is_already_exists()),
        true,
    )?;
    for version in row.versions.iter() {
        let read = api
            .call(Verb::Get, target(row, version, Some(&name)), Body::None)
            .map_err(text("get"))?;
        same(
            "apiVersion read",
            &read["apiVersion"],
            &json!(row.gvk(version).api_version()),
        )?;
        same(
            "uid read",
            &read["metadata"]["uid"],
            &made["metadata"]["uid"],
        )?;
    }
    let listed = api
        .list(collection(row, None), Options::default())
        .map_err(text("list"))?;
    same(
        "one more in the list",
        listed.items.len(),
        before.items.len() + 1,
    )?;
    let (kind, seen) = api.next_event(collection(row, None), &before.resource_version, &name);
    same("the watch's first event", kind, EventKind::Added)?;
    same(
        "resourceVersion watched",
        &seen["metadata"]["resourceVersion"],
        &made["metadata"]["resourceVersion"],
    )?;
    updates(api, row, &name, made)?;
    let current = api
        .call(Verb::Get, one(), Body::None)
        .map_err(text("get"))?;
    let current = current["metadata"]["resourceVersion"].as_str().unwrap();
    vanish(api, row, &name, current)
}

/// Deletes the object and lets it go: what holds it, finalizers of its own or of the kind, is taken away as its
/// controller would. It must be gone for those who watch and those who ask.
fn vanish(api: &Api, row: &ResourceDef, name: &str, since: &str) -> Result<(), String> {
    let text = |what: &'static str| move |error: Error| format!("{what}: {error}");
    let one = || collection(row, Some(name));
    api.call(Verb::Delete, one(), Body::None)
        .map_err(text("delete"))?;
    if let Ok(mut held) = api.call(Verb::Get, one(), Body::None) {
        same(
            "deletion has begun",
            held["metadata"]["deletionTimestamp"].is_string(),
            true,
        )?;
        let kept = api.next_event(collection(row, None), since, name);
        same(
            "a held object is changed, not deleted",
            kept.0,
            EventKind::Modified,
        )?;
        if row.subresource("finalize").is_some() {
            held["spec"]["finalizers"] = json!([]);
            let mut finalize = one();
            finalize.subresource = Some("finalize".into());
            api.call(Verb::Update, finalize, Body::Object(held))
                .map_err(text("finalize"))?;
        } else {
            let patch = Body::Patch(PatchType::Merge, json!({"metadata": {"finalizers": null}}));
            match api.call(Verb::Patch, one(), patch) {
                // The server keeps the finalizer of definitions, and was faster.
                Err(error) if error.is_not_found() => {}
                patched => patched.map(drop).map_err(text("taking finalizers away"))?,
            }
        }
    }
    api.event(collection(row, None), since, name, |kind| {
        kind == EventKind::Deleted
    });
    let gone = api.call(Verb::Get, one(), Body::None).err();
    same("gone", gone.is_some_and(|error| error.is_not_found()), true)
}

fn updates(api: &Api, row: &ResourceDef, name: &str, made: Value) -> Result<(), String> {
    let one = || collection(row, Some(name));
    let stale = made.clone();
    let updated = update(api, row, name, made).map_err(|error| format!("update: {error}"))?;
    same(
        "label updated",
        &updated["metadata"]["labels"]["updated"],
        &json!("yes"),
    )?;
    let conflict = api.call(Verb::Update, one(), Body::Object(stale)).err();
    same(
        "a stale update conflicts",
        conflict.is_some_and(|error| error.is_conflict()),
        true,
    )?;
    let patch = Body::Patch(
        PatchType::Merge,
        json!({"metadata": {"annotations": {"patched": "yes"}}}),
    );
    let patched = api
        .call(Verb::Patch, one(), patch)
        .map_err(|error| format!("patch: {error}"))?;
    same(
        "annotation patched",
        &patched["metadata"]["annotations"]["patched"],
        &json!("yes"),
    )?;
    same(
        "label kept",
        &patched["metadata"]["labels"]["updated"],
        &json!("yes"),
    )
}

/// Labels an object. The server itself writes conditions of some kinds: then the update is made of what it wrote.
fn update(api: &Api, row: &ResourceDef, name: &str, mut object: Value) -> Result<Value, Error> {
    let one = || collection(row, Some(name));
    for _ in 0..5 {
        object["metadata"]["labels"]["updated"] = json!("yes");
        match api.call(Verb::Update, one(), Body::Object(object)) {
            Err(error) if error.is_conflict() => {
                object = api.call(Verb::Get, one(), Body::None)?;
            }
            answer => return answer,
        }
    }
    Err(Error::Malformed("five conflicts in a row".to_owned()))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: {found:?}, expected {expected:?}"))
    }
}

#[test]
fn every_namespaced_row_dies_with_its_namespace() {
    let plane = ControlPlane::start(&["--disable-scheduler"]);
    let api = Api::admin(&plane);
    create_namespace(&api);
    let objects = objects();
    let rows: Vec<_> = stored_rows()
        .into_iter()
        .filter(|row| row.is_namespaced())
        .collect();
    for row in &rows {
        let made = api.call(
            Verb::Create,
            collection(row, None),
            Body::Object(sample(&objects, row)),
        );
        made.unwrap_or_else(|error| panic!("{}: {error}", row.storage_gvk()));
    }
    let row = Registry::builtin()
        .snapshot()
        .rows()
        .iter()
        .find(|row| row.storage_gvk().kind == "Namespace")
        .unwrap()
        .clone();
    api.call(Verb::Delete, collection(&row, Some(NAMESPACE)), Body::None)
        .unwrap();
    eventually(
        "the namespace is gone",
        Duration::from_secs(60),
        || match api.call(Verb::Get, collection(&row, Some(NAMESPACE)), Body::None) {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.to_string()),
            Ok(namespace) => Err(namespace["status"].to_string()),
        },
    );
    for row in &rows {
        let left = api.list(collection(row, None), Options::default()).unwrap();
        assert!(
            left.items.is_empty(),
            "{} left in a namespace that is gone",
            row.storage_gvk()
        );
    }
    println!("rows that died with their namespace: {}", rows.len());
}
