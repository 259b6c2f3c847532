//! One request on its way through the verbs: who, what, which row, which version, when.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sampan_api::registry::ServedVersion;
use sampan_api::strategy::Context;
use sampan_api::{FieldSelector, Options, ResourceDef, Status, Target, UserInfo, Verb};
use sampan_client::Body;

use super::cache::Bucket;
use super::server::ApiServer;
use crate::request::{ApiRequest, Attributes, Decision, ResourceAttributes};

pub struct Call {
    pub server: ApiServer,
    pub user: Arc<UserInfo>,
    pub user_agent: String,
    pub verb: Verb,
    pub target: Target,
    pub options: Options,
    pub body: Body,
    pub strict_errors: Vec<String>,
    pub def: Arc<ResourceDef>,
    /// The version the client speaks.
    pub version: ServedVersion,
    pub now: jiff::Timestamp,
    pub warnings: Warnings,
}

/// Texts for `Warning` headers: those of a refusal are shown as well, so whoever runs a call holds
/// on to them.
#[derive(Debug, Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn list(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds texts; each is shown once.
    pub fn extend(&self, texts: impl IntoIterator<Item = String>) {
        let mut list = self.list();
        for text in texts {
            if !list.contains(&text) {
                list.push(text);
            }
        }
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.list())
    }
}

impl Call {
    pub fn new(
        server: ApiServer,
        request: ApiRequest,
        def: Arc<ResourceDef>,
        version: ServedVersion,
    ) -> Self {
        Self {
            now: server.core().now(),
            server,
            user: request.user,
            user_agent: request.user_agent,
            verb: request.request.verb,
            target: request.request.target,
            options: request.request.options,
            body: request.request.body,
            strict_errors: request.strict_errors,
            def,
            version,
            warnings: Warnings::default(),
        }
    }

    pub fn bucket(&self) -> Arc<Bucket> {
        self.server.core().cache.bucket(&self.def)
    }

    pub fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }

    /// Empty for rows without namespaces and for requests over all of them.
    pub fn namespace(&self) -> &str {
        self.target.namespace.as_deref().unwrap_or_default()
    }

    /// The namespace an object must have.
    pub fn object_namespace(&self) -> &str {
        if self.def.is_namespaced() {
            self.namespace()
        } else {
            ""
        }
    }

    pub fn subresource(&self) -> &str {
        self.target.subresource.as_deref().unwrap_or_default()
    }

    pub fn key(&self, name: &str) -> String {
        self.def.key(self.target.namespace.as_deref(), name)
    }

    pub fn context(&self) -> Context<'_> {
        Context {
            def: &self.def,
            group: &self.version.group,
            subresource: self.target.subresource.as_deref().unwrap_or_default(),
            user: Some(&self.user),
            now: self.now,
        }
    }

    /// The group as messages name it: that of the request.
    pub fn group(&self) -> &str {
        &self.version.group
    }

    pub fn not_found(&self, name: &str) -> Status {
        Status::not_found(self.group(), &self.def.plural, name)
    }

    pub fn already_exists(&self, name: &str) -> Status {
        Status::already_exists(self.group(), &self.def.plural, name)
    }

    pub fn conflict(&self, name: &str, why: &str) -> Status {
        Status::conflict(self.group(), &self.def.plural, name, why)
    }

    /// The field manager that was named, else the program that calls.
    pub fn manager(&self) -> &str {
        match self.options.field_manager.as_deref() {
            Some(manager) if !manager.is_empty() => manager,
            _ => {
                let program = self.user_agent.split('/').next().unwrap_or_default();
                if program.is_empty() {
                    "unknown"
                } else {
                    program
                }
            }
        }
    }

    pub fn authorize(&self, verb: &str) -> Result<(), Status> {
        authorize(&self.server, &self.user, verb, &self.target, &self.options)
    }
}

pub fn authorize(
    server: &ApiServer,
    user: &UserInfo,
    verb: &str,
    target: &Target,
    options: &Options,
) -> Result<(), Status> {
    let subresource = target.subresource.as_deref().unwrap_or_default();
    let namespace = target.namespace.as_deref().unwrap_or_default();
    // A selection of one name is authorized like that one object.
    let selected = match (&target.name, verb) {
        (None, "list" | "watch" | "deletecollection") => options
            .field_selector
            .as_deref()
            .and_then(|text| FieldSelector::parse(text).ok())
            .and_then(|selector| selector.exact("metadata.name").map(str::to_owned)),
        _ => None,
    };
    let name = target.name.as_deref().or(selected.as_deref());
    let name = name.unwrap_or_default();
    let attributes = Attributes {
        user,
        verb,
        path: "",
        resource: Some(ResourceAttributes {
            group: &target.resource.group,
            version: &target.resource.version,
            resource: &target.resource.resource,
            subresource,
            namespace,
            name,
            field_selector: options.field_selector.as_deref().unwrap_or_default(),
        }),
    };
    let why = match server.authorizer().authorize(&attributes) {
        Decision::Allow(_) => return Ok(()),
        Decision::Deny(why) | Decision::NoOpinion(why) => why,
    };
    let resource = match subresource {
        "" => target.resource.resource.to_string(),
        sub => format!("{}/{sub}", target.resource.resource),
    };
    let place = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let mut text = format!(
        "User {:?} cannot {verb} resource {resource:?} in API group {:?} {place}",
        user.username, &*target.resource.group
    );
    if !why.is_empty() {
        text = format!("{text}: {why}");
    }
    Err(Status::forbidden(
        &target.resource.group,
        &target.resource.resource,
        name,
        &text,
    ))
}
