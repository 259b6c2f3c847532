//! OpenAPI documents, made from the rows and their schemas.

use std::sync::Arc;

use http::{HeaderMap, Response};
use sampan_api::Status;
use sampan_api::registry::Snapshot;
use sampan_net::Body;

use crate::http::Context;
use crate::http::respond;

/// The documents of one state of the rows, made when they are asked for.
pub(crate) struct Documents {
    #[expect(dead_code, reason = "read once the schemas are rendered")]
    rows: Arc<Snapshot>,
}

impl Documents {
    pub(crate) fn new(rows: Arc<Snapshot>) -> Self {
        Self { rows }
    }

    /// Answers a path below `/openapi`.
    pub(crate) fn answer(
        &self,
        _path: &[&str],
        _headers: &HeaderMap,
        _context: &Context,
    ) -> Result<Response<Body>, Status> {
        Ok(respond::page_not_found())
    }
}
