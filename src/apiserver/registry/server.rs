//! The API server below HTTP: state, hooks, and the dispatch of requests to verbs.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sampan_api::registry::ServedVersion;
use sampan_api::{Reason, Registry, ResourceDef, Status, Target, UserInfo, Verb};
use sampan_client::Transport;
use sampan_store::{Store, StoreFuture};
use sampan_util::shutdown::Shutdown;
use sampan_util::task;

use super::cache::Cache;
use super::call::{self, Call};
use super::expiry;
use super::hooks::{Chain, Hooks, Reserve, Subresource, Virtual};
use super::object::Object;
use super::storage::StorageCodec;
use super::verbs;
use crate::auth::{ChangeHandler, ObjectSource};
use crate::encryption::Keyring;
use crate::http::turn;
use crate::inprocess::InProcess;
use crate::request::{ApiRequest, Authorizer, Pipeline, Reply};

/// The state everything else stands on: rows, store, cache.
pub struct Core {
    pub registry: Arc<Registry>,
    pub cache: Arc<Cache>,
    pub store: Arc<dyn Store>,
    pub codec: Arc<StorageCodec>,
}

impl Core {
    /// Loads the store into the cache. Blocks for as long as that takes.
    pub fn open(
        store: Arc<dyn Store>,
        registry: Arc<Registry>,
        keys: Keyring,
    ) -> Result<Arc<Self>, sampan_store::Error> {
        let codec = Arc::new(StorageCodec::new(keys));
        let cache = Cache::new(registry.clone(), codec.clone());
        store.start(cache.clone())?;
        Ok(Arc::new(Self {
            registry,
            cache,
            store,
            codec,
        }))
    }

    pub fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    /// A row by group and plural, whatever its versions.
    pub fn row(&self, group: &str, plural: &str) -> Option<Arc<ResourceDef>> {
        self.registry
            .snapshot()
            .rows()
            .iter()
            .find(|row| row.group() == group && row.plural == plural)
            .cloned()
    }

    /// Serves a row that came at run time (or a newer form of it).
    pub fn add_row(&self, def: Arc<ResourceDef>) {
        let bucket = self.cache.register(&def);
        self.registry.insert(def);
        bucket.end_watches();
    }

    /// Stops serving a row; its objects are not touched.
    pub fn remove_row(&self, group: &str, plural: &str) {
        let row = self.row(group, plural);
        self.registry.remove(group, plural);
        if let Some(row) = row {
            self.cache.bucket(&row).end_watches();
        }
    }

    /// One cached object by group and plural: what authorizers and admission read.
    pub fn get(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Object>> {
        self.cache.get(&*self.row(group, plural)?, namespace, name)
    }

    pub fn flush(&self) -> StoreFuture<()> {
        self.store.flush()
    }
}

impl ObjectSource for Core {
    fn object(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes> {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        let object = self.get(group, resource, namespace, name)?;
        Some(object.bytes.clone())
    }

    fn subscribe(&self, group: &str, resource: &str, handler: ChangeHandler) {
        match self.row(group, resource) {
            Some(def) => self.cache.bucket(&def).observe(handler),
            None => tracing::error!(group, resource, "no such resource to follow"),
        }
    }
}

/// How long objects of volatile rows stay after they were last written.
const EVENT_TTL: Duration = Duration::from_secs(3_600);

/// Group and plural of subresources that any custom resource may have.
pub const ANY: &str = "*";

type SubresourceKey = (String, String, String);

struct Inner {
    core: Arc<Core>,
    authorizer: Arc<dyn Authorizer>,
    admission: Chain,
    subresources: HashMap<SubresourceKey, Arc<dyn Subresource>>,
    virtuals: HashMap<(String, String), Arc<dyn Virtual>>,
    reserves: HashMap<(String, String), Arc<dyn Reserve>>,
    definitions: Arc<crate::custom::Changes>,
}

/// The pipeline; cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

impl ApiServer {
    pub fn new(core: Arc<Core>, authorizer: Arc<dyn Authorizer>, hooks: Hooks) -> Self {
        let mut subresources = HashMap::new();
        for hook in hooks.subresources {
            for (group, plural, name) in hook.serves() {
                let key = (group.to_owned(), plural.to_owned(), name.to_owned());
                subresources.insert(key, hook.clone());
            }
        }
        let mut virtuals = HashMap::new();
        for hook in hooks.virtuals {
            for (group, plural) in hook.serves() {
                virtuals.insert((group.to_owned(), plural.to_owned()), hook.clone());
            }
        }
        let reserves = hooks
            .reserves
            .into_iter()
            .map(|hook| {
                let (group, plural) = hook.serves();
                ((group.to_owned(), plural.to_owned()), hook)
            })
            .collect();
        let definitions = Arc::new(crate::custom::follow(&core));
        Self {
            inner: Arc::new(Inner {
                definitions,
                core,
                authorizer,
                admission: hooks.admission,
                subresources,
                virtuals,
                reserves,
            }),
        }
    }

    pub fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    pub fn authorizer(&self) -> &dyn Authorizer {
        &*self.inner.authorizer
    }

    pub fn admission(&self) -> &Chain {
        &self.inner.admission
    }

    pub fn reserve(&self, def: &ResourceDef) -> Option<Arc<dyn Reserve>> {
        if self.inner.reserves.is_empty() {
            return None;
        }
        let key = (def.group().to_owned(), def.plural.to_string());
        self.inner.reserves.get(&key).cloned()
    }

    /// Starts what runs beside requests: objects of volatile rows expire.
    pub fn start_background(&self, shutdown: &Shutdown) {
        let definitions = self.inner.definitions.clone();
        let work = crate::custom::run(self.clone(), definitions, shutdown.clone());
        drop(task::spawn("custom resource definitions", work));
        let work = crate::conditions::run(self.clone(), shutdown.clone());
        drop(task::spawn("conditions", work));
        for def in self.core().registry.snapshot().rows() {
            if def.volatile && def.is_stored() {
                let work = expiry::run(
                    self.core().clone(),
                    def.clone(),
                    EVENT_TTL,
                    shutdown.clone(),
                );
                drop(task::spawn("expiry", work));
            }
        }
    }

    /// What an actor inside this process reaches the API with.
    pub fn transport(&self, user: UserInfo) -> Arc<dyn Transport> {
        Arc::new(InProcess::new(self.clone(), user))
    }

    async fn run(self, request: ApiRequest) -> Result<Reply, Status> {
        let target = &request.request.target;
        let verb = request.request.verb;
        call::authorize(
            &self,
            &request.user,
            verb.as_str(),
            target,
            &request.request.options,
        )?;
        let (def, version) = self.resolve(&request)?;
        check_place(&def, verb, target)?;
        check_conversion(&def, &version)?;
        let subresource = target.subresource.clone().unwrap_or_default();
        if subresource.is_empty() {
            if let Some(hook) = self.virtual_of(&def) {
                return hook.handle(self.clone(), def, request).await;
            }
            if !def.allows(verb) {
                return Err(method_not_allowed());
            }
        } else {
            let key = (
                def.group().to_owned(),
                def.plural.to_string(),
                subresource.to_string(),
            );
            let hooks = &self.inner.subresources;
            let of_custom = || {
                let any = (ANY.to_owned(), ANY.to_owned(), subresource.to_string());
                def.is_custom().then(|| hooks.get(&any)).flatten()
            };
            let hook = hooks.get(&key).or_else(of_custom).cloned();
            if let Some(hook) = hook.filter(|_| def.subresource(&subresource).is_some()) {
                return hook.handle(self.clone(), def, request).await;
            }
            let sub = def.subresource(&subresource).ok_or_else(no_such_resource)?;
            if !sub.verbs.contains(&verb) {
                return Err(method_not_allowed());
            }
            if sub.kind.is_some() {
                return Err(no_such_resource());
            }
        }
        if !def.is_stored() {
            return Err(method_not_allowed());
        }
        let call = Call::new(self, request, def, version);
        let warnings = call.warnings.clone();
        let answer = match verb {
            Verb::Get => verbs::get::run(call).await,
            Verb::List => verbs::list::run(call).await,
            Verb::Watch => verbs::watch::run(call).await,
            Verb::Create => verbs::create::run(call).await,
            Verb::Update => verbs::update::run(call).await,
            Verb::Patch => verbs::patch::run(call).await,
            Verb::Delete => verbs::delete::run(call).await,
            Verb::DeleteCollection => verbs::delete_collection::run(call).await,
        };
        answer.map_err(|mut status| {
            status.warnings.extend(warnings.take());
            status
        })
    }

    fn virtual_of(&self, def: &ResourceDef) -> Option<Arc<dyn Virtual>> {
        if self.inner.virtuals.is_empty() {
            return None;
        }
        let key = (def.group().to_owned(), def.plural.to_string());
        self.inner.virtuals.get(&key).cloned()
    }

    fn resolve(&self, request: &ApiRequest) -> Result<(Arc<ResourceDef>, ServedVersion), Status> {
        let resource = &request.request.target.resource;
        let def = self
            .core()
            .registry
            .by_gvr(resource)
            .ok_or_else(no_such_resource)?;
        let version = def
            .version(&resource.group, &resource.version)
            .cloned()
            .ok_or_else(no_such_resource)?;
        Ok((def, version))
    }
}

/// Webhooks that convert are not called: other versions than the stored one would show wrong fields.
fn check_conversion(def: &ResourceDef, version: &ServedVersion) -> Result<(), Status> {
    let by_webhook = def.custom.as_ref().is_some_and(|custom| custom.by_webhook);
    if !by_webhook || version == def.storage_version() {
        return Ok(());
    }
    Err(Status::internal(format!(
        "conversion webhook for {}, Kind={} failed: conversion by webhook is not supported yet, use {}",
        version.api_version(),
        def.kind,
        def.storage_version().api_version()
    )))
}

/// The target must have the shape its verb and row ask for.
fn check_place(def: &ResourceDef, verb: Verb, target: &Target) -> Result<(), Status> {
    let named = target.name.is_some();
    match (&target.namespace, def.is_namespaced()) {
        // Some clients name a namespace object by its own name as namespace.
        (Some(namespace), false) if Some(namespace) != target.name.as_ref() => {
            return Err(no_such_resource());
        }
        (None, true) => match verb {
            Verb::List | Verb::Watch => {}
            Verb::Create | Verb::DeleteCollection if !named => return Err(method_not_allowed()),
            _ => return Err(no_such_resource()),
        },
        _ => {}
    }
    let fits = match verb {
        Verb::Create => !named || target.subresource.is_some(),
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => named,
        Verb::List | Verb::DeleteCollection => !named,
        Verb::Watch => true,
    };
    if fits {
        Ok(())
    } else {
        Err(method_not_allowed())
    }
}

pub fn no_such_resource() -> Status {
    Status::new(
        Reason::NotFound,
        "the server could not find the requested resource",
    )
    .with_details(sampan_api::status::Details::default())
}

pub fn method_not_allowed() -> Status {
    Status::new(
        Reason::MethodNotAllowed,
        "the server does not allow this method on the requested resource",
    )
    .with_details(sampan_api::status::Details::default())
}

impl Pipeline for ApiServer {
    /// A write goes on to its end even if nobody waits for the answer any more: what it reserved
    /// and what it stored stay in step. It keeps its turn as long. A panic ends one request, not the server.
    fn handle(&self, request: ApiRequest) -> BoxFuture<'static, Result<Reply, Status>> {
        let read_only = request.request.verb.is_read_only();
        let work = self.clone().run(request);
        let failed = || {
            tracing::error!("a request ended by a panic");
            Err(Status::internal("the request could not be completed"))
        };
        if read_only {
            let work = AssertUnwindSafe(work).catch_unwind();
            return Box::pin(async move { work.await.unwrap_or_else(|_| failed()) });
        }
        let work = turn::detach(work);
        Box::pin(async move { tokio::spawn(work).await.unwrap_or_else(|_| failed()) })
    }
}
