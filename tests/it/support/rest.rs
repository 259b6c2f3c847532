//! Asynchronous calls on a running server, by the project's own client.

use std::time::Duration;

use sampan_api::{GroupVersionResource, Options, Target, Verb};
use sampan_client::{
    Body, Credentials, Error, HttpsTransport, List, Request, Transport, WatchStream,
};
use serde_json::Value;

use super::process::{ADMIN_TOKEN, ControlPlane};

/// A resource by the words of its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plural {
    pub group: &'static str,
    pub version: &'static str,
    pub name: &'static str,
}

pub const CONFIG_MAPS: Plural = plural("", "v1", "configmaps");
pub const SECRETS: Plural = plural("", "v1", "secrets");
pub const EVENTS: Plural = plural("", "v1", "events");
pub const NAMESPACES: Plural = plural("", "v1", "namespaces");
pub const LEASES: Plural = plural("coordination.k8s.io", "v1", "leases");

const fn plural(group: &'static str, version: &'static str, name: &'static str) -> Plural {
    Plural {
        group,
        version,
        name,
    }
}

#[derive(Clone)]
pub struct Rest {
    pub transport: HttpsTransport,
    pub namespace: String,
}

impl Rest {
    /// The administrator of this control plane, working in one namespace.
    pub fn admin(plane: &ControlPlane, namespace: &str) -> Self {
        Self::with_authority(&plane.url, &plane.ca(), namespace)
    }

    pub fn with_authority(url: &str, authority: &[u8], namespace: &str) -> Self {
        let authority = std::str::from_utf8(authority).unwrap();
        let credentials = Credentials::Token(ADMIN_TOKEN.to_owned());
        Self {
            transport: HttpsTransport::new(url, Some(authority), &credentials, "tests").unwrap(),
            namespace: namespace.to_owned(),
        }
    }

    fn target(&self, plural: Plural, name: Option<&str>) -> Target {
        Target {
            resource: GroupVersionResource {
                group: plural.group.into(),
                version: plural.version.into(),
                resource: plural.name.into(),
            },
            namespace: (plural != NAMESPACES).then(|| self.namespace.clone()),
            name: name.map(str::to_owned),
            subresource: None,
        }
    }

    fn request(&self, verb: Verb, plural: Plural, name: Option<&str>, body: Body) -> Request {
        Request {
            verb,
            target: self.target(plural, name),
            options: Options::default(),
            body,
        }
    }

    /// Any verb but list and watch; the object that the server answers.
    pub async fn call(
        &self,
        verb: Verb,
        plural: Plural,
        name: Option<&str>,
        body: Body,
    ) -> Result<Value, Error> {
        let request = self.request(verb, plural, name, body);
        let bytes = self.transport.send(request).await?;
        Ok(serde_json::from_slice(&bytes).unwrap())
    }

    pub async fn create(&self, plural: Plural, object: Value) -> Result<Value, Error> {
        let body = Body::Object(object);
        self.call(Verb::Create, plural, None, body).await
    }

    pub async fn update(&self, plural: Plural, name: &str, object: Value) -> Result<Value, Error> {
        let body = Body::Object(object);
        self.call(Verb::Update, plural, Some(name), body).await
    }

    pub async fn get(&self, plural: Plural, name: &str) -> Result<Value, Error> {
        self.call(Verb::Get, plural, Some(name), Body::None).await
    }

    pub async fn delete(&self, plural: Plural, name: &str) -> Result<Value, Error> {
        self.call(Verb::Delete, plural, Some(name), Body::None)
            .await
    }

    pub async fn list(&self, plural: Plural) -> Result<List, Error> {
        let request = self.request(Verb::List, plural, None, Body::None);
        self.transport.list(request).await
    }

    pub async fn watch(
        &self,
        plural: Plural,
        after: u64,
        seconds: Option<u64>,
    ) -> Result<WatchStream, Error> {
        let mut request = self.request(Verb::Watch, plural, None, Body::None);
        request.options.resource_version = Some(after.to_string());
        request.options.allow_watch_bookmarks = true;
        request.options.timeout_seconds = seconds;
        self.transport.watch(request).await
    }

    /// Waits until the server answers that it is ready.
    pub async fn ready(&self, limit: Duration) -> Result<(), Error> {
        let deadline = std::time::Instant::now() + limit;
        loop {
            match self.transport.get_path("/readyz").await {
                Ok(_) => return Ok(()),
                Err(error) if std::time::Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

/// The object's `metadata.resourceVersion`.
pub fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no resourceVersion in {object}"))
}
