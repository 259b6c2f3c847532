//! Requests that become streams to kubelets, pods and services: logs, exec, attach, port-forward and
//! the proxies.
//!
//! Nothing is understood here of what flows: an upgraded connection is joined to one to the kubelet
//! and bytes are copied. Only port-forwarding inside a WebSocket is unpacked, because kubelets take
//! it bare.

use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use sampan_api::{ResourceDef, Status};
use sampan_net::client::ClientError;
use sampan_net::{Body, ClientConfig, ClientTls, Dialer, HttpClient, Trust};
use sampan_pki::Identity;

use crate::auth::{ObjectSource, union};
use crate::http::{Context, Front};
use crate::registry::server::{method_not_allowed, no_such_resource};
use crate::request::{Attributes, ResourceAttributes};

mod location;
mod log;
mod proxy;
mod session;
mod upgrade;

/// What the relay is made of.
pub struct RelayConfig {
    /// Where pods, nodes, services and endpoints are looked up.
    pub objects: Arc<dyn ObjectSource>,
    /// What the API server shows to kubelets.
    pub kubelet_client: Identity,
    /// Who signs kubelets' serving certificates (PEM).
    pub kubelet_authorities: String,
    /// The node of this machine, if it has one.
    pub own_node: Option<String>,
    /// How nodes are reached.
    pub dialer: Arc<dyn Dialer>,
}

/// Reaches kubelets, pods and services.
pub struct Relay {
    objects: Arc<dyn ObjectSource>,
    own_node: Option<String>,
    dialer: Arc<dyn Dialer>,
    kubelets: RwLock<Kubelets>,
    /// For pods and services, whose certificates nobody knows.
    backends: HttpClient,
}

/// Clients with the identity that kubelets know; exchanged with it.
#[derive(Clone)]
struct Kubelets {
    checked: HttpClient,
    /// For kubelets whose certificate shall not be checked (an option of logs).
    unchecked: HttpClient,
}

fn client(
    dialer: &Arc<dyn Dialer>,
    trust: Trust,
    identity: Option<&Identity>,
) -> Result<HttpClient, ClientError> {
    HttpClient::new(&ClientConfig {
        tls: ClientTls {
            trust,
            identity: identity.cloned(),
        },
        dialer: Arc::clone(dialer),
        http2: false,
    })
}

impl Relay {
    pub fn new(config: RelayConfig) -> Result<Self, ClientError> {
        let authorities = config.kubelet_authorities;
        let kubelets = Kubelets::new(&config.dialer, &authorities, &config.kubelet_client)?;
        Ok(Self {
            kubelets: RwLock::new(kubelets),
            backends: client(&config.dialer, Trust::Anything, None)?,
            own_node: config.own_node,
            objects: config.objects,
            dialer: config.dialer,
        })
    }

    /// Requests from now on show this to kubelets and believe those authorities; running streams go on.
    pub fn replace(&self, identity: &Identity, authorities: &str) -> Result<(), ClientError> {
        let kubelets = Kubelets::new(&self.dialer, authorities, identity)?;
        *self
            .kubelets
            .write()
            .unwrap_or_else(PoisonError::into_inner) = kubelets;
        Ok(())
    }

    fn kubelets(&self) -> Kubelets {
        let kubelets = self.kubelets.read();
        kubelets.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn object(&self, resource: &str, namespace: &str, name: &str) -> Result<Bytes, Status> {
        self.objects
            .object("", resource, namespace, name)
            .ok_or_else(|| Status::not_found("", resource, name))
    }
}

impl Kubelets {
    fn new(
        dialer: &Arc<dyn Dialer>,
        authorities: &str,
        identity: &Identity,
    ) -> Result<Self, ClientError> {
        let checked = Trust::Authorities(authorities.to_owned());
        Ok(Self {
            checked: client(dialer, checked, Some(identity))?,
            unchecked: client(dialer, Trust::Anything, Some(identity))?,
        })
    }
}

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
    front: &Arc<Front>,
    request: Request<Incoming>,
    context: &Context,
) -> Result<Response<Body>, Status> {
    let info = &context.info;
    let relay = &front.config.relay;
    if info.resource != "nodes" && info.namespace.is_empty() {
        return Err(no_such_resource());
    }
    if info.subresource == "proxy" {
        return proxy::answer(relay, request, context).await;
    }
    if !info.rest.is_empty() {
        return Err(no_such_resource());
    }
    match info.subresource.as_str() {
        "log" if request.method() == Method::GET => log::answer(relay, context).await,
        "log" => Err(method_not_allowed()),
        _ if !matches!(*request.method(), Method::GET | Method::POST) => Err(method_not_allowed()),
        _ => {
            may_create(front, context, request.method())?;
            session::answer(relay, request, context).await
        }
    }
}

/// A session opened by a GET (as WebSockets are) changes as much as one opened by a POST.
fn may_create(front: &Front, context: &Context, method: &Method) -> Result<(), Status> {
    if *method != Method::GET {
        return Ok(());
    }
    let info = &context.info;
    union::check(
        &*front.config.authorizer,
        &Attributes {
            user: &context.user,
            verb: "create",
            path: "",
            resource: Some(ResourceAttributes {
                group: &info.group,
                version: &info.version,
                resource: &info.resource,
                subresource: &info.subresource,
                namespace: &info.namespace,
                name: &info.name,
                field_selector: "",
            }),
        },
    )
}
