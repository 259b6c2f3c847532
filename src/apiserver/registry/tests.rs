//! The generic path end to end: requests in, store underneath, no HTTP.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use sampan_api::resource::{GroupVersionResource, PatchType};
use sampan_api::{Options, Reason, Registry, Status, Target, UserInfo, Verb};
use sampan_client::{Body, Error, EventKind, List, Request, Transport, WatchEvent, WatchStream};
use sampan_store::{SqliteOptions, SqliteStore};
use serde_json::{Value, json};

use super::hooks::{Admission, AdmissionRequest, Chain, Hooks, Operation};
use super::server::{ApiServer, Core};
use crate::encryption::Keyring;
use crate::request::{Attributes, Authorizer, Decision};

struct AllowAll;

impl Authorizer for AllowAll {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        match attributes.user.username.as_str() {
            "nobody" => Decision::NoOpinion(String::new()),
            "bug" => panic!("a bug"),
            _ => Decision::Allow(String::new()),
        }
    }
}

struct Bed {
    directory: PathBuf,
    server: ApiServer,
    client: Arc<dyn Transport>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn open(directory: PathBuf, admission: Vec<Arc<dyn Admission>>) -> Bed {
    let store = SqliteStore::open(SqliteOptions::new(directory.join("db"))).unwrap();
    let keys = Keyring::load_or_create(&directory.join("cred")).unwrap();
    let core = Core::open(Arc::new(store), Arc::new(Registry::builtin()), keys).unwrap();
    let hooks = Hooks {
        admission: Chain(admission),
        ..Hooks::default()
    };
    let server = ApiServer::new(core, Arc::new(AllowAll), hooks);
    let client = server.transport(UserInfo::authenticated("system:tester", &[]));
    Bed {
        directory,
        server,
        client,
    }
}

static BEDS: AtomicU32 = AtomicU32::new(0);

fn bed() -> Bed {
    bed_with(Vec::new())
}

fn bed_with(admission: Vec<Arc<dyn Admission>>) -> Bed {
    let number = BEDS.fetch_add(1, Ordering::Relaxed);
    let name = format!("sampan-registry-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&directory);
    open(directory, admission)
}

/// `GROUP/VERSION/PLURAL` or `VERSION/PLURAL`, then namespace and name, `-` for none.
fn target(resource: &str, namespace: &str, name: &str) -> Target {
    let parts: Vec<&str> = resource.split('/').collect();
    let (group, version, plural) = match parts[..] {
        [group, version, plural] => (group, version, plural),
        [version, plural] => ("", version, plural),
        _ => panic!("{resource}"),
    };
    let some = |text: &str| (text != "-").then(|| text.to_owned());
    Target {
        resource: GroupVersionResource {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            resource: plural.to_owned().into(),
        },
        namespace: some(namespace),
        name: some(name),
        subresource: None,
    }
}

fn request(verb: Verb, target: Target, body: Body) -> Request {
    Request {
        verb,
        target,
        options: Options::default(),
        body,
    }
}

fn parse(bytes: &Bytes) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

fn status(error: Error) -> Status {
    match error {
        Error::Api(status) => status,
        other => panic!("{other}"),
    }
}

impl Bed {
    async fn send(&self, request: Request) -> Result<Value, Status> {
        self.client
            .send(request)
            .await
            .map(|bytes| parse(&bytes))
            .map_err(status)
    }

    async fn create(
        &self,
        resource: &str,
        namespace: &str,
        object: Value,
    ) -> Result<Value, Status> {
        self.send(request(
            Verb::Create,
            target(resource, namespace, "-"),
            Body::Object(object),
        ))
        .await
    }

    async fn config(&self, name: &str, labels: Value) -> Value {
        let object = json!({"metadata": {"name": name, "labels": labels}, "data": {"k": "v"}});
        self.create("v1/configmaps", "default", object)
            .await
            .unwrap()
    }

    async fn get(&self, resource: &str, namespace: &str, name: &str) -> Result<Value, Status> {
        self.send(request(
            Verb::Get,
            target(resource, namespace, name),
            Body::None,
        ))
        .await
    }

    async fn update(
        &self,
        resource: &str,
        namespace: &str,
        object: Value,
    ) -> Result<Value, Status> {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.send(request(
            Verb::Update,
            target(resource, namespace, &name),
            Body::Object(object),
        ))
        .await
    }

    async fn patch(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<Value, Status> {
        let body = Body::Patch(PatchType::Merge, patch);
        self.send(request(
            Verb::Patch,
            target(resource, namespace, name),
            body,
        ))
        .await
    }

    async fn delete(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        options: Value,
    ) -> Result<Value, Status> {
        self.send(request(
            Verb::Delete,
            target(resource, namespace, name),
            Body::Object(options),
        ))
        .await
    }

    async fn list(&self, options: Options) -> Result<List, Status> {
        let mut request = request(
            Verb::List,
            target("v1/configmaps", "default", "-"),
            Body::None,
        );
        request.options = options;
        self.client.list(request).await.map_err(status)
    }

    async fn watch(&self, options: Options) -> WatchStream {
        let mut request = request(
            Verb::Watch,
            target("v1/configmaps", "default", "-"),
            Body::None,
        );
        request.options = options;
        self.client.watch(request).await.unwrap()
    }
}

fn names(list: &List) -> Vec<String> {
    list.items
        .iter()
        .map(|item| parse(item)["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

fn brief(event: &WatchEvent) -> (EventKind, String, u64) {
    let object = parse(&event.object);
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    (event.kind, name, revision(&object))
}

#[tokio::test]
async fn objects_live_and_die() {
    let bed = bed();
    let made = bed.config("a", json!({})).await;
    assert_eq!(made["kind"], "ConfigMap");
    assert_eq!(made["metadata"]["namespace"], "default");
    assert_eq!(made["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "tester");
    assert_eq!(
        bed.get("v1/configmaps", "default", "a").await.unwrap(),
        made
    );
    let again = bed
        .create(
            "v1/configmaps",
            "default",
            json!({"metadata": {"name": "a"}}),
        )
        .await
        .unwrap_err();
    assert_eq!(again.message, "configmaps \"a\" already exists");

    let mut changed = made.clone();
    changed["data"]["k"] = json!("w");
    let changed = bed
        .update("v1/configmaps", "default", changed)
        .await
        .unwrap();
    assert!(revision(&changed) > revision(&made));
    let mut stale = made.clone();
    stale["data"]["k"] = json!("x");
    let conflict = bed
        .update("v1/configmaps", "default", stale)
        .await
        .unwrap_err();
    assert_eq!(
        conflict.message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    let same = bed
        .update("v1/configmaps", "default", changed.clone())
        .await
        .unwrap();
    assert_eq!(
        same, changed,
        "an update that changes nothing writes nothing"
    );
    let patched = bed
        .patch(
            "v1/configmaps",
            "default",
            "a",
            json!({"data": {"k": null, "l": "1"}}),
        )
        .await
        .unwrap();
    assert_eq!(patched["data"], json!({"l": "1"}));

    let gone = bed
        .delete("v1/configmaps", "default", "a", json!({}))
        .await
        .unwrap();
    assert_eq!(gone["status"], "Success");
    assert_eq!(gone["details"]["uid"], made["metadata"]["uid"]);
    assert!(
        bed.get("v1/configmaps", "default", "a")
            .await
            .unwrap_err()
            .is(Reason::NotFound)
    );
    assert!(
        bed.delete("v1/configmaps", "default", "a", json!({}))
            .await
            .unwrap_err()
            .is(Reason::NotFound)
    );
}

#[tokio::test]
async fn state_survives_a_restart_and_secrets_are_sealed() {
    let bed = bed();
    bed.config("a", json!({})).await;
    let secret = json!({"metadata": {"name": "s"}, "data": {"password": "c3VwZXJzZWNyZXQ="}});
    let made = bed.create("v1/secrets", "default", secret).await.unwrap();
    bed.server.core().store.close();
    for entry in std::fs::read_dir(bed.directory.join("db")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(
            !bytes
                .windows(16)
                .any(|window| window == b"c3VwZXJzZWNyZXQ=")
        );
    }
    let directory = bed.directory.with_extension("moved");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::rename(&bed.directory, &directory).unwrap();
    drop(bed);
    let bed = open(directory, Vec::new());
    assert_eq!(bed.get("v1/secrets", "default", "s").await.unwrap(), made);
    assert_eq!(bed.list(Options::default()).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn wrong_requests_are_told_why() {
    let bed = bed();
    let message = |result: Result<Value, Status>| result.unwrap_err().message;
    let elsewhere = json!({"metadata": {"name": "a", "namespace": "other"}});
    assert_eq!(
        message(bed.create("v1/configmaps", "default", elsewhere).await),
        "the namespace of the provided object does not match the namespace sent on the request"
    );
    let bad = json!({"metadata": {"name": "A_b", "labels": {"-": "x"}}});
    let bad = bed
        .create("v1/configmaps", "default", bad)
        .await
        .unwrap_err();
    assert_eq!(bad.code, 422);
    assert!(
        bad.message
            .starts_with("ConfigMap \"A_b\" is invalid: [metadata.name: Invalid value: \"A_b\": "),
        "{bad}"
    );
    let mut wrong = request(
        Verb::Update,
        target("v1/configmaps", "default", "b"),
        Body::Object(json!({"metadata": {"name": "a"}})),
    );
    bed.config("b", json!({})).await;
    assert_eq!(
        message(bed.send(wrong.clone()).await),
        "the name of the object (a) does not match the name on the URL (b)"
    );
    wrong.target.resource.resource = "things".into();
    assert_eq!(
        message(bed.send(wrong).await),
        "the server could not find the requested resource"
    );
    let nobody = bed.server.transport(UserInfo::authenticated("nobody", &[]));
    let refused = nobody
        .send(request(
            Verb::Get,
            target("v1/configmaps", "default", "b"),
            Body::None,
        ))
        .await;
    assert_eq!(
        status(refused.unwrap_err()).message,
        "configmaps \"b\" is forbidden: User \"nobody\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    let mut selector = Options {
        field_selector: Some("spec.x=1".into()),
        ..Options::default()
    };
    assert!(
        bed.list(selector.clone())
            .await
            .unwrap_err()
            .message
            .contains("spec.x")
    );
    selector.field_selector = Some("metadata.name=b".into());
    assert_eq!(names(&bed.list(selector).await.unwrap()), ["b"]);
}

#[tokio::test]
async fn names_are_generated() {
    let bed = bed();
    let object = json!({"metadata": {"generateName": "web-"}});
    let one = bed
        .create("v1/configmaps", "default", object.clone())
        .await
        .unwrap();
    let two = bed
        .create("v1/configmaps", "default", object)
        .await
        .unwrap();
    assert!(
        one["metadata"]["name"]
            .as_str()
            .unwrap()
            .starts_with("web-")
    );
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
}

#[tokio::test]
async fn dry_runs_change_nothing() {
    let bed = bed();
    let mut create = request(
        Verb::Create,
        target("v1/configmaps", "default", "-"),
        Body::Object(json!({"metadata": {"name": "a"}})),
    );
    create.options.dry_run = vec!["All".into()];
    let shown = bed.send(create).await.unwrap();
    assert!(shown["metadata"]["uid"].is_string());
    assert!(shown["metadata"].get("resourceVersion").is_none());
    assert!(bed.get("v1/configmaps", "default", "a").await.is_err());
    let made = bed.config("a", json!({})).await;
    let mut patch = request(
        Verb::Patch,
        target("v1/configmaps", "default", "a"),
        Body::Patch(PatchType::Merge, json!({"data": {"k": "z"}})),
    );
    patch.options.dry_run = vec!["All".into()];
    assert_eq!(bed.send(patch).await.unwrap()["data"]["k"], "z");
    bed.delete("v1/configmaps", "default", "a", json!({"dryRun": ["All"]}))
        .await
        .unwrap();
    assert_eq!(
        bed.get("v1/configmaps", "default", "a").await.unwrap(),
        made
    );
}

#[tokio::test]
async fn finalizers_and_preconditions_hold_objects() {
    let bed = bed();
    let object = json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}});
    let made = bed
        .create("v1/configmaps", "default", object)
        .await
        .unwrap();
    let wrong = bed
        .delete(
            "v1/configmaps",
            "default",
            "a",
            json!({"preconditions": {"uid": "x"}}),
        )
        .await;
    assert!(wrong.unwrap_err().is(Reason::Conflict));
    let marked = bed
        .delete(
            "v1/configmaps",
            "default",
            "a",
            json!({"propagationPolicy": "Foreground"}),
        )
        .await
        .unwrap();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(
        marked["metadata"]["finalizers"],
        json!(["example.com/hold", "foregroundDeletion"])
    );
    let refused = bed
        .patch(
            "v1/configmaps",
            "default",
            "a",
            json!({"metadata": {"finalizers": ["x/y"]}}),
        )
        .await;
    assert!(
        refused
            .unwrap_err()
            .message
            .contains("no new finalizers can be added")
    );
    let kept = bed
        .patch(
            "v1/configmaps",
            "default",
            "a",
            json!({"metadata": {"finalizers": ["foregroundDeletion"]}}),
        )
        .await
        .unwrap();
    assert_eq!(kept["metadata"]["uid"], made["metadata"]["uid"]);
    bed.patch(
        "v1/configmaps",
        "default",
        "a",
        json!({"metadata": {"finalizers": null}}),
    )
    .await
    .unwrap();
    assert!(bed.get("v1/configmaps", "default", "a").await.is_err());
}

#[tokio::test]
async fn status_and_spec_are_written_through_their_own_doors() {
    let bed = bed();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let object = json!({"metadata": {"name": "d"}, "status": {"replicas": 9},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let made = bed
        .create("apps/v1/deployments", "default", object)
        .await
        .unwrap();
    assert!(made["status"].get("replicas").is_none());
    assert_eq!(made["metadata"]["generation"], 1);
    let mut door = target("apps/v1/deployments", "default", "d");
    door.subresource = Some("status".into());
    let patch = json!({"status": {"replicas": 3}, "spec": {"replicas": 7}});
    let patched = bed
        .send(request(
            Verb::Patch,
            door,
            Body::Patch(PatchType::Merge, patch),
        ))
        .await
        .unwrap();
    assert_eq!(patched["status"]["replicas"], 3);
    assert_eq!(patched["spec"]["replicas"], made["spec"]["replicas"]);
    assert_eq!(patched["metadata"]["generation"], 1);
    let patch = json!({"status": {"replicas": 5}, "spec": {"replicas": 2}});
    let patched = bed
        .patch("apps/v1/deployments", "default", "d", patch)
        .await
        .unwrap();
    assert_eq!(patched["status"]["replicas"], 3);
    assert_eq!(patched["metadata"]["generation"], 2);
}

#[tokio::test]
async fn pages_show_one_state() {
    let bed = bed();
    for index in 0..7 {
        bed.config(
            &format!("c{index}"),
            json!({"odd": (index % 2).to_string()}),
        )
        .await;
    }
    let first = bed
        .list(Options {
            limit: Some(3),
            ..Options::default()
        })
        .await
        .unwrap();
    assert_eq!(names(&first), ["c0", "c1", "c2"]);
    assert_eq!(first.remaining_item_count, Some(4));
    bed.delete("v1/configmaps", "default", "c4", json!({}))
        .await
        .unwrap();
    bed.config("c3a", json!({})).await;
    let next = Options {
        limit: Some(10),
        continue_token: first.continue_token.clone(),
        ..Options::default()
    };
    let second = bed.list(next).await.unwrap();
    assert_eq!(names(&second), ["c3", "c4", "c5", "c6"]);
    assert_eq!(second.resource_version, first.resource_version);
    assert_eq!(second.continue_token, None);
    let odd = Options {
        limit: Some(2),
        label_selector: Some("odd=1".into()),
        ..Options::default()
    };
    let odd = bed.list(odd).await.unwrap();
    assert_eq!(names(&odd), ["c1", "c3"]);
    assert_eq!(odd.remaining_item_count, None);
    let exact = |version: &str| Options {
        resource_version: Some(version.into()),
        resource_version_match: Some("Exact".into()),
        ..Options::default()
    };
    let old = bed.list(exact(&first.resource_version)).await.unwrap();
    assert_eq!(old.items.len(), 7);
    let from_history = (first.resource_version.parse::<u64>().unwrap() - 1).to_string();
    assert_eq!(bed.list(exact(&from_history)).await.unwrap().items.len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_miss_nothing_and_repeat_nothing() {
    let bed = Arc::new(bed());
    let start = bed.list(Options::default()).await.unwrap().resource_version;
    let mut stream = bed
        .watch(Options {
            resource_version: Some(start),
            ..Options::default()
        })
        .await;
    let mut writers = Vec::new();
    for writer in 0..6 {
        let bed = bed.clone();
        writers.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            for round in 0..40 {
                let name = format!("w{writer}-{}", round / 4);
                seen.push(match round % 4 {
                    0 => revision(&bed.config(&name, json!({})).await),
                    3 => {
                        bed.delete("v1/configmaps", "default", &name, json!({}))
                            .await
                            .unwrap();
                        continue;
                    }
                    _ => {
                        let patch = json!({"data": {"round": round.to_string()}});
                        revision(
                            &bed.patch("v1/configmaps", "default", &name, patch)
                                .await
                                .unwrap(),
                        )
                    }
                });
            }
            seen
        }));
    }
    let mut written = Vec::new();
    for writer in writers {
        written.extend(writer.await.unwrap());
    }
    written.sort_unstable();
    let mut events = Vec::new();
    while events.len() < 240 {
        events.push(brief(&stream.next().await.unwrap().unwrap()));
    }
    assert!(events.windows(2).all(|pair| pair[0].2 < pair[1].2));
    let shown: Vec<u64> = events
        .iter()
        .filter(|event| event.0 != EventKind::Deleted)
        .map(|event| event.2)
        .collect();
    assert_eq!(shown, written);
}

#[tokio::test]
async fn selectors_turn_changes_into_what_a_watcher_sees() {
    let bed = bed();
    bed.config("old", json!({"a": "1"})).await;
    bed.config("other", json!({})).await;
    let options = Options {
        label_selector: Some("a=1".into()),
        send_initial_events: Some(true),
        resource_version_match: Some("NotOlderThan".into()),
        allow_watch_bookmarks: true,
        ..Options::default()
    };
    let mut stream = bed.watch(options).await;
    let label = |value: Value| json!({"metadata": {"labels": {"a": value}}});
    bed.patch("v1/configmaps", "default", "other", label(json!("1")))
        .await
        .unwrap();
    bed.patch(
        "v1/configmaps",
        "default",
        "other",
        json!({"data": {"k": "2"}}),
    )
    .await
    .unwrap();
    bed.patch("v1/configmaps", "default", "other", label(Value::Null))
        .await
        .unwrap();
    bed.patch(
        "v1/configmaps",
        "default",
        "other",
        json!({"data": {"k": "3"}}),
    )
    .await
    .unwrap();
    bed.delete("v1/configmaps", "default", "old", json!({}))
        .await
        .unwrap();
    let mut events = Vec::new();
    for _ in 0..6 {
        events.push(stream.next().await.unwrap().unwrap());
    }
    let end = parse(&events[1].object);
    assert_eq!(
        end["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let kinds: Vec<(EventKind, String)> = events
        .iter()
        .map(brief)
        .map(|(kind, name, _)| (kind, name))
        .collect();
    let expected = [
        (EventKind::Added, "old"),
        (EventKind::Bookmark, ""),
        (EventKind::Added, "other"),
        (EventKind::Modified, "other"),
        (EventKind::Deleted, "other"),
        (EventKind::Deleted, "old"),
    ];
    assert_eq!(kinds, expected.map(|(kind, name)| (kind, name.to_owned())));
    let left = parse(&events[4].object);
    assert_eq!(
        left["metadata"]["labels"]["a"], "1",
        "the last state that matched"
    );
}

#[tokio::test]
async fn positions_that_are_gone_are_expired() {
    let bed = bed();
    for index in 0..10 {
        bed.config(&format!("c{index}"), json!({})).await;
    }
    bed.server.core().store.close();
    let directory = bed.directory.with_extension("moved");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::rename(&bed.directory, &directory).unwrap();
    drop(bed);
    let bed = open(directory, Vec::new());
    let mut stream = bed
        .watch(Options {
            resource_version: Some("3".into()),
            ..Options::default()
        })
        .await;
    let gone = status(stream.next().await.unwrap().unwrap_err());
    assert_eq!((gone.code, gone.reason), (410, Reason::Expired));
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn watches_end_with_a_bookmark_when_their_time_is_over() {
    let bed = bed();
    let options = Options {
        allow_watch_bookmarks: true,
        timeout_seconds: Some(90),
        ..Options::default()
    };
    let mut stream = bed.watch(options).await;
    bed.create(
        "v1/secrets",
        "default",
        json!({"metadata": {"name": "elsewhere"}}),
    )
    .await
    .unwrap();
    let event = stream.next().await.unwrap().unwrap();
    assert_eq!(event.kind, EventKind::Bookmark);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn collections_are_deleted_by_selector() {
    let bed = bed();
    for index in 0..4 {
        bed.config(
            &format!("c{index}"),
            json!({"odd": (index % 2).to_string()}),
        )
        .await;
    }
    let mut delete = request(
        Verb::DeleteCollection,
        target("v1/configmaps", "default", "-"),
        Body::None,
    );
    delete.options.label_selector = Some("odd=0".into());
    let answer = bed.send(delete).await.unwrap();
    assert_eq!(answer["kind"], "ConfigMapList");
    assert_eq!(answer["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        names(&bed.list(Options::default()).await.unwrap()),
        ["c1", "c3"]
    );
}

struct Marker;

impl Admission for Marker {
    fn name(&self) -> &'static str {
        "Marker"
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if request.operation == Operation::Create {
            request.object["metadata"]["labels"] = json!({"seen": "yes"});
        }
        Ok(())
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        request.warnings.push("looked at".into());
        if request.operation == Operation::Delete {
            return Err(Status::forbidden(
                "",
                "configmaps",
                request.name,
                "it stays",
            ));
        }
        Ok(())
    }
}

#[tokio::test]
async fn admission_changes_and_refuses() {
    let bed = bed_with(vec![Arc::new(Marker)]);
    let made = bed.config("a", json!({})).await;
    assert_eq!(made["metadata"]["labels"]["seen"], "yes");
    let refused = bed
        .delete("v1/configmaps", "default", "a", json!({}))
        .await
        .unwrap_err();
    assert_eq!(refused.message, "configmaps \"a\" is forbidden: it stays");
}

#[tokio::test]
async fn every_row_can_be_listed_and_watched() {
    let bed = bed();
    for row in bed.server.core().registry.snapshot().rows() {
        if !row.is_stored() || !row.allows(Verb::List) {
            continue;
        }
        for version in &row.versions {
            let resource = format!("{}/{}/{}", version.group, version.version, row.plural);
            let list = bed
                .client
                .list(request(Verb::List, target(&resource, "-", "-"), Body::None))
                .await;
            assert!(list.unwrap().items.is_empty(), "{resource}");
            if row.allows(Verb::Watch) {
                let _stream = bed
                    .client
                    .watch(request(
                        Verb::Watch,
                        target(&resource, "-", "-"),
                        Body::None,
                    ))
                    .await
                    .unwrap();
            }
        }
    }
}

/// A clock that stands: it passes only by `advance`, however long the store's thread takes.
struct Clock {
    /// A clock does not go on by itself while a blocking task runs; this one runs until the sender is dropped.
    _held: std::sync::mpsc::Sender<()>,
}

impl Clock {
    fn stop() -> Self {
        let (held, ended) = std::sync::mpsc::channel();
        tokio::task::spawn_blocking(move || ended.recv());
        tokio::time::pause();
        Self { _held: held }
    }

    /// Lets everybody see what has happened, then lets the time pass.
    async fn advance(&self, seconds: u64) {
        settle().await;
        tokio::time::advance(std::time::Duration::from_secs(seconds)).await;
        settle().await;
    }
}

async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Events that live for an hour, by a clock that stands.
struct Hour {
    bed: Bed,
    clock: Clock,
    shutdown: sampan_util::shutdown::Shutdown,
}

impl Hour {
    fn start() -> Self {
        let bed = bed();
        let clock = Clock::stop();
        let shutdown = sampan_util::shutdown::Shutdown::new();
        let core = bed.server.core().clone();
        let def = core.row("", "events").unwrap();
        let hour = std::time::Duration::from_secs(3_600);
        tokio::spawn(super::expiry::run(core, def, hour, shutdown.clone()));
        Self {
            bed,
            clock,
            shutdown,
        }
    }

    async fn event(&self, name: &str) {
        let event = json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default"}});
        self.bed
            .create("v1/events", "default", event)
            .await
            .unwrap();
    }

    async fn is_there(&self, name: &str) -> bool {
        self.bed.get("v1/events", "default", name).await.is_ok()
    }

    /// What is due goes within `seconds` of the clock, and as long as the store's thread needs.
    async fn goes(&self, name: &str, seconds: u64) {
        self.clock.advance(seconds).await;
        let begun = std::time::Instant::now();
        while self.is_there(name).await {
            assert!(begun.elapsed().as_secs() < 60, "{name} outlives its hour");
            std::thread::sleep(std::time::Duration::from_millis(5));
            settle().await;
        }
    }
}

impl Drop for Hour {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

#[tokio::test]
async fn events_expire() {
    let hour = Hour::start();
    hour.event("e").await;
    hour.clock.advance(3_500).await;
    assert!(hour.is_there("e").await);
    hour.bed
        .patch("v1/events", "default", "e", json!({"count": 2}))
        .await
        .unwrap();
    hour.clock.advance(3_500).await;
    assert!(hour.is_there("e").await, "a write starts the time anew");
    hour.goes("e", 200).await;
}

#[tokio::test]
async fn appliers_share_an_object() {
    let bed = bed();
    let apply = |manager: &str, config: Value| {
        let mut request = request(
            Verb::Patch,
            target("v1/configmaps", "default", "a"),
            Body::Patch(PatchType::Apply, config),
        );
        request.options.field_manager = Some(manager.to_owned());
        request
    };
    let config = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    bed.send(apply("one", config(json!({"x": "1", "y": "1"}))))
        .await
        .unwrap();
    let two = apply("two", config(json!({"x": "2"})));
    let conflict = bed.send(two.clone()).await.unwrap_err();
    assert!(conflict.is(Reason::Conflict), "{conflict}");
    let mut forced = two;
    forced.options.force = Some(true);
    bed.send(forced).await.unwrap();
    let left = bed.send(apply("one", config(json!({})))).await.unwrap();
    assert_eq!(
        left["data"],
        json!({"x": "2"}),
        "what nobody applies any more goes"
    );
    let other = apply(
        "one",
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}),
    );
    assert_eq!(
        bed.send(other).await.unwrap_err().message,
        "invalid object type: /v1, Kind=Secret"
    );
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let bed = bed();
    let object = json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(2 << 20)}});
    let refused = bed
        .create("v1/configmaps", "default", object)
        .await
        .unwrap_err();
    assert!(refused.code >= 400, "{refused}");
    assert!(bed.get("v1/configmaps", "default", "a").await.is_err());
}

#[tokio::test]
async fn what_is_too_deep_to_be_read_again_is_refused() {
    let bed = bed();
    let nest = |depth| (0..depth).fold(json!({}), |below, _| json!({"f:a": below}));
    let revision =
        |depth: usize| json!({"metadata": {"name": "deep"}, "revision": 1, "data": nest(depth)});
    let resource = "apps/v1/controllerrevisions";
    let refused = bed.create(resource, "default", revision(140)).await;
    assert_eq!(refused.unwrap_err().code, 400);
    let owned = json!({
        "metadata": {"name": "owned", "managedFields": [{
            "manager": "m", "operation": "Update", "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": nest(140),
        }]},
    });
    let refused = bed.create("v1/configmaps", "default", owned).await;
    assert_eq!(refused.unwrap_err().code, 400);
    // What is accepted can be changed and deleted.
    bed.create(resource, "default", revision(100))
        .await
        .unwrap();
    bed.patch(resource, "default", "deep", json!({"revision": 2}))
        .await
        .unwrap();
    bed.delete(resource, "default", "deep", json!({}))
        .await
        .unwrap();
    assert!(bed.get(resource, "default", "deep").await.is_err());
}

#[tokio::test]
async fn a_bug_ends_one_request_and_not_who_asked() {
    let bed = bed();
    let client = bed.server.transport(UserInfo::authenticated("bug", &[]));
    let list = request(
        Verb::List,
        target("v1/configmaps", "default", "-"),
        Body::None,
    );
    assert_eq!(status(client.list(list).await.unwrap_err()).code, 500);
    let object = Body::Object(json!({"metadata": {"name": "a"}}));
    let create = request(
        Verb::Create,
        target("v1/configmaps", "default", "-"),
        object,
    );
    assert_eq!(status(client.send(create).await.unwrap_err()).code, 500);
}

#[tokio::test]
async fn a_finished_list_lets_go_of_its_state() {
    let bed = bed();
    for name in ["a", "b", "c"] {
        bed.config(name, json!({})).await;
    }
    let def = bed.server.core().row("", "configmaps").unwrap();
    let bucket = bed.server.core().cache.bucket(&def);
    let page = |token: Option<String>| Options {
        limit: Some(2),
        continue_token: token,
        ..Options::default()
    };
    let first = bed.list(page(None)).await.unwrap();
    let other = bed.list(page(None)).await.unwrap();
    assert_eq!(bucket.held(), 1, "two lists of one state");
    bed.config("d", json!({})).await;
    bed.list(page(first.continue_token)).await.unwrap();
    assert_eq!(bucket.held(), 1, "the other list goes on");
    let end = bed.list(page(other.continue_token)).await.unwrap();
    assert_eq!((end.items.len(), bucket.held()), (1, 0));
}

#[tokio::test]
async fn open_lists_hold_few_bytes() {
    let bed = bed();
    for name in ["a", "b"] {
        bed.config(name, json!({})).await;
    }
    let def = bed.server.core().row("", "configmaps").unwrap();
    let bucket = bed.server.core().cache.bucket(&def);
    let mut listed = 0;
    for round in 0..20 {
        let large = json!({"metadata": {"name": "a"}, "data": {"k": format!("{round}{}", "x".repeat(1_000_000))}});
        bed.update("v1/configmaps", "default", large).await.unwrap();
        let first = bed
            .list(Options {
                limit: Some(1),
                ..Options::default()
            })
            .await
            .unwrap();
        listed += first.items.len();
    }
    assert_eq!(listed, 20);
    let held = bucket.held();
    assert!((4..=9).contains(&held), "{held} states of a megabyte each");
}

#[tokio::test]
async fn an_event_does_not_wait_for_an_older_one_to_expire() {
    let hour = Hour::start();
    hour.event("a").await;
    hour.clock.advance(3_000).await;
    hour.event("b").await;
    hour.goes("a", 700).await;
    hour.clock.advance(2_800).await;
    assert!(hour.is_there("b").await);
    hour.goes("b", 200).await;
}
