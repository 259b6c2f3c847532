//! Getting the image of a container onto the node. Upstream counterpart: `images/image_manager`.

mod credentials;
mod name;

use crate::backoff::go_duration;
use crate::config::security::ImageUser;
use crate::events::container_reference;
use crate::pod;
use crate::runtime::images::Imported;
use crate::text;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, Secret};
use sampan_client::{Client, Recorder};
use sampan_cri::Images;
use sampan_cri::runtime::v1::{
    AuthConfig, ImageSpec, ImageStatusRequest, PodSandboxConfig, PullImageRequest,
};
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// Why there is no image; `reason` is what the container's status shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoImage {
    pub reason: &'static str,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundImage {
    /// What the runtime calls it.
    pub id: String,
    pub user: ImageUser,
}

#[derive(Clone)]
pub struct Puller {
    images: Images,
    client: Client,
    recorder: Recorder,
    slots: Arc<Semaphore>,
    imported: watch::Receiver<Imported>,
}

impl Puller {
    pub fn new(
        images: Images,
        client: Client,
        recorder: Recorder,
        parallel_pulls: usize,
        imported: watch::Receiver<Imported>,
    ) -> Self {
        Self {
            images,
            client,
            recorder,
            slots: Arc::new(Semaphore::new(parallel_pulls)),
            imported,
        }
    }

    pub fn images(&self) -> &Images {
        &self.images
    }

    /// Makes sure that the container's image is there, as its pull policy asks.
    pub async fn ensure(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox: &PodSandboxConfig,
    ) -> Result<FoundImage, NoImage> {
        let asked = container.image.as_deref().unwrap_or_default();
        let about = container_reference(pod, &container.name);
        let image = name::with_default_tag(asked).map_err(|error| {
            let message = format!("Failed to apply default image tag {asked:?}: {error}");
            self.recorder
                .record(about.clone(), true, "InspectFailed", message.clone());
            NoImage {
                reason: "InvalidImageName",
                message,
            }
        })?;
        let policy = container.image_pull_policy.as_deref().unwrap_or_default();
        if policy != "Always" {
            if let Some(found) = self.find(&about, &image).await? {
                let message = format!(
                    "Container image {asked:?} already present on machine and can be accessed by the pod"
                );
                self.recorder.record(about, false, "Pulled", message);
                return Ok(found);
            }
            if policy == "Never" {
                let message =
                    format!("Container image {asked:?} is not present with pull policy of Never");
                self.recorder
                    .record(about, true, "ErrImageNeverPull", message.clone());
                return Err(NoImage {
                    reason: "ErrImageNeverPull",
                    message,
                });
            }
        }
        self.pull(pod, &about, asked, &image, sandbox).await
    }

    async fn find(
        &self,
        about: &ObjectReference,
        image: &str,
    ) -> Result<Option<FoundImage>, NoImage> {
        // What lies in an archive is not asked of a registry. The sender ends with the node.
        let mut imported = self.imported.clone();
        drop(imported.wait_for(Option::is_some).await);
        self.inspect(image).await.map_err(|error| {
            let message = format!("Failed to inspect image {image:?}: {}", text::grpc(&error));
            self.recorder
                .record(about.clone(), true, "InspectFailed", message.clone());
            NoImage {
                reason: "ImageInspectError",
                message,
            }
        })
    }

    async fn inspect(&self, image: &str) -> Result<Option<FoundImage>, sampan_cri::Error> {
        let request = ImageStatusRequest {
            image: Some(spec(image)),
            verbose: false,
        };
        let reply = self.images.image_status(request).await?;
        Ok(reply.image.map(|found| FoundImage {
            user: image_user(found.uid.map(|u| u.value), found.username),
            id: found.id,
        }))
    }

    async fn pull(
        &self,
        pod: &Pod,
        about: &ObjectReference,
        asked: &str,
        image: &str,
        sandbox: &PodSandboxConfig,
    ) -> Result<FoundImage, NoImage> {
        let note = |warning: bool, reason: &str, message: String| {
            self.recorder
                .record(about.clone(), warning, reason, message);
        };
        note(false, "Pulling", format!("Pulling image {asked:?}"));
        let asked_at = Instant::now();
        let _slot = self.slots.acquire().await;
        let started_at = Instant::now();
        let logins = self.logins(pod, image).await;
        let pulled = self.pull_with(image, &logins, sandbox).await;
        let failed = |error: &sampan_cri::Error| {
            let error = text::grpc(error);
            note(
                true,
                "Failed",
                format!("Failed to pull image {asked:?}: {error}"),
            );
            explain(asked, error)
        };
        let reference = pulled.map_err(|error| failed(&error))?;
        let request = ImageStatusRequest {
            image: Some(spec(&reference)),
            verbose: false,
        };
        let reply = self.images.image_status(request).await;
        let found = reply.map_err(|error| failed(&error))?.image;
        let size = found.as_ref().map_or(0, |i| i.size);
        let took = |since: Instant| {
            let millis = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
            go_duration(SignedDuration::from_millis(millis))
        };
        let message = format!(
            "Successfully pulled image {asked:?} in {} ({} including waiting). Image size: {size} bytes.",
            took(started_at),
            took(asked_at)
        );
        note(false, "Pulled", message);
        let user = found.map(|i| image_user(i.uid.map(|u| u.value), i.username));
        Ok(FoundImage {
            id: reference,
            user: user.unwrap_or_default(),
        })
    }

    /// Tries each login that fits the registry, or none if there is none.
    async fn pull_with(
        &self,
        image: &str,
        logins: &[AuthConfig],
        sandbox: &PodSandboxConfig,
    ) -> Result<String, sampan_cri::Error> {
        let request = |auth: Option<AuthConfig>| PullImageRequest {
            image: Some(spec(image)),
            auth,
            sandbox_config: Some(sandbox.clone()),
        };
        let mut last = None;
        for login in logins {
            match self.images.pull_image(request(Some(login.clone()))).await {
                Ok(reply) => return Ok(reply.image_ref),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error),
            None => Ok(self.images.pull_image(request(None)).await?.image_ref),
        }
    }

    async fn logins(&self, pod: &Pod, image: &str) -> Vec<AuthConfig> {
        let names = pod::spec(pod).image_pull_secrets.iter().flatten();
        let (mut secrets, mut missing) = (Vec::new(), Vec::new());
        for reference in names {
            let namespace = Some(pod::namespace(pod));
            match self.client.get::<Secret>(namespace, &reference.name).await {
                Ok(secret) => secrets.push(secret),
                Err(_) => missing.push(reference.name.as_str()),
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.recorder
                .warning(pod, "FailedToRetrieveImagePullSecret", message);
        }
        credentials::for_image(&secrets, image)
    }
}

fn spec(image: &str) -> ImageSpec {
    ImageSpec {
        image: image.to_owned(),
        ..ImageSpec::default()
    }
}

/// An image that names no user runs as root.
fn image_user(uid: Option<i64>, name: String) -> ImageUser {
    let is_named = !name.is_empty();
    ImageUser {
        uid: uid.or((!is_named).then_some(0)),
        name: if uid.is_some() { String::new() } else { name },
    }
}

/// Two failures have reasons of their own; the runtime marks them in its text.
fn explain(asked: &str, error: String) -> NoImage {
    let marks = [
        ("RegistryUnavailable", "the registry is unavailable"),
        (
            "SignatureValidationFailed",
            "the signature validation failed",
        ),
    ];
    for (reason, words) in marks {
        if let Some(rest) = error.strip_prefix(reason) {
            return NoImage {
                reason,
                message: format!("image pull failed for {asked} because {words}{rest}"),
            };
        }
    }
    NoImage {
        reason: crate::status::ERR_IMAGE_PULL,
        message: error,
    }
}
