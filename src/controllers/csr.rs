//! Certificate signing requests: approves those that nodes may make, signs the approved ones,
//! removes old ones.
//!
//! Watches requests, Nodes (whose addresses a serving certificate may name), the Secrets that say whose a node's name
//! is, and the Leases that say whether somebody goes by it; writes the requests' approval and status, and the Secret of a
//! name that was free. Signing takes the cluster's authorities from [`Settings`](crate::Settings); without them nothing is
//! signed.
//! Upstream counterpart: `pkg/controller/certificates`.

mod approve;
mod beats;
mod clean;
mod name;
mod sign;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sampan_client::client::target_of;
use sampan_client::{Change, Lister, ObjectKey};
use sampan_pki::{Authority, CertificateRequest};
use serde_json::{Value, json};

use crate::Settings;
use crate::json;
use crate::runtime::{Action, Controller, Form, Maker, Plan, Watches};

/// The authorities that sign requests.
#[derive(Debug, Clone)]
pub struct Authorities {
    /// For certificates that the API server accepts from clients.
    pub client: Arc<Authority>,
    /// For certificates that kubelets show to the API server, and nobody else is to believe.
    pub kubelet_serving: Arc<Authority>,
    /// For certificates that other servers show: whoever trusts the API server trusts them.
    pub serving: Arc<Authority>,
}

/// The Kubernetes signers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signer {
    ApiServerClient,
    KubeletClient,
    KubeletServing,
    LegacyUnknown,
}

impl Signer {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "kubernetes.io/kube-apiserver-client" => Self::ApiServerClient,
            "kubernetes.io/kube-apiserver-client-kubelet" => Self::KubeletClient,
            "kubernetes.io/kubelet-serving" => Self::KubeletServing,
            "kubernetes.io/legacy-unknown" => Self::LegacyUnknown,
            _ => return None,
        })
    }

    fn authority(self, authorities: &Authorities) -> &Arc<Authority> {
        match self {
            Self::ApiServerClient | Self::KubeletClient => &authorities.client,
            Self::KubeletServing => &authorities.kubelet_serving,
            Self::LegacyUnknown => &authorities.serving,
        }
    }
}

/// Namespace and name of the Service that the API server is.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

fn is_of_api_server(slice: &EndpointSlice) -> bool {
    let labels = slice.metadata.labels.iter().flatten();
    labels
        .into_iter()
        .any(|(key, value)| key == "kubernetes.io/service-name" && value == API_SERVER.1)
}

pub struct CertificateController {
    requests: Lister<CertificateSigningRequest>,
    nodes: Lister<Node>,
    services: Lister<Service>,
    names: Lister<Secret>,
    beats: beats::Beats,
    slices: Lister<EndpointSlice>,
    authorities: Option<Authorities>,
}

pub struct Observed {
    request: Arc<CertificateSigningRequest>,
    /// The Node that a serving certificate is for, if it is there.
    node: Option<Arc<Node>>,
    /// Addresses of the other Nodes, of Services and of the API server.
    foreign: HashSet<IpAddr>,
    /// Whose the name is that a kubelet's client certificate is for.
    holder: name::Holder,
    /// The last sign of life of who goes by that name.
    beat: Option<beats::Beat>,
    authorities: Option<Authorities>,
}

impl Controller for CertificateController {
    const NAME: &'static str = "certificate-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, settings: &Settings) -> Self {
        let requests = watches.primary::<CertificateSigningRequest>();
        let known = requests.clone();
        let nodes = watches.mapped(move |change: &Change<Node>| waiting_for(&known, change));
        let beats = beats::Beats::default();
        let (seen, clock) = (beats.clone(), settings.clock.clone());
        watches.mapped::<Lease>(move |change| {
            let now = Timestamp::try_from(clock.now()).unwrap_or(Timestamp::UNIX_EPOCH);
            seen.see(change, now);
            // Few requests wait for one, and they look again by themselves.
            Vec::new()
        });
        Self {
            requests,
            nodes,
            services: watches.reads(),
            names: watches.reads_with(crate::nodename::secrets()),
            beats,
            slices: watches.reads(),
            authorities: settings.authorities.clone(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let request = self.requests.get_key(key)?;
        let mut observed = Observed {
            node: None,
            foreign: HashSet::new(),
            holder: name::Holder::Nobody,
            beat: None,
            authorities: self.authorities.clone(),
            request,
        };
        if observed.is_pending_for(Signer::KubeletClient)
            && let Some(node) = name::wanted(&observed.request)
        {
            observed.holder = name::holder(&self.names, &node);
            observed.beat = self.beats.of(&node);
        }
        if observed.is_pending_for(Signer::KubeletServing) {
            let name = approve::node_name(&observed.request).unwrap_or_default();
            for node in self.nodes.list(None) {
                if node.metadata.name.as_deref() == Some(name) {
                    observed.node = Some(node);
                } else {
                    observed.foreign.extend(approve::node_ips(&node));
                }
            }
            let services = self.services.list(None);
            let addresses = services.iter().filter_map(|service| service.spec.as_ref());
            let addresses = addresses.flat_map(|spec| spec.cluster_ips.iter().flatten());
            observed
                .foreign
                .extend(addresses.filter_map(|ip| ip.parse::<IpAddr>().ok()));
            let slices = self.slices.list(Some(API_SERVER.0));
            let own = slices.iter().filter(|slice| is_of_api_server(slice));
            let addresses = own.flat_map(|slice| slice.endpoints.iter().flatten());
            let addresses = addresses.flat_map(|endpoint| &endpoint.addresses);
            observed
                .foreign
                .extend(addresses.filter_map(|ip| ip.parse::<IpAddr>().ok()));
        }
        Some(observed)
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let request = &observed.request;
        match clean::fate(request, now) {
            clean::Fate::Remove => {
                plan.push(Action::delete(&**request));
                return plan;
            }
            clean::Fate::KeepFor(time) => plan.requeue_within(time),
            clean::Fate::Keep => {}
        }
        let Some(signer) = Signer::from_name(&request.spec.signer_name) else {
            return plan;
        };
        let content = match parse(request) {
            Ok(content) => content,
            Err(error) => {
                tracing::debug!(%error, "a certificate signing request cannot be read");
                return plan;
            }
        };
        if observed.is_pending() {
            let verdict = approve::judge(observed, signer, &content, now);
            if let approve::Verdict::Wait(time) = &verdict {
                plan.requeue_within(*time);
            }
            // In this order: what fails to take the name is not approved.
            for action in verdict.actions(request, now) {
                plan.push(action);
            }
        } else if let Some(authorities) = observed
            .authorities
            .as_ref()
            .filter(|_| observed.awaits_signature())
        {
            plan.push(signature(request, signer, &content, authorities, now));
        }
        plan
    }
}

impl Observed {
    fn is_pending(&self) -> bool {
        !has(&self.request, "Approved")
            && !has(&self.request, "Denied")
            && !is_issued(&self.request)
    }

    fn is_pending_for(&self, signer: Signer) -> bool {
        self.is_pending() && Signer::from_name(&self.request.spec.signer_name) == Some(signer)
    }

    fn awaits_signature(&self) -> bool {
        has(&self.request, "Approved")
            && !has(&self.request, "Denied")
            && !has(&self.request, "Failed")
            && !is_issued(&self.request)
    }
}

/// The pending serving requests of a Node that changed.
fn waiting_for(
    requests: &Lister<CertificateSigningRequest>,
    change: &Change<Node>,
) -> Vec<ObjectKey> {
    let name = change.object().metadata.name.as_deref();
    let ips = |node: &Node| approve::node_ips(node).collect::<Vec<_>>();
    if let Change::Applied {
        old: Some(old),
        new,
    } = change
        && ips(old) == ips(new)
    {
        return Vec::new();
    }
    let all = requests.list(None);
    let waiting = all
        .iter()
        .filter(|request| !is_issued(request) && approve::node_name(request) == name);
    waiting
        .map(|request| ObjectKey::of(&request.metadata))
        .collect()
}

fn parse(request: &CertificateSigningRequest) -> Result<CertificateRequest, sampan_pki::Error> {
    CertificateRequest::from_pem(&String::from_utf8_lossy(&request.spec.request.0))
}

fn conditions(
    request: &CertificateSigningRequest,
) -> impl Iterator<Item = &CertificateSigningRequestCondition> {
    let conditions = request
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten()
}

fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    conditions(request).any(|condition| condition.type_ == kind)
}

fn is_issued(request: &CertificateSigningRequest) -> bool {
    let certificate = request
        .status
        .as_ref()
        .and_then(|status| status.certificate.as_ref());
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
}

// === what is written ===

impl approve::Verdict {
    fn actions(self, request: &CertificateSigningRequest, now: Timestamp) -> Vec<Action> {
        let write = |condition| write_condition(request, "approval", condition, now);
        match self {
            Self::Leave | Self::Wait(_) => Vec::new(),
            Self::Approve { message, takes } => {
                let taking = takes.map(|secret| Action::create(&*secret));
                let approval = write(("Approved", "AutoApproved", message));
                taking.into_iter().chain([approval]).collect()
            }
            Self::Deny(reason, message) => vec![write(("Denied", reason, &message))],
        }
    }
}

/// Checks the request now; the certificate is made when the plan is carried out.
fn signature(
    request: &Arc<CertificateSigningRequest>,
    signer: Signer,
    content: &CertificateRequest,
    authorities: &Authorities,
    now: Timestamp,
) -> Action {
    let usages = request.spec.usages.as_deref().unwrap_or_default();
    if let Err(message) = sign::check(signer, content, usages) {
        let failed = ("Failed", "SignerValidationFailure", &*message);
        return write_condition(request, "status", failed, now);
    }
    let authority = Arc::clone(signer.authority(authorities));
    let (request, content) = (Arc::clone(request), content.clone());
    let key = ObjectKey::of(&request.metadata);
    let change = Maker::new(
        move || match sign::sign(&authority, &content, &request.spec, now) {
            Ok(certificate) => {
                let status = CertificateSigningRequestStatus {
                    certificate: Some(k8s_openapi::ByteString(certificate.into_bytes())),
                    conditions: None,
                };
                json!({"status": json::to_value(&status)})
            }
            Err(message) => {
                let failed = ("Failed", "SignerValidationFailure", &*message);
                with_condition(&request, failed, now)
            }
        },
    );
    let mut target = target_of::<CertificateSigningRequest>(None, Some(&key.name));
    target.subresource = Some("status".into());
    Action::Make {
        target,
        form: Form::Put,
        change,
    }
}

fn write_condition(
    request: &CertificateSigningRequest,
    subresource: &'static str,
    condition: (&str, &str, &str),
    now: Timestamp,
) -> Action {
    let key = ObjectKey::of(&request.metadata);
    let change = with_condition(request, condition, now);
    Action::write_subresource::<CertificateSigningRequest>(&key, subresource, Form::Put, change)
}

/// The change that adds a condition.
fn with_condition(
    request: &CertificateSigningRequest,
    (kind, reason, message): (&str, &str, &str),
    now: Timestamp,
) -> Value {
    let mut all: Vec<_> = conditions(request).cloned().collect();
    all.push(CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
    json!({"status": {"conditions": json::to_value(&all)}})
}

#[cfg(test)]
mod tests;
