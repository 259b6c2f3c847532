//! Copies of static pods in the API, so that people and controllers see them.

use crate::pod::{self, CONFIG_MIRROR};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sampan_client::{Client, DeleteOptions, Error, Lister};
use sampan_util::Shutdown;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

const RETRY: sampan_util::Backoff =
    sampan_util::Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

#[derive(Debug, Clone, PartialEq)]
enum Act {
    Create(Arc<Pod>),
    /// Delete the copy with this uid.
    Delete(Arc<Pod>),
}

/// Every static pod has one copy of what it is now, and no copy is without its pod.
fn plan(wanted: &[Arc<Pod>], listed: &[Arc<Pod>]) -> Vec<Act> {
    let wanted: HashMap<String, &Arc<Pod>> = wanted.iter().map(|p| (pod::key(p), p)).collect();
    let there: HashMap<String, &Arc<Pod>> = listed.iter().map(|p| (pod::key(p), p)).collect();
    let mut acts = Vec::new();
    for copy in listed.iter().filter(|p| pod::is_mirror(p)) {
        let fits = wanted.get(&pod::key(copy)).is_some_and(|pod| {
            pod::annotation(copy, CONFIG_MIRROR) == Some(pod::uid(pod))
                && !pod::is_being_deleted(copy)
        });
        if !fits {
            acts.push(Act::Delete(Arc::clone(copy)));
        }
    }
    let missing = wanted.iter().filter(|(key, _)| !there.contains_key(*key));
    acts.extend(missing.map(|(_, pod)| Act::Create(Arc::clone(pod))));
    acts
}

/// The copy: marked as such, and owned by the node.
fn copy_of(pod: &Pod, node: &str, node_uid: &str) -> Pod {
    let mut copy = pod.clone();
    let mark = pod::uid(pod).to_owned();
    let metadata = &mut copy.metadata;
    metadata.uid = None;
    metadata
        .annotations
        .get_or_insert_default()
        .insert(CONFIG_MIRROR.to_owned(), mark);
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    copy
}

pub struct Mirrors {
    pub client: Client,
    pub node_name: String,
    pub node: Lister<Node>,
    pub pods: Lister<Pod>,
    /// The static pods that run, or are on their way down.
    pub wanted: watch::Receiver<Vec<Arc<Pod>>>,
}

impl Mirrors {
    pub async fn run(mut self, shutdown: Shutdown) {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        self.pods.on_change(move |_| wake.notify_one());
        let wake = Arc::clone(&changed);
        self.node.on_change(move |_| wake.notify_one());
        tokio::select! {
            () = self.pods.synced() => {}
            () = shutdown.wait() => return,
        }
        let mut failures = 0;
        loop {
            let settled = self.settle().await;
            let again = match settled {
                Ok(()) => {
                    failures = 0;
                    None
                }
                Err(error) => {
                    tracing::debug!(%error, "the copies of static pods are not settled yet");
                    failures += 1;
                    Some(RETRY.base(failures - 1))
                }
            };
            let later = async {
                match again {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed.notified() => {}
                Ok(()) = self.wanted.changed() => {}
                () = later => {}
                () = shutdown.wait() => return,
            }
        }
    }

    async fn settle(&mut self) -> Result<(), Error> {
        let wanted = self.wanted.borrow_and_update().clone();
        let acts = plan(&wanted, &self.pods.list(None));
        let node = self.node.get(None, &self.node_name);
        // Without the node there is no owner yet; its coming wakes this loop.
        let Some(uid) = node.and_then(|node| node.metadata.uid.clone()) else {
            return Ok(());
        };
        for act in acts {
            match act {
                Act::Create(pod) => {
                    let copy = copy_of(&pod, &self.node_name, &uid);
                    match self.client.create(&copy).await {
                        // Not seen yet, or one that is about to go: the list will tell.
                        Ok(_) => {}
                        Err(error) if error.is_already_exists() => {}
                        Err(error) => return Err(error),
                    }
                }
                Act::Delete(copy) => self.delete(&copy).await?,
            }
        }
        Ok(())
    }

    async fn delete(&self, copy: &Pod) -> Result<(), Error> {
        let options = DeleteOptions::uid(pod::uid(copy)).grace_period(0);
        let (namespace, name) = (pod::namespace(copy), pod::name(copy));
        let deleted = self.client.delete::<Pod>(Some(namespace), name, &options);
        match deleted.await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn pod(name: &str, uid: &str, mirror_of: Option<&str>) -> Arc<Pod> {
        let annotations = mirror_of.map(|uid| json!({CONFIG_MIRROR: uid}));
        let metadata =
            json!({"name": name, "namespace": "d", "uid": uid, "annotations": annotations});
        Arc::new(
            serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": []}}))
                .unwrap(),
        )
    }

    #[test]
    fn copies_follow_their_pods() {
        let wanted = [
            pod("a", "1", None),
            pod("b", "2", None),
            pod("c", "3", None),
        ];
        let listed = [
            pod("a", "x", Some("1")),
            pod("b", "y", Some("old")),
            pod("gone", "z", Some("9")),
            pod("normal", "n", None),
        ];
        let acts = plan(&wanted, &listed);
        assert_eq!(
            acts,
            [
                Act::Delete(listed[1].clone()),
                Act::Delete(listed[2].clone()),
                Act::Create(wanted[2].clone())
            ]
        );
        // A pod of the API with the name is not touched.
        assert_eq!(plan(&[pod("normal", "1", None)], &listed[3..]), []);
    }

    #[test]
    fn the_node_owns_a_copy() {
        let copy = copy_of(&pod("a", "1", None), "n", "nu");
        let owner = &copy.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "nu"));
        assert!(pod::is_mirror(&copy) && copy.metadata.uid.is_none());
    }
}
