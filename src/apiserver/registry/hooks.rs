//! What plugs into the write path: admission, subresources, reservations.
//!
//! The path itself names no kind; whatever knows one stands behind these traits.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sampan_api::registry::ServedVersion;
use sampan_api::{Options, ResourceDef, Status, UserInfo};
use serde_json::Value;

use super::server::ApiServer;
use crate::request::{ApiRequest, Reply};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// One write as admission sees it. Objects are trees in the storage version.
pub struct AdmissionRequest<'a> {
    pub operation: Operation,
    pub user: &'a UserInfo,
    pub def: &'a Arc<ResourceDef>,
    /// The version the client speaks.
    pub version: &'a ServedVersion,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for what has no namespace.
    pub namespace: &'a str,
    /// Empty while a name is still to be generated.
    pub name: &'a str,
    /// What is to be written; for a connect the options; null for a deletion.
    pub object: Value,
    pub old: Option<&'a Value>,
    pub options: &'a Options,
    pub dry_run: bool,
    pub now: jiff::Timestamp,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

/// One admission plugin. All have both phases; most use one.
pub trait Admission: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    fn handles(&self, operation: Operation) -> bool;

    /// Changes or refuses the object.
    fn mutate(&self, _request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Refuses the object in its final form.
    fn validate(&self, _request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// The part of [`Admission::mutate`] that has to wait for something; `None` if there is none.
    fn mutate_later<'r>(
        &'r self,
        _request: &'r mut AdmissionRequest<'_>,
    ) -> Option<BoxFuture<'r, Result<(), Status>>> {
        None
    }

    /// The part of [`Admission::validate`] that has to wait for something.
    fn validate_later<'r>(
        &'r self,
        _request: &'r mut AdmissionRequest<'_>,
    ) -> Option<BoxFuture<'r, Result<(), Status>>> {
        None
    }
}

/// The plugins in the order in which they are asked.
#[derive(Clone, Default)]
pub struct Chain(pub Vec<Arc<dyn Admission>>);

impl Chain {
    pub async fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        for plugin in self.handling(request.operation) {
            plugin.mutate(request)?;
            if let Some(later) = plugin.mutate_later(request) {
                later.await?;
            }
        }
        Ok(())
    }

    pub async fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        for plugin in self.handling(request.operation) {
            plugin.validate(request)?;
            if let Some(later) = plugin.validate_later(request) {
                later.await?;
            }
        }
        Ok(())
    }

    fn handling(&self, operation: Operation) -> impl Iterator<Item = &Arc<dyn Admission>> {
        self.0
            .iter()
            .filter(move |plugin| plugin.handles(operation))
    }
}

/// A subresource beside `status`: binding, eviction, scale, token …
pub trait Subresource: Send + Sync + 'static {
    /// `(group, plural, subresource)` triples it answers for.
    fn serves(&self) -> Vec<(&'static str, &'static str, &'static str)>;

    /// Authorization has been passed; everything else is the subresource's own.
    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>>;
}

/// A resource that is answered but not stored: reviews.
pub trait Virtual: Send + Sync + 'static {
    /// `(group, plural)` pairs it answers for.
    fn serves(&self) -> Vec<(&'static str, &'static str)>;

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>>;
}

/// Takes something from a pool while an object is written (addresses, ports), and gives it back
/// when the write fails or the object goes.
pub trait Reserve: Send + Sync + 'static {
    /// `(group, plural)` of the rows it takes part in.
    fn serves(&self) -> (&'static str, &'static str);

    /// Before the object is prepared and validated; may fill fields in.
    fn begin(
        &self,
        object: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<Box<dyn Reservation>, Status>;

    /// The object is gone.
    fn deleted(&self, object: &Value);
}

/// What was taken; dropping it without [`Reservation::keep`] gives it back.
pub trait Reservation: Send {
    fn keep(self: Box<Self>);
}

/// Everything that plugs in.
#[derive(Default)]
pub struct Hooks {
    pub admission: Chain,
    pub subresources: Vec<Arc<dyn Subresource>>,
    pub virtuals: Vec<Arc<dyn Virtual>>,
    pub reserves: Vec<Arc<dyn Reserve>>,
}
