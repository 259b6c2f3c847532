//! Which requests are approved without a person.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Secret};
use sampan_api::user::well_known::{NODE_USER_PREFIX, NODES};
use sampan_pki::CertificateRequest;
use sampan_pki::node_name::{refusal, refusal_in_use};

use super::name::{self, Holder};
use super::sign::{check_kubelet_client, check_kubelet_serving};
use super::{Observed, Signer};

/// Machines that hold the node token and nothing else yet.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// Users as which the parts of an agent act, beside the kubelet.
const AGENT_USERS: &[&str] = &["system:kube-proxy"];
/// How soon a request that waits is looked at again: who lives gives a sign every ten seconds.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Why a request is denied whose node's name is somebody else's.
const TAKEN: &str = "NodeNameTaken";
/// What creation times leave out.
const FRACTIONS: Duration = Duration::from_secs(1);

struct Rule {
    signer: Signer,
    allows: fn(&Observed, &CertificateRequest) -> bool,
    /// Whether the name of the node is at stake, and how.
    name: Name,
    message: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    /// Who asks has a certificate for the name already. If nobody's key was noted, this one is; a key that is not the noted
    /// one is refused: the name may be another machine's by now, while the certificate of the first one lives on.
    Has,
    /// Free names are taken, unless a machine still goes by them; those of others are refused.
    Wants,
    /// The certificate is of no node.
    None,
}

/// What becomes of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// A person decides.
    Leave,
    /// Not clear yet; to be looked at again after this time.
    Wait(Duration),
    Approve {
        message: &'static str,
        /// Made first: the name of the node was free.
        takes: Option<Box<Secret>>,
    },
    /// With the reason in one word and in full.
    Deny(&'static str, String),
}

/// The first rule that allows a request approves it with its message.
const RULES: &[Rule] = &[
    Rule {
        signer: Signer::KubeletClient,
        allows: |observed, content| {
            is_kubelet_client(observed, content)
                && observed.comes_from(NODES)
                && observed.is_about_itself(content)
        },
        name: Name::Has,
        message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
    },
    Rule {
        signer: Signer::KubeletClient,
        allows: |observed, content| {
            is_kubelet_client(observed, content) && observed.comes_from(BOOTSTRAPPERS)
        },
        name: Name::Wants,
        message: "Auto approving kubelet client certificate after SubjectAccessReview.",
    },
    Rule {
        signer: Signer::KubeletServing,
        allows: |observed, content| {
            check_kubelet_serving(content, observed.usages()).is_ok()
                && observed.comes_from(NODES)
                && observed.is_about_itself(content)
                && names_only_the_node(observed, content)
        },
        name: Name::None,
        message: "Auto approving kubelet serving certificate for the node's own names and addresses.",
    },
    Rule {
        signer: Signer::ApiServerClient,
        allows: |observed, content| {
            is_agent_user(content)
                && (observed.comes_from(NODES) || observed.comes_from(BOOTSTRAPPERS))
        },
        name: Name::None,
        message: "Auto approving client certificate of a node agent.",
    },
];

/// What the first rule that allows the request makes of it.
pub(super) fn judge(
    observed: &Observed,
    signer: Signer,
    content: &CertificateRequest,
    now: Timestamp,
) -> Verdict {
    let mut rules = RULES.iter().filter(|rule| rule.signer == signer);
    let Some(rule) = rules.find(|rule| (rule.allows)(observed, content)) else {
        return Verdict::Leave;
    };
    let node = node_of(content);
    let takes = match (rule.name, &observed.holder) {
        (Name::None, _) => None,
        (stake, Holder::Nobody) => {
            if stake == Name::Wants
                && let Some(verdict) = observed.somebody_lives(node, now)
            {
                return verdict;
            }
            match name::secret(node, content) {
                None => return Verdict::Deny("NodeNameInvalid", refusal(node)),
                made => made,
            }
        }
        (_, Holder::Key(hash)) if *hash != content.key_hash() => {
            return Verdict::Deny(TAKEN, refusal(node));
        }
        (_, Holder::Key(_)) => None,
    };
    Verdict::Approve {
        message: rule.message,
        takes: takes.map(Box::new),
    }
}

fn node_of(content: &CertificateRequest) -> &str {
    let name = content.common_name.strip_prefix(NODE_USER_PREFIX);
    name.unwrap_or_default()
}

impl Observed {
    fn usages(&self) -> &[String] {
        self.request.spec.usages.as_deref().unwrap_or_default()
    }

    fn comes_from(&self, group: &str) -> bool {
        self.request
            .spec
            .groups
            .iter()
            .flatten()
            .any(|each| each == group)
    }

    /// What becomes of a request for a free name that a machine goes by: its Node was deleted, and its kubelet runs on.
    /// Who asks has no kubelet yet, so a sign of life that came later is another machine's. One that came before may be its
    /// own, from before it was started again.
    fn somebody_lives(&self, node: &str, now: Timestamp) -> Option<Verdict> {
        let beat = self.beat?;
        let left = beat.left(now)?;
        let created = self.request.metadata.creation_timestamp.as_ref();
        let asked = created.map_or(now, |time| time.0);
        if beat.is_renewal && beat.at > asked + FRACTIONS {
            return Some(Verdict::Deny(TAKEN, refusal_in_use(node)));
        }
        Some(Verdict::Wait(left.min(LOOK_AGAIN)))
    }

    fn is_about_itself(&self, content: &CertificateRequest) -> bool {
        self.request.spec.username.as_deref() == Some(&content.common_name)
    }
}

fn is_kubelet_client(observed: &Observed, content: &CertificateRequest) -> bool {
    check_kubelet_client(content, observed.usages()).is_ok()
}

fn is_agent_user(content: &CertificateRequest) -> bool {
    AGENT_USERS.contains(&content.common_name.as_str())
        && content.organizations.is_empty()
        && content.dns_names.is_empty()
        && content.ips.is_empty()
        && content.emails.is_empty()
        && content.uris.is_empty()
}

/// Names that Pods and people know the API server by; it has its certificate of the same authority.
fn is_reserved(name: &str) -> bool {
    name == "localhost" || name == "kubernetes" || name.starts_with("kubernetes.")
}

/// A node says itself which addresses it has, so it must not name those of others: other nodes, Services, the API
/// server. Before its Node object has addresses only that is checked.
fn names_only_the_node(observed: &Observed, content: &CertificateRequest) -> bool {
    let node = observed.node.as_deref();
    let own_name = node_of(content);
    let own_ips: Vec<IpAddr> = node.into_iter().flat_map(node_ips).collect();
    let names = content
        .dns_names
        .iter()
        .all(|name| name == own_name && !is_reserved(name));
    let own = |ip: &IpAddr| {
        let somewhere = !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast();
        somewhere && (own_ips.is_empty() || own_ips.contains(ip))
    };
    names
        && content
            .ips
            .iter()
            .all(|ip| own(ip) && !observed.foreign.contains(ip))
}

/// The node whose user made the request.
pub(super) fn node_name(request: &CertificateSigningRequest) -> Option<&str> {
    request
        .spec
        .username
        .as_deref()?
        .strip_prefix(NODE_USER_PREFIX)
}

fn addresses(node: &Node) -> impl Iterator<Item = (&str, &str)> {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    addresses
        .into_iter()
        .flatten()
        .map(|each| (each.type_.as_str(), each.address.as_str()))
}

pub(super) fn node_ips(node: &Node) -> impl Iterator<Item = IpAddr> {
    let ips = |kind: &str| matches!(kind, "InternalIP" | "ExternalIP");
    addresses(node)
        .filter(move |(kind, _)| ips(kind))
        .filter_map(|(_, address)| address.parse().ok())
}
