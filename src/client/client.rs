//! Typed and untyped calls on a [`Transport`].

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_api::resource::PatchType;
use sampan_api::{GroupVersionResource, Options, Target, Verb};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::transport::{Body, Error, List, Request, Transport, WatchStream};

/// Any Kubernetes object type that actors work with.
pub trait Resource:
    k8s_openapi::Resource
    + k8s_openapi::Metadata<Ty = ObjectMeta>
    + Serialize
    + DeserializeOwned
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<T> Resource for T where
    T: k8s_openapi::Resource
        + k8s_openapi::Metadata<Ty = ObjectMeta>
        + Serialize
        + DeserializeOwned
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// The resource behind a type.
pub fn resource_of<K: Resource>() -> GroupVersionResource {
    GroupVersionResource {
        group: K::GROUP.into(),
        version: K::VERSION.into(),
        resource: K::URL_PATH_SEGMENT.into(),
    }
}

/// What a request for an object (or, without a name, a collection) of this type aims at.
pub fn target_of<K: Resource>(namespace: Option<&str>, name: Option<&str>) -> Target {
    Target {
        resource: resource_of::<K>(),
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        subresource: None,
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ListParams {
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
}

impl ListParams {
    pub fn labels(selector: impl Into<String>) -> Self {
        Self {
            label_selector: Some(selector.into()),
            field_selector: None,
        }
    }

    pub fn fields(selector: impl Into<String>) -> Self {
        Self {
            label_selector: None,
            field_selector: Some(selector.into()),
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            ..Options::default()
        }
    }
}

/// A patch in one of the four forms.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    /// Server-side apply; the client's field manager owns the fields and conflicts are forced.
    Apply(Value),
}

impl Patch {
    fn into_body(self) -> Body {
        match self {
            Self::Json(patch) => Body::Patch(PatchType::Json, patch),
            Self::Merge(patch) => Body::Patch(PatchType::Merge, patch),
            Self::Strategic(patch) => Body::Patch(PatchType::Strategic, patch),
            Self::Apply(patch) => Body::Patch(PatchType::Apply, patch),
        }
    }
}

/// What happens to the objects that a deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

/// A delete that finds another object than this fails with Conflict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub preconditions: Preconditions,
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
}

impl DeleteOptions {
    /// Deletes only the object with this uid, not a namesake that came later.
    pub fn uid(uid: impl Into<String>) -> Self {
        Self {
            preconditions: Preconditions {
                uid: Some(uid.into()),
                resource_version: None,
            },
            ..Self::default()
        }
    }

    #[must_use]
    pub fn grace_period(mut self, seconds: i64) -> Self {
        self.grace_period_seconds = Some(seconds);
        self
    }

    #[must_use]
    pub fn propagation(mut self, propagation: Propagation) -> Self {
        self.propagation = Some(propagation);
        self
    }

    #[must_use]
    pub fn resource_version(mut self, version: impl Into<String>) -> Self {
        self.preconditions.resource_version = Some(version.into());
        self
    }

    fn to_value(&self) -> Value {
        let mut document = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = self.grace_period_seconds {
            document["gracePeriodSeconds"] = json!(seconds);
        }
        if let Some(propagation) = self.propagation {
            document["propagationPolicy"] = json!(propagation.as_str());
        }
        if let Some(uid) = &self.preconditions.uid {
            document["preconditions"]["uid"] = json!(uid);
        }
        if let Some(version) = &self.preconditions.resource_version {
            document["preconditions"]["resourceVersion"] = json!(version);
        }
        document
    }
}

/// One identity's way to the API; cheap to clone.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    field_manager: Option<Arc<str>>,
}

impl Client {
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self {
            transport,
            field_manager: None,
        }
    }

    /// The same client, naming itself as the manager of the fields it writes.
    #[must_use]
    pub fn with_field_manager(&self, manager: &str) -> Self {
        Self {
            transport: Arc::clone(&self.transport),
            field_manager: Some(manager.into()),
        }
    }

    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub async fn get<K: Resource>(&self, namespace: Option<&str>, name: &str) -> Result<K, Error> {
        decode(&self.get_raw(&target_of::<K>(namespace, Some(name))).await?)
    }

    pub async fn list<K: Resource>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<Vec<K>, Error> {
        let list = self
            .list_raw(&target_of::<K>(namespace, None), params)
            .await?;
        list.items.iter().map(decode).collect()
    }

    /// The namespace is taken from the object's metadata.
    pub async fn create<K: Resource>(&self, object: &K) -> Result<K, Error> {
        let target = target_of::<K>(object.metadata().namespace.as_deref(), None);
        decode(&self.create_raw(&target, encode(object)?).await?)
    }

    pub async fn update<K: Resource>(&self, object: &K) -> Result<K, Error> {
        let metadata = object.metadata();
        let name = metadata.name.as_deref().unwrap_or_default();
        let target = target_of::<K>(metadata.namespace.as_deref(), Some(name));
        let body = Body::Object(encode(object)?);
        decode(&self.write(Verb::Update, target, body).await?)
    }

    pub async fn patch<K: Resource>(
        &self,
        namespace: Option<&str>,
        name: &str,
        patch: &Patch,
    ) -> Result<K, Error> {
        let target = target_of::<K>(namespace, Some(name));
        decode(&self.patch_raw(&target, patch).await?)
    }

    pub async fn patch_status<K: Resource>(
        &self,
        namespace: Option<&str>,
        name: &str,
        patch: &Patch,
    ) -> Result<K, Error> {
        self.patch_subresource(namespace, name, "status", patch)
            .await
    }

    pub async fn patch_subresource<K: Resource>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: &'static str,
        patch: &Patch,
    ) -> Result<K, Error> {
        let mut target = target_of::<K>(namespace, Some(name));
        target.subresource = Some(subresource.into());
        decode(&self.patch_raw(&target, patch).await?)
    }

    pub async fn delete<K: Resource>(
        &self,
        namespace: Option<&str>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Error> {
        self.delete_raw(&target_of::<K>(namespace, Some(name)), options)
            .await
            .map(drop)
    }

    /// Creates what is no object of its own: a binding, an eviction, a token.
    pub async fn create_subresource<K: Resource, B: Serialize, R: DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: &'static str,
        body: &B,
    ) -> Result<R, Error> {
        let mut target = target_of::<K>(namespace, Some(name));
        target.subresource = Some(subresource.into());
        decode(&self.create_raw(&target, encode(body)?).await?)
    }

    pub async fn get_raw(&self, target: &Target) -> Result<Bytes, Error> {
        self.transport
            .send(Request {
                verb: Verb::Get,
                target: target.clone(),
                options: Options::default(),
                body: Body::None,
            })
            .await
    }

    /// The whole collection, following `continue` tokens where the server pages by itself.
    pub async fn list_raw(&self, target: &Target, params: &ListParams) -> Result<List, Error> {
        let mut whole = List::default();
        let mut continue_token = None;
        loop {
            let options = Options {
                continue_token: continue_token.take(),
                ..params.options()
            };
            let page = self
                .transport
                .list(Request {
                    verb: Verb::List,
                    target: target.clone(),
                    options,
                    body: Body::None,
                })
                .await?;
            whole.resource_version = page.resource_version;
            whole.items.extend(page.items);
            match page.continue_token {
                Some(token) if !token.is_empty() => continue_token = Some(token),
                _ => return Ok(whole),
            }
        }
    }

    /// Changes of a collection after `resource_version`, with bookmarks.
    pub async fn watch_raw(
        &self,
        target: &Target,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, Error> {
        let options = Options {
            watch: true,
            allow_watch_bookmarks: true,
            resource_version: Some(resource_version.to_owned()),
            ..params.options()
        };
        self.transport
            .watch(Request {
                verb: Verb::Watch,
                target: target.clone(),
                options,
                body: Body::None,
            })
            .await
    }

    pub async fn create_raw(&self, target: &Target, object: Value) -> Result<Bytes, Error> {
        self.write(Verb::Create, target.clone(), Body::Object(object))
            .await
    }

    pub async fn update_raw(&self, target: &Target, object: Value) -> Result<Bytes, Error> {
        self.write(Verb::Update, target.clone(), Body::Object(object))
            .await
    }

    pub async fn patch_raw(&self, target: &Target, patch: &Patch) -> Result<Bytes, Error> {
        self.write(Verb::Patch, target.clone(), patch.clone().into_body())
            .await
    }

    /// The object's last state, or a Status.
    pub async fn delete_raw(
        &self,
        target: &Target,
        options: &DeleteOptions,
    ) -> Result<Bytes, Error> {
        let body = Body::Object(options.to_value());
        self.transport
            .send(Request {
                verb: Verb::Delete,
                target: target.clone(),
                options: Options::default(),
                body,
            })
            .await
    }

    pub async fn delete_collection_raw(
        &self,
        target: &Target,
        params: &ListParams,
        options: &DeleteOptions,
    ) -> Result<(), Error> {
        let body = Body::Object(options.to_value());
        self.transport
            .send(Request {
                verb: Verb::DeleteCollection,
                target: target.clone(),
                options: params.options(),
                body,
            })
            .await
            .map(drop)
    }

    async fn write(&self, verb: Verb, target: Target, body: Body) -> Result<Bytes, Error> {
        let force = matches!(body, Body::Patch(PatchType::Apply, _)).then_some(true);
        let options = Options {
            field_manager: self.field_manager.as_deref().map(str::to_owned),
            force,
            ..Options::default()
        };
        self.transport
            .send(Request {
                verb,
                target,
                options,
                body,
            })
            .await
    }
}

pub(crate) fn parse_revision(version: &str) -> Option<u64> {
    version.parse().ok()
}

fn encode<B: Serialize>(body: &B) -> Result<Value, Error> {
    serde_json::to_value(body).map_err(|error| Error::Malformed(error.to_string()))
}

fn decode<R: DeserializeOwned>(bytes: &Bytes) -> Result<R, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::Malformed(error.to_string()))
}
