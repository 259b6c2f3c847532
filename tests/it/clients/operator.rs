//! An operator: watches parents, keeps their children, cleans up by finalizer, leads by lease, survives a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Resource, ResourceExt};

use super::client_of;
use crate::support::process::ControlPlane;

const PARENTS: usize = 10;
const FINALIZER: &str = "sampan.test/children";
const MANAGER: &str = "test-operator";

#[test]
fn an_operator_of_the_kube_crate_works_and_survives_restarts() {
    let mut plane = ControlPlane::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(client_of(&plane.sampan));
    let counts = Arc::new(Counts::default());
    let store = runtime.block_on(async { start_reflector(client.clone(), &counts) });
    let operator = runtime.spawn(run_operator(client.clone(), Arc::clone(&counts)));

    runtime.block_on(make_parents(&client, 2));
    runtime.block_on(children_are(&client, PARENTS * 2));
    runtime.block_on(leads_once(&client));

    // The server goes away under the watches and comes back.
    plane.sampan.kill();
    plane.start_again();
    plane.wait_ready();
    runtime.block_on(scale_parents(&client, 3));
    runtime.block_on(children_are(&client, PARENTS * 3));
    runtime.block_on(repairs(&client));

    runtime.block_on(delete_parents(&client));
    runtime.block_on(children_are(&client, 0));
    runtime.block_on(parents_are_gone(&client));
    // A cleanup may be asked for again before its end is seen.
    let cleaned = counts.cleaned.load(Ordering::SeqCst);
    assert!(cleaned >= PARENTS as u64, "{cleaned} finalizers run");
    runtime.block_on(store_agrees(&client, &store));
    operator.abort();
    println!(
        "kube crate: {PARENTS} parents, {} children applied server-side, {} reconciles ({} failed and retried), {cleaned} \
         finalizers run, {} watch events, 1 of 2 leaders, reflector equals the list after a kill -9 of the server",
        PARENTS * 3,
        counts.reconciled.load(Ordering::SeqCst),
        counts.errors.load(Ordering::SeqCst),
        counts.events.load(Ordering::SeqCst),
    );
}

#[derive(Default)]
struct Counts {
    reconciled: AtomicU64,
    errors: AtomicU64,
    cleaned: AtomicU64,
    events: AtomicU64,
}

fn api(client: &kube::Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

fn parents() -> ListParams {
    ListParams::default().labels("role=parent")
}

fn children() -> ListParams {
    ListParams::default().labels("role=child")
}

fn labelled(name: &str, role: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(BTreeMap::from([("role".to_owned(), role.to_owned())])),
        ..ObjectMeta::default()
    }
}

/// Follows all ConfigMaps of the namespace.
fn start_reflector(client: kube::Client, counts: &Arc<Counts>) -> Store<ConfigMap> {
    let (store, writer) = reflector::store();
    let counts = Arc::clone(counts);
    let stream = watcher(api(&client), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .for_each(move |event| {
            counts
                .events
                .fetch_add(u64::from(event.is_ok()), Ordering::SeqCst);
            std::future::ready(())
        });
    drop(tokio::spawn(stream));
    store
}

struct Operator {
    client: kube::Client,
    counts: Arc<Counts>,
}

async fn run_operator(client: kube::Client, counts: Arc<Counts>) {
    let select = watcher::Config::default();
    let operator = Arc::new(Operator {
        client: client.clone(),
        counts,
    });
    Controller::new(api(&client), select.clone().labels("role=parent"))
        .owns(api(&client), select.labels("role=child"))
        .run(reconcile, on_error, operator)
        .for_each(|_| std::future::ready(()))
        .await;
}

type Failure = kube::runtime::finalizer::Error<kube::Error>;

async fn reconcile(parent: Arc<ConfigMap>, operator: Arc<Operator>) -> Result<Action, Failure> {
    operator.counts.reconciled.fetch_add(1, Ordering::SeqCst);
    let maps = api(&operator.client);
    finalizer(&maps, FINALIZER, parent, |event| async {
        match event {
            Event::Apply(parent) => apply_children(&maps, &parent).await,
            Event::Cleanup(parent) => {
                let gone = maps
                    .delete_collection(&DeleteParams::default(), &of_parent(&parent))
                    .await;
                gone.map(|_| {
                    operator.counts.cleaned.fetch_add(1, Ordering::SeqCst);
                    Action::await_change()
                })
            }
        }
    })
    .await
}

fn on_error(_: Arc<ConfigMap>, _: &Failure, operator: Arc<Operator>) -> Action {
    operator.counts.errors.fetch_add(1, Ordering::SeqCst);
    Action::requeue(Duration::from_millis(200))
}

fn of_parent(parent: &ConfigMap) -> ListParams {
    ListParams::default().labels(&format!("role=child,parent={}", parent.name_any()))
}

async fn apply_children(maps: &Api<ConfigMap>, parent: &ConfigMap) -> Result<Action, kube::Error> {
    let wanted: usize = parent.data.as_ref().unwrap()["children"].parse().unwrap();
    for number in 0..wanted {
        let name = format!("{}-{number}", parent.name_any());
        let mut metadata = labelled(&name, "child");
        metadata
            .labels
            .as_mut()
            .unwrap()
            .insert("parent".to_owned(), parent.name_any());
        metadata.owner_references = parent.controller_owner_ref(&()).map(|owner| vec![owner]);
        let child = ConfigMap {
            metadata,
            data: Some(BTreeMap::from([("number".to_owned(), number.to_string())])),
            ..ConfigMap::default()
        };
        let apply = PatchParams::apply(MANAGER).force();
        maps.patch(&name, &apply, &Patch::Apply(&child)).await?;
    }
    Ok(Action::await_change())
}

async fn make_parents(client: &kube::Client, children: usize) {
    for number in 0..PARENTS {
        let parent = ConfigMap {
            metadata: labelled(&format!("parent{number}"), "parent"),
            data: Some(BTreeMap::from([(
                "children".to_owned(),
                children.to_string(),
            )])),
            ..ConfigMap::default()
        };
        api(client)
            .create(&PostParams::default(), &parent)
            .await
            .unwrap();
    }
}

async fn scale_parents(client: &kube::Client, children: usize) {
    let patch = serde_json::json!({"data": {"children": children.to_string()}});
    for number in 0..PARENTS {
        let (name, params) = (format!("parent{number}"), PatchParams::default());
        api(client)
            .patch(&name, &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    }
}

async fn delete_parents(client: &kube::Client) {
    for parent in api(client).list(&parents()).await.unwrap() {
        assert_eq!(parent.finalizers(), [FINALIZER]);
        api(client)
            .delete(&parent.name_any(), &DeleteParams::default())
            .await
            .unwrap();
    }
}

/// A child that is deleted or changed by hand comes back as it was.
async fn repairs(client: &kube::Client) {
    let maps = api(client);
    maps.delete("parent0-1", &DeleteParams::default())
        .await
        .unwrap();
    let patch = serde_json::json!({"data": {"number": "wrong"}});
    maps.patch("parent1-1", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    soon("the children are as they were", || async {
        let (gone, changed) = (
            maps.get_opt("parent0-1").await?,
            maps.get("parent1-1").await?,
        );
        let number = changed.data.unwrap_or_default().remove("number");
        Ok((gone.is_some() && number.as_deref() == Some("1")).then_some(()))
    })
    .await;
}

async fn children_are(client: &kube::Client, count: usize) {
    soon(&format!("{count} children"), || async {
        let list = api(client).list(&children()).await?;
        Ok((list.items.len() == count).then_some(()))
    })
    .await;
}

async fn parents_are_gone(client: &kube::Client) {
    soon("no parent is left", || async {
        let list = api(client).list(&parents()).await?;
        Ok(list.items.is_empty().then_some(()))
    })
    .await;
}

async fn store_agrees(client: &kube::Client, store: &Store<ConfigMap>) {
    soon("the reflector equals the list", || async {
        let list = api(client).list(&ListParams::default()).await?;
        let same = |map: &ConfigMap| {
            let known = store.get(&ObjectRef::from_obj(map));
            known.is_some_and(|known| known.meta().resource_version == map.meta().resource_version)
        };
        let all = list.items.iter().all(same) && list.items.len() == store.len();
        Ok(all.then_some(()))
    })
    .await;
}

/// Two candidates for one lease: the second is refused while the first renews, and takes over when it is late.
async fn leads_once(client: &kube::Client) {
    let leases: Api<Lease> = Api::default_namespaced(client.clone());
    let lease = |holder: &str| Lease {
        metadata: ObjectMeta {
            name: Some("leader".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(k8s_openapi::jiff::Timestamp::now())),
            ..LeaseSpec::default()
        }),
    };
    let post = PostParams::default();
    let (first, second) = (lease("one"), lease("two"));
    let both = tokio::join!(leases.create(&post, &first), leases.create(&post, &second));
    let won = [&both.0, &both.1]
        .iter()
        .filter(|result| result.is_ok())
        .count();
    assert_eq!(won, 1, "candidates that made the lease: {both:?}");
    // Both try to replace what they have read: one of them must lose.
    let mut read = leases.get("leader").await.unwrap();
    read.spec = lease("one").spec;
    let mut other = read.clone();
    other.spec = lease("two").spec;
    let both = tokio::join!(
        leases.replace("leader", &post, &read),
        leases.replace("leader", &post, &other)
    );
    let conflicts = [&both.0, &both.1]
        .iter()
        .filter(|result| matches!(result, Err(kube::Error::Api(status)) if status.code == 409))
        .count();
    assert_eq!(conflicts, 1, "candidates refused: {both:?}");
}

/// Repeats a look at the server until it finds something; a server that is away for a moment is no failure.
async fn soon<T, F>(what: &str, look: impl Fn() -> F) -> T
where
    F: Future<Output = Result<Option<T>, kube::Error>>,
{
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let found = look().await;
        if let Ok(Some(value)) = found {
            return value;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what}: not within a minute; last: {:?}",
            found.err()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
