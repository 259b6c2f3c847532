//! What each signer demands of a request, and the certificate it gives.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use sampan_api::user::well_known::{NODE_USER_PREFIX, NODES};
use sampan_pki::{Authority, CertificateRequest, Usage};

use super::Signer;

/// Shorter lives are not given.
const SHORTEST_LIFE: Duration = Duration::from_secs(600);

const DIGITAL_SIGNATURE: &str = "digital signature";
const KEY_ENCIPHERMENT: &str = "key encipherment";
const CLIENT_AUTH: &str = "client auth";
const SERVER_AUTH: &str = "server auth";

pub(super) fn check(
    signer: Signer,
    content: &CertificateRequest,
    usages: &[String],
) -> Result<(), String> {
    match signer {
        Signer::KubeletClient => check_kubelet_client(content, usages),
        Signer::KubeletServing => check_kubelet_serving(content, usages),
        Signer::ApiServerClient => check_client_usages(usages),
        Signer::LegacyUnknown => Ok(()),
    }
}

pub(super) fn check_kubelet_client(
    content: &CertificateRequest,
    usages: &[String],
) -> Result<(), String> {
    check_organization(content)?;
    let forbidden = [
        (
            content.dns_names.is_empty(),
            "DNS subjectAltNames are not allowed",
        ),
        (
            content.emails.is_empty(),
            "Email subjectAltNames are not allowed",
        ),
        (content.ips.is_empty(), "IP subjectAltNames are not allowed"),
        (
            content.uris.is_empty(),
            "URI subjectAltNames are not allowed",
        ),
    ];
    for (absent, message) in forbidden {
        demand(absent, message)?;
    }
    check_common_name(content)?;
    check_exact_usages(usages, CLIENT_AUTH)
}

pub(super) fn check_kubelet_serving(
    content: &CertificateRequest,
    usages: &[String],
) -> Result<(), String> {
    check_organization(content)?;
    let named = !content.dns_names.is_empty() || !content.ips.is_empty();
    demand(named, "DNS or IP subjectAltName is required")?;
    demand(
        content.emails.is_empty(),
        "Email subjectAltNames are not allowed",
    )?;
    demand(
        content.uris.is_empty(),
        "URI subjectAltNames are not allowed",
    )?;
    check_exact_usages(usages, SERVER_AUTH)?;
    check_common_name(content)
}

fn demand(holds: bool, message: &str) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(message.to_owned())
    }
}

fn check_organization(content: &CertificateRequest) -> Result<(), String> {
    demand(
        content.organizations == [NODES],
        "subject organization is not system:nodes",
    )
}

fn check_common_name(content: &CertificateRequest) -> Result<(), String> {
    let is_node = content.common_name.starts_with(NODE_USER_PREFIX);
    demand(
        is_node,
        "subject common name does not begin with system:node:",
    )
}

/// Key encipherment is for RSA keys and may be left out.
fn check_exact_usages(usages: &[String], purpose: &str) -> Result<(), String> {
    let mut found: Vec<&str> = usages.iter().map(String::as_str).collect();
    found.sort_unstable();
    found.dedup();
    let mut wanted = [purpose, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT];
    wanted.sort_unstable();
    let without_rsa: Vec<&str> = wanted
        .into_iter()
        .filter(|usage| *usage != KEY_ENCIPHERMENT)
        .collect();
    if found == wanted || found == without_rsa {
        return Ok(());
    }
    Err(format!("usages did not match [{}]", wanted.join(" ")))
}

fn check_client_usages(usages: &[String]) -> Result<(), String> {
    let optional = [DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH];
    if let Some(usage) = usages
        .iter()
        .find(|usage| !optional.contains(&usage.as_str()))
    {
        return Err(format!("invalid usage for client certificate: {usage}"));
    }
    if usages.iter().any(|usage| usage == CLIENT_AUTH) {
        return Ok(());
    }
    Err(format!(
        "missing required usage for client certificate: {CLIENT_AUTH}"
    ))
}

pub(super) fn sign(
    authority: &Authority,
    content: &CertificateRequest,
    spec: &CertificateSigningRequestSpec,
    now: Timestamp,
) -> Result<String, String> {
    let names = spec.usages.iter().flatten();
    let usages: Result<Vec<Usage>, _> = names.map(|name| Usage::from_name(name)).collect();
    let usages = usages.map_err(|error| error.to_string())?;
    authority
        .sign_request(
            content,
            &usages,
            SystemTime::from(now),
            lifetime(spec.expiration_seconds, authority.leaf_life()),
        )
        .map_err(|error| error.to_string())
}

fn lifetime(wanted_seconds: Option<i32>, longest: Duration) -> Duration {
    let wanted = wanted_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map(Duration::from_secs);
    wanted.map_or(longest, |wanted| wanted.max(SHORTEST_LIFE).min(longest))
}
