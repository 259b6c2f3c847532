//! Writes a bundle into containerd: blobs, snapshots, names.

use super::bundle::{Bundle, Data, Image};
use super::oci::Descriptor;
use super::{Error, unpack};
use crate::clients::Containerd;
use crate::containerd::services::content::v1 as content;
use crate::containerd::services::images::v1 as images;
use crate::containerd::services::leases::v1 as leases;
use crate::containerd::types;
use crate::runtime::v1::{ImageSpec, ImageStatusRequest};
use crate::{Channel, Images};
use futures_util::StreamExt;
use prost_types::FieldMask;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tonic::Code;

const CHUNK: usize = 1 << 20;
const MANAGED: (&str, &str) = ("io.cri-containerd.image", "managed");
const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");
/// A lease that its owner could not delete is gone after this.
const LEASE_LIFE: Duration = Duration::from_secs(3600);

/// Brings bundles into one containerd. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Importer {
    containerd: Containerd,
    cri: Images,
    snapshotter: String,
}

pub(super) type Labels = HashMap<String, String>;

impl Importer {
    pub fn new(channel: Channel, snapshotter: &str) -> Self {
        Self {
            containerd: Containerd::new(channel.clone()),
            cri: Images::new(channel),
            snapshotter: snapshotter.to_owned(),
        }
    }

    /// Imports every image of the bundle, pinned, and returns once CRI knows them by name.
    pub async fn import(&self, bundle: &Bundle) -> Result<Vec<String>, Error> {
        let lease = self.lease().await?;
        let leased = Self {
            containerd: self.containerd.with_lease(&lease),
            ..self.clone()
        };
        let result = leased.import_leased(bundle).await;
        // What failed half-way is left to the runtime's garbage collector.
        let release = leases::DeleteRequest {
            id: lease,
            sync: false,
        };
        if let Err(status) = self.containerd.leases().delete(release).await {
            tracing::warn!(%status, "cannot release the lease of an image import; it expires by itself");
        }
        result
    }

    /// The names that CRI shows already, of those given.
    pub async fn has_all(&self, names: &[String]) -> Result<bool, Error> {
        for name in names {
            if !self.is_visible(name).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn lease(&self) -> Result<String, Error> {
        let expires = rfc3339(SystemTime::now() + LEASE_LIFE);
        let request = leases::CreateRequest {
            id: format!("sampan-import-{:x}", unique()),
            labels: labels([("containerd.io/gc.expire", expires.as_str())]),
        };
        let reply = self
            .containerd
            .leases()
            .create(request)
            .await
            .map_err(|status| crate::Error::call("lease", status))?;
        Ok(reply.into_inner().lease.unwrap_or_default().id)
    }

    async fn import_leased(&self, bundle: &Bundle) -> Result<Vec<String>, Error> {
        let mut names = Vec::with_capacity(bundle.images.len());
        for image in &bundle.images {
            self.write_image(bundle, image).await?;
            let top = unpack::layers(&self.containerd, &self.snapshotter, &image.manifest).await?;
            if let Some(top) = top {
                let key = format!("containerd.io/gc.ref.snapshot.{}", self.snapshotter);
                self.label(&image.manifest.config.digest, labels([(key, top)]))
                    .await?;
            }
            // CRI knows an image by the digest of its configuration and by its names.
            for name in [&image.manifest.config.digest, &image.name] {
                self.name(name, &image.target).await?;
            }
            names.push(image.name.clone());
        }
        for name in &names {
            self.wait_visible(name).await?;
        }
        Ok(names)
    }

    async fn write_image(&self, bundle: &Bundle, image: &Image) -> Result<(), Error> {
        let manifest = &image.manifest;
        for (layer, diff_id) in manifest.layers.iter().zip(&manifest.diff_ids) {
            let uncompressed = labels([("containerd.io/uncompressed", diff_id.as_str())]);
            self.write(bundle, layer, uncompressed).await?;
        }
        self.write(bundle, &manifest.config, Labels::new()).await?;
        let mut references = labels([(
            "containerd.io/gc.ref.content.config",
            manifest.config.digest.as_str(),
        )]);
        for (at, layer) in manifest.layers.iter().enumerate() {
            references.insert(
                format!("containerd.io/gc.ref.content.l.{at}"),
                layer.digest.clone(),
            );
        }
        self.write(bundle, &manifest.descriptor, references).await?;
        for (index, children) in image.indexes.iter().rev() {
            let references = children
                .iter()
                .enumerate()
                .map(|(at, child)| {
                    let key = format!("containerd.io/gc.ref.content.m.{at}");
                    (key, child.digest.clone())
                })
                .collect();
            self.write(bundle, index, references).await?;
        }
        Ok(())
    }

    /// Writes one blob unless it is there; its labels are set either way.
    async fn write(&self, bundle: &Bundle, blob: &Descriptor, labels: Labels) -> Result<(), Error> {
        let info = content::InfoRequest {
            digest: blob.digest.clone(),
        };
        match self.containerd.content().info(info).await {
            Ok(_) => return self.label(&blob.digest, labels).await,
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(crate::Error::call("content info", status).into()),
        }
        let Some(data) = bundle.blobs.get(&blob.digest) else {
            return Err(crate::Error::Call {
                call: "content info",
                code: Code::NotFound,
                message: format!("blob {} is neither in the archive nor known", blob.digest),
            }
            .into());
        };
        match self.send(blob, data.clone(), labels.clone()).await {
            Err(status) if status.code() == Code::AlreadyExists => {
                self.label(&blob.digest, labels).await
            }
            Err(status) => Err(crate::Error::call("content write", status).into()),
            Ok(()) => Ok(()),
        }
    }

    async fn send(
        &self,
        blob: &Descriptor,
        data: Data,
        labels: Labels,
    ) -> Result<(), tonic::Status> {
        let reference = format!("sampan-import-{}", blob.digest);
        let mut client = self.containerd.content();
        // Left over from an import that was cut off.
        let abort = content::AbortRequest {
            r#ref: reference.clone(),
        };
        match client.abort(abort).await {
            Ok(_) => {}
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(status),
        }
        let (sender, receiver) = mpsc::channel(2);
        let digest = blob.digest.clone();
        let reader =
            tokio::task::spawn_blocking(move || feed(&data, &reference, &digest, labels, &sender));
        let requests = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|request| (request, receiver))
        });
        let mut replies = client.write(requests).await?.into_inner();
        while let Some(reply) = replies.next().await {
            reply?;
        }
        match reader.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(tonic::Status::data_loss(format!(
                "cannot read {}: {error}",
                blob.digest
            ))),
            Err(error) => Err(tonic::Status::internal(error.to_string())),
        }
    }

    async fn label(&self, digest: &str, labels: Labels) -> Result<(), Error> {
        if labels.is_empty() {
            return Ok(());
        }
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let request = content::UpdateRequest {
            info: Some(content::Info {
                digest: digest.to_owned(),
                labels,
                ..content::Info::default()
            }),
            update_mask: Some(FieldMask { paths }),
        };
        match self.containerd.content().update(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(crate::Error::call("content update", status).into()),
        }
    }

    /// Points a name at the image; a name that exists is moved.
    async fn name(&self, name: &str, target: &Descriptor) -> Result<(), Error> {
        let image = images::Image {
            name: name.to_owned(),
            labels: labels([MANAGED, PINNED]),
            target: Some(descriptor(target)),
            ..images::Image::default()
        };
        let create = images::CreateImageRequest {
            image: Some(image.clone()),
            ..images::CreateImageRequest::default()
        };
        match self.containerd.images().create(create).await {
            Ok(_) => return Ok(()),
            Err(status) if status.code() == Code::AlreadyExists => {}
            Err(status) => return Err(crate::Error::call("image create", status).into()),
        }
        let update = images::UpdateImageRequest {
            image: Some(image),
            ..images::UpdateImageRequest::default()
        };
        match self.containerd.images().update(update).await {
            Ok(_) => Ok(()),
            Err(status) => Err(crate::Error::call("image update", status).into()),
        }
    }

    async fn is_visible(&self, name: &str) -> Result<bool, Error> {
        let request = ImageStatusRequest {
            image: Some(ImageSpec {
                image: name.to_owned(),
                ..ImageSpec::default()
            }),
            verbose: false,
        };
        Ok(self.cri.image_status(request).await?.image.is_some())
    }

    /// CRI learns of names through containerd's events, a moment later; there is nothing to subscribe to that says
    /// when it has.
    async fn wait_visible(&self, name: &str) -> Result<(), Error> {
        let mut delay = Duration::from_millis(2);
        while delay < Duration::from_secs(8) {
            if self.is_visible(name).await? {
                return Ok(());
            }
            tokio::time::sleep(delay).await;
            delay *= 2;
        }
        Err(Error::NotVisible {
            name: name.to_owned(),
        })
    }
}

/// Sends a blob as messages: data in chunks, then the commit. Ends early when the other side hangs up.
fn feed(
    data: &Data,
    reference: &str,
    digest: &str,
    labels: Labels,
    sender: &mpsc::Sender<content::WriteContentRequest>,
) -> std::io::Result<()> {
    let total = data.size() as i64;
    let mut offset = 0;
    loop {
        let chunk = data.read_at(offset, CHUNK)?;
        let last = offset + chunk.len() as u64 == data.size();
        let action = if last {
            content::WriteAction::Commit
        } else {
            content::WriteAction::Write
        };
        let request = content::WriteContentRequest {
            action: action as i32,
            r#ref: reference.to_owned(),
            total,
            expected: digest.to_owned(),
            offset: offset as i64,
            labels: if last { labels.clone() } else { Labels::new() },
            data: chunk.clone(),
        };
        offset += chunk.len() as u64;
        if sender.blocking_send(request).is_err() || last {
            return Ok(());
        }
    }
}

pub(super) fn descriptor(from: &Descriptor) -> types::Descriptor {
    types::Descriptor {
        media_type: from.media_type.clone(),
        digest: from.digest.clone(),
        size: from.size as i64,
        ..types::Descriptor::default()
    }
}

pub(super) fn labels<K: Into<String>, V: Into<String>>(
    pairs: impl IntoIterator<Item = (K, V)>,
) -> Labels {
    pairs
        .into_iter()
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

/// Distinguishes what concurrent imports create.
pub(super) fn unique() -> u128 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    (since.as_nanos() << 20) | u128::from(NEXT.fetch_add(1, Ordering::Relaxed) & 0xf_ffff)
}

fn rfc3339(time: SystemTime) -> String {
    prost_types::Timestamp::from(time).to_string()
}
