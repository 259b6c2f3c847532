//! A request below HTTP: what the front hands to the pipeline, and what comes back.

use std::sync::Arc;

use bytes::Bytes;
use sampan_api::{Status, UserInfo};
use sampan_client::{List, Request, WatchStream};

/// A request with the identity that makes it.
#[derive(Debug, Clone)]
pub struct ApiRequest {
    pub user: Arc<UserInfo>,
    pub request: Request,
    /// Client's `User-Agent`, the default field manager is its first word.
    pub user_agent: String,
    /// `unknown field "…"` and `duplicate field "…"` as found in the body's text, in its order;
    /// `fieldValidation` decides what becomes of them. Empty for requests that never were text.
    pub strict_errors: Vec<String>,
}

impl ApiRequest {
    /// One that the server itself makes, in this identity.
    pub(crate) fn own(user: Arc<UserInfo>, request: Request) -> Self {
        Self {
            user,
            request,
            user_agent: "kube-apiserver".to_owned(),
            strict_errors: Vec::new(),
        }
    }
}

/// What the pipeline answers; the front renders it for the media type that was negotiated.
pub enum Reply {
    Object {
        code: u16,
        /// JSON with `kind` and `apiVersion`.
        object: Bytes,
        /// Texts of `Warning` headers.
        warnings: Vec<String>,
    },
    List {
        /// `kind` of the list, for example `PodList`.
        kind: String,
        api_version: String,
        list: List,
    },
    Watch(WatchStream),
}

/// What authorization decides on.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a UserInfo,
    /// An API verb, or the lower-case HTTP method for a non-resource path.
    pub verb: &'a str,
    pub resource: Option<ResourceAttributes<'a>>,
    /// The request's path; decides when `resource` is `None`.
    pub path: &'a str,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ResourceAttributes<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The selector's text of list, watch and deletecollection.
    pub field_selector: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow(String),
    Deny(String),
    NoOpinion(String),
}

/// Synchronous on purpose: every built-in authorizer answers from memory.
pub trait Authorizer: Send + Sync + 'static {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision;
}

/// The pipeline as the front sees it.
pub trait Pipeline: Send + Sync + 'static {
    fn handle(
        &self,
        request: ApiRequest,
    ) -> futures_util::future::BoxFuture<'static, Result<Reply, Status>>;
}
