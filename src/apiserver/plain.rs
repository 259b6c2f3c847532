//! Subresources and resources that are no stored objects: binding, eviction, scale, tokens, reviews.
//!
//! One file each, listed here. They run behind authorization like everything else and use the
//! generic write path where they change an object.

use std::sync::Arc;

use bytes::Bytes;
use sampan_api::registry::ServedVersion;
use sampan_api::{ResourceDef, Status, Verb, meta, schema};
use sampan_client::Body;
use sampan_store::{Class, Error as StoreError, Expect};
use serde_json::{Value, json};

use crate::auth::authenticator::Authenticator;
use crate::auth::rbac::Rbac;
use crate::auth::service_account::ServiceAccountTokens;
use crate::health::Health;
use crate::registry::call::Call;
use crate::registry::hooks::{AdmissionRequest, Operation, Subresource, Virtual};
use crate::registry::server::{ApiServer, method_not_allowed, no_such_resource};
use crate::registry::write::{MODIFIED, store_failed};
use crate::request::{ApiRequest, Reply};

mod access_review;
mod binding;
mod component_status;
mod eviction;
mod identity_review;
mod scale;
mod token;

/// Races lost before a write gives up.
const RACES: usize = 64;

/// All subresources of this kind.
pub fn subresources(tokens: Option<Arc<ServiceAccountTokens>>) -> Vec<Arc<dyn Subresource>> {
    let mut all: Vec<Arc<dyn Subresource>> = vec![
        Arc::new(binding::PodBinding),
        Arc::new(eviction::Eviction),
        Arc::new(scale::Scale),
    ];
    if let Some(tokens) = tokens {
        all.push(Arc::new(token::Token(tokens)));
    }
    all
}

/// All resources that are answered but not stored.
pub fn virtuals(
    rbac: Arc<Rbac>,
    authenticator: Arc<Authenticator>,
    health: Health,
) -> Vec<Arc<dyn Virtual>> {
    vec![
        Arc::new(binding::Bindings),
        Arc::new(component_status::ComponentStatuses(health)),
        Arc::new(access_review::AccessReview),
        Arc::new(access_review::RulesReview(rbac)),
        Arc::new(identity_review::SelfReview),
        Arc::new(identity_review::TokenReview(authenticator)),
    ]
}

/// A request on its way through one of these.
struct Plain {
    call: Call,
}

impl Plain {
    fn new(server: ApiServer, def: Arc<ResourceDef>, request: ApiRequest) -> Result<Self, Status> {
        let resource = &request.request.target.resource;
        let version = def
            .version(&resource.group, &resource.version)
            .cloned()
            .ok_or_else(no_such_resource)?;
        Ok(Self {
            call: Call::new(server, request, def, version),
        })
    }

    fn only(self, verbs: &[Verb]) -> Result<Self, Status> {
        if verbs.contains(&self.call.verb) {
            Ok(self)
        } else {
            Err(method_not_allowed())
        }
    }

    /// The body, checked against the type it must have.
    fn body(&mut self, group: &str, version: &str, kind: &str) -> Result<Value, Status> {
        let Body::Object(mut object) = std::mem::replace(&mut self.call.body, Body::None) else {
            return Err(Status::bad_request(
                "the request needs an object in its body",
            ));
        };
        let api_version = sampan_api::resource::api_version(group, version);
        meta::default_text(&mut object, "kind", kind);
        meta::default_text(&mut object, "apiVersion", &api_version);
        if meta::text(&object, &["kind"]) != kind
            || meta::text(&object, &["apiVersion"]) != api_version
        {
            return Err(self.wrong_kind(&object, group, kind));
        }
        if let Some(schema) = schema::of_kind(group, version, kind) {
            schema.decode(&mut object).map_err(|error| {
                Status::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: {error}"
                ))
            })?;
        }
        Ok(object)
    }

    fn wrong_kind(&self, object: &Value, group: &str, kind: &str) -> Status {
        let given = meta::text(object, &["kind"]);
        let api_version = meta::text(object, &["apiVersion"]);
        let (given_group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let registry = self.call.server.core().registry.snapshot();
        if registry.by_kind(given_group, version, given).is_none() {
            return Status::bad_request(format!(
                "{given} in version {version:?} cannot be handled as a {kind}: no kind {given:?} is registered for version {api_version:?}"
            ));
        }
        let package = group
            .split('.')
            .next()
            .filter(|package| !package.is_empty());
        Status::bad_request(format!(
            "{given} in version {version:?} cannot be handled as a {kind}: converting ({version}.{given}) to ({}.{kind}): unknown conversion",
            package.unwrap_or("core")
        ))
    }

    /// Both phases of admission of what is not an object of the row itself.
    async fn admit(&mut self, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
        let operation = match self.call.verb {
            Verb::Create => Operation::Create,
            _ => Operation::Update,
        };
        let server = self.call.server.clone();
        let mut request = AdmissionRequest {
            operation,
            user: &self.call.user,
            def: &self.call.def,
            version: &self.call.version,
            subresource: self.call.subresource(),
            namespace: self.call.object_namespace(),
            name: self.call.name(),
            object: object.take(),
            old,
            options: &self.call.options,
            dry_run: self.call.options.is_dry_run(),
            now: self.call.now,
            warnings: Vec::new(),
        };
        let mut result = server.admission().mutate(&mut request).await;
        if result.is_ok() {
            result = server.admission().validate(&mut request).await;
        }
        let AdmissionRequest {
            object: admitted,
            warnings,
            ..
        } = request;
        *object = admitted;
        self.call.warnings.extend(warnings);
        result
    }

    /// The cached object that the request names, as a tree.
    fn current(&self) -> Result<Value, Status> {
        let key = self.call.key(self.call.name());
        let object = self
            .call
            .bucket()
            .get(&key)
            .ok_or_else(|| self.call.not_found(self.call.name()))?;
        serde_json::from_slice(&object.bytes).map_err(Status::internal)
    }

    /// Changes the object that the request names, past admission and validation: `change` is the
    /// server's own. Repeats on a lost race.
    async fn change(
        &self,
        change: &(dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync),
    ) -> Result<Value, Status> {
        let name = self.call.name();
        let key: sampan_store::Key = self.call.key(name).into();
        for _ in 0..RACES {
            let current = self
                .call
                .bucket()
                .get(&key)
                .ok_or_else(|| self.call.not_found(name))?;
            let mut object: Value =
                serde_json::from_slice(&current.bytes).map_err(Status::internal)?;
            change(&mut object)?;
            if self.call.options.is_dry_run() {
                return Ok(object);
            }
            let expect = Expect::At(current.revision);
            match self.call.put(&key, expect, &object, Class::Durable).await? {
                Ok((bytes, _)) => {
                    return serde_json::from_slice(&bytes).map_err(Status::internal);
                }
                Err(StoreError::RevisionMismatch { .. }) => {}
                Err(error) => return Err(store_failed(error)),
            }
        }
        Err(self.call.conflict(name, MODIFIED))
    }

    fn reply(self, code: u16, object: &Value) -> Reply {
        Reply::Object {
            code,
            object: Bytes::from(object.to_string()),
            warnings: self.call.warnings.take(),
        }
    }

    fn success(self) -> Reply {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "code": 201});
        self.reply(201, &status)
    }
}

/// The row and version of another resource, for requests that one of these makes itself.
fn row(
    server: &ApiServer,
    group: &str,
    plural: &str,
) -> Result<(Arc<ResourceDef>, ServedVersion), Status> {
    let def = server
        .core()
        .row(group, plural)
        .ok_or_else(no_such_resource)?;
    let version = def.storage_version().clone();
    Ok((def, version))
}
