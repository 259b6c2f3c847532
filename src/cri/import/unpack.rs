//! Layers into snapshots: what a pull would have done.

use super::Error;
use super::bundle::Manifest;
use super::oci;
use super::store::{Labels, descriptor, unique};
use crate::clients::Containerd;
use crate::containerd::services::diff::v1::ApplyRequest;
use crate::containerd::services::snapshots::v1::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use tonic::Code;

/// Makes the snapshots that are missing and returns the name of the top one.
pub(super) async fn layers(
    containerd: &Containerd,
    snapshotter: &str,
    manifest: &Manifest,
) -> Result<Option<String>, Error> {
    let chain = oci::chain_ids(&manifest.diff_ids);
    for at in 0..chain.len() {
        if exists(containerd, snapshotter, &chain[at]).await? {
            continue;
        }
        let parent = if at == 0 { "" } else { &chain[at - 1] };
        let key = format!("extract-{:x} {}", unique(), chain[at]);
        let made = layer(
            containerd,
            snapshotter,
            manifest,
            at,
            parent,
            &key,
            &chain[at],
        )
        .await;
        if made.is_err() {
            let request = RemoveSnapshotRequest {
                snapshotter: snapshotter.to_owned(),
                key,
            };
            if let Err(status) = containerd.snapshots().remove(request).await {
                tracing::debug!(%status, "cannot remove a half-made snapshot; its lease ends");
            }
        }
        made?;
    }
    Ok(chain.last().cloned())
}

async fn exists(containerd: &Containerd, snapshotter: &str, key: &str) -> Result<bool, Error> {
    let request = StatSnapshotRequest {
        snapshotter: snapshotter.to_owned(),
        key: key.to_owned(),
    };
    match containerd.snapshots().stat(request).await {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::NotFound => Ok(false),
        Err(status) => Err(crate::Error::call("snapshot stat", status).into()),
    }
}

async fn layer(
    containerd: &Containerd,
    snapshotter: &str,
    manifest: &Manifest,
    at: usize,
    parent: &str,
    key: &str,
    name: &str,
) -> Result<(), Error> {
    let prepare = PrepareSnapshotRequest {
        snapshotter: snapshotter.to_owned(),
        key: key.to_owned(),
        parent: parent.to_owned(),
        labels: Labels::new(),
    };
    let prepared = containerd.snapshots().prepare(prepare).await;
    let mounts = prepared
        .map_err(|status| crate::Error::call("snapshot prepare", status))?
        .into_inner()
        .mounts;
    let layer = &manifest.layers[at];
    let apply = ApplyRequest {
        diff: Some(descriptor(layer)),
        mounts,
        ..ApplyRequest::default()
    };
    let applied = containerd.diff().apply(apply).await;
    let applied = applied.map_err(|status| crate::Error::call("diff apply", status))?;
    let actual = applied.into_inner().applied.unwrap_or_default().digest;
    if actual != manifest.diff_ids[at] {
        return Err(Error::LayerDigest {
            digest: layer.digest.clone(),
            expected: manifest.diff_ids[at].clone(),
            actual,
        });
    }
    let commit = CommitSnapshotRequest {
        snapshotter: snapshotter.to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
        labels: Labels::new(),
    };
    match containerd.snapshots().commit(commit).await {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::AlreadyExists => Ok(()),
        Err(status) => Err(crate::Error::call("snapshot commit", status).into()),
    }
}
