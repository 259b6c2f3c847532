//! Certificate signing requests.

use base64::Engine as _;
use serde_json::Value;

use super::{one_of, required_one_of};
use crate::field::{ErrorList, Path};
use crate::meta::{at, get, integer, items, text};
use crate::names;

const SPEC: Path<'static> = Path::new("spec");
const CONDITIONS: Path<'static> = Path::new("status.conditions");

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub(crate) fn request(request: &Value, errors: &mut ErrorList) {
    let spec = get(request, "spec");
    let encoded = get(spec, "request");
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded.as_str().unwrap_or_default())
        .unwrap_or_default();
    let pem = String::from_utf8_lossy(&bytes);
    if !pem.contains("-----BEGIN CERTIFICATE REQUEST-----") {
        let why = "PEM block type must be CERTIFICATE REQUEST";
        errors.invalid(&SPEC.child("request"), encoded.clone(), why);
    }
    let usages = items(spec, &["usages"]);
    let path = SPEC.child("usages");
    if usages.is_empty() {
        errors.required(&path, "");
    }
    for (index, usage) in usages.iter().enumerate() {
        let usage = usage.as_str().unwrap_or_default();
        one_of(usage, USAGES, &path.index(index), errors);
        if usages[..index].iter().any(|one| one == usage) {
            errors.duplicate(&path.index(index), usage);
        }
    }
    signer_name(
        text(spec, &["signerName"]),
        &SPEC.child("signerName"),
        errors,
    );
    if let Some(seconds) = integer(spec, &["expirationSeconds"])
        && seconds < 600
    {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid(&SPEC.child("expirationSeconds"), seconds, why);
    }
    conditions(request, errors);
}

/// `example.com/signer-name`.
fn signer_name(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    const FORM: &str =
        "must be a fully qualified domain and path of the form 'example.com/signer-name'";
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name == "kubernetes.io/legacy-unknown" {
        let why = "the legacy signerName is not allowed via this API version";
        errors.invalid(path, name, why);
        return;
    }
    let segments: Vec<&str> = name.split('/').collect();
    let [domain, rest] = segments[..] else {
        errors.invalid(path, name, FORM);
        return;
    };
    for message in names::dns1123_subdomain(domain) {
        errors.invalid(
            path,
            domain,
            format!("validating label {domain:?}: {message}"),
        );
    }
    if domain.split('.').count() < 2 {
        let why = "should be a domain with at least two segments separated by dots";
        errors.invalid(path, domain, why);
    }
    for message in names::dns1123_subdomain(rest) {
        errors.invalid(path, rest, format!("validating label {rest:?}: {message}"));
    }
    if name.len() > 571 {
        errors.too_long(path, 571);
    }
}

fn conditions(request: &Value, errors: &mut ErrorList) {
    let list = items(request, &["status", "conditions"]);
    let mut decided = [false, false];
    for (index, condition) in list.iter().enumerate() {
        let at = CONDITIONS.index(index);
        let kind = text(condition, &["type"]);
        if kind.is_empty() {
            errors.required(&at.child("type"), "");
        }
        let valid: &[&str] = if matches!(kind, "Approved" | "Denied" | "Failed") {
            &["True"]
        } else {
            &["False", "True", "Unknown"]
        };
        required_one_of(
            text(condition, &["status"]),
            valid,
            &at.child("status"),
            errors,
        );
        match kind {
            "Approved" => decided[0] = true,
            "Denied" => decided[1] = true,
            _ => {}
        }
        if matches!(kind, "Approved" | "Denied") && decided == [true, true] {
            let why = "Approved and Denied conditions are mutually exclusive";
            errors.invalid(&CONDITIONS, kind, why);
        }
        if list[..index].iter().any(|one| text(one, &["type"]) == kind) {
            errors.duplicate(&at.child("type"), kind);
        }
    }
}

/// What any update must leave alone; `decides`: through `approval`, `issues`: through `status`.
pub(crate) fn update(
    new: &Value,
    old: &Value,
    decides: bool,
    issues: bool,
    errors: &mut ErrorList,
) {
    request(new, errors);
    let of = |request: &Value, kind: &str| -> Vec<Value> {
        items(request, &["status", "conditions"])
            .iter()
            .filter(|one| text(one, &["type"]) == kind)
            .cloned()
            .collect()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        if of(new, kind).len() < of(old, kind).len() {
            let why = format!("updates may not remove a condition of type {kind:?}");
            errors.forbidden(&CONDITIONS, why);
        }
    }
    for kind in ["Approved", "Denied"].iter().filter(|_| !decides) {
        let (now, before) = (of(new, kind), of(old, kind));
        if now.len() > before.len() {
            let why = format!("updates may not add a condition of type {kind:?}");
            errors.forbidden(&CONDITIONS, why);
        } else if now.len() == before.len() && now != before {
            let why = format!("updates may not modify a condition of type {kind:?}\n");
            errors.forbidden(&CONDITIONS, why);
        }
    }
    let path = Path::new("status.certificate");
    let certificate = ["status", "certificate"];
    if at(new, &certificate) == at(old, &certificate) {
        return;
    }
    if !issues {
        errors.forbidden(&path, "updates may not set certificate content");
    } else if !text(old, &certificate).is_empty() {
        errors.forbidden(&path, "updates may not modify existing certificate content");
    } else {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text(new, &certificate))
            .unwrap_or_default();
        if !String::from_utf8_lossy(&bytes).contains("-----BEGIN CERTIFICATE-----") {
            let why = "must contain at least one CERTIFICATE PEM block";
            errors.invalid(&path, "<certificate data>", why);
        }
    }
}
