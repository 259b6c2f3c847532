//! Requests that become streams to kubelets, pods and services.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use sampan_api::{Reason, ResourceDef, Status};
use sampan_net::Body;

use crate::http::{Context, Front};

/// Reaches kubelets, pods and services.
#[derive(Default)]
pub struct Relay;

/// Whether the subresource is answered here.
pub fn is_stream(def: &ResourceDef, subresource: &str) -> bool {
    def.group().is_empty()
        && matches!(
            (&*def.kind, subresource),
            ("Pod", "attach" | "exec" | "log" | "portforward" | "proxy")
                | ("Node" | "Service", "proxy")
        )
}

pub(crate) async fn answer(
    _front: &Arc<Front>,
    _request: Request<Incoming>,
    _context: &Context,
) -> Result<Response<Body>, Status> {
    Err(Status::new(Reason::ServiceUnavailable, "not yet"))
}
