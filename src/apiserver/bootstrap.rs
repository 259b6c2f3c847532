//! The objects that a cluster has from its first moment, and that the server keeps in place.
//!
//! Default roles are in [`crate::auth::bootstrap`]. Everything goes through the pipeline, as the
//! server itself.

use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::try_join_all;
use sampan_api::meta::{self, at, text};
use sampan_api::resource::Target;
use sampan_api::{Options, Reason, Status, UserInfo, Verb};
use sampan_client::{Body, Request};
use serde_json::{Value, json};

use crate::allocate::Range;
use crate::registry::server::{ApiServer, no_such_resource};
use crate::request::{ApiRequest, Pipeline};

mod flow;
mod kubernetes;

/// What the objects say of this server.
#[derive(Debug, Clone)]
pub struct Settings {
    pub advertise: Vec<IpAddr>,
    pub port: u16,
    pub service_ranges: Vec<Range>,
}

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

/// Makes what is missing. Namespaces come first, the rest stands in them.
pub async fn ensure(server: &ApiServer, settings: &Settings) -> Result<(), Status> {
    let author = Author::new(server.clone());
    let namespaces = NAMESPACES
        .iter()
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    try_join_all(namespaces.map(|namespace| author.create(namespace))).await?;
    // All at once, so that they share commits.
    let missing = priority_classes()
        .into_iter()
        .chain(kubernetes::objects(settings))
        .chain(flow::objects());
    try_join_all(missing.map(|object| author.create(object))).await?;
    let endpoints = kubernetes::endpoints(settings).into_iter();
    try_join_all(endpoints.map(|object| author.keep(object, kubernetes::is_current))).await?;
    Ok(())
}

fn priority_classes() -> Vec<Value> {
    [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
    .into_iter()
    .map(|(name, value, description)| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value, "description": description})
    })
    .collect()
}

/// The server as a client of its own pipeline.
struct Author {
    server: ApiServer,
    user: Arc<UserInfo>,
}

impl Author {
    fn new(server: ApiServer) -> Self {
        let user = UserInfo::authenticated("system:apiserver", &["system:masters"]);
        Self {
            server,
            user: Arc::new(user),
        }
    }

    /// Creates the object unless one of its name is there.
    async fn create(&self, object: Value) -> Result<(), Status> {
        if self.current(&object)?.is_some() {
            return Ok(());
        }
        match self.send(Verb::Create, object).await {
            Err(status) if status.is(Reason::AlreadyExists) => Ok(()),
            result => result,
        }
    }

    /// Creates the object, or replaces one that is not as it should be.
    async fn keep(
        &self,
        object: Value,
        is_current: fn(&Value, &Value) -> bool,
    ) -> Result<(), Status> {
        match self.current(&object)? {
            None => self.create(object).await,
            Some(current) if is_current(&current, &object) => Ok(()),
            Some(current) => {
                let mut object = object;
                let version = at(&current, &["metadata", "resourceVersion"]).clone();
                meta::set(&mut object, &["metadata", "resourceVersion"], version);
                self.send(Verb::Update, object).await
            }
        }
    }

    fn target(&self, object: &Value) -> Result<Target, Status> {
        let api_version = text(object, &["apiVersion"]);
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let registry = self.server.core().registry.snapshot();
        let def = registry
            .by_kind(group, version, text(object, &["kind"]))
            .ok_or_else(no_such_resource)?;
        let served = def.version(group, version).ok_or_else(no_such_resource)?;
        Ok(Target {
            resource: def.gvr(served),
            namespace: at(object, &["metadata", "namespace"])
                .as_str()
                .map(str::to_owned),
            name: Some(text(object, &["metadata", "name"]).to_owned()),
            subresource: None,
        })
    }

    fn current(&self, object: &Value) -> Result<Option<Value>, Status> {
        let target = self.target(object)?;
        let found = self.server.core().get(
            &target.resource.group,
            &target.resource.resource,
            target.namespace.as_deref(),
            target.name.as_deref().unwrap_or_default(),
        );
        found
            .map(|object| serde_json::from_slice(&object.bytes).map_err(Status::internal))
            .transpose()
    }

    async fn send(&self, verb: Verb, object: Value) -> Result<(), Status> {
        let mut target = self.target(&object)?;
        if verb == Verb::Create {
            target.name = None;
        }
        let request = Request {
            verb,
            target,
            options: Options::default(),
            body: Body::Object(object),
        };
        let request = ApiRequest::own(self.user.clone(), request);
        self.server.handle(request).await.map(drop)
    }
}
