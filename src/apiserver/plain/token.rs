//! TokenRequest: `serviceaccounts/token`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use sampan_api::field::{ErrorList, Path};
use sampan_api::meta::{self, at, get, integer, items, text};
use sampan_api::{ResourceDef, Status, Verb, time};
use serde_json::{Value, json};

use super::Plain;
use crate::auth::service_account::{Reference, ServiceAccountTokens, TokenSpec};
use crate::registry::hooks::Subresource;
use crate::registry::server::ApiServer;
use crate::request::{ApiRequest, Reply};

const GROUP: &str = "authentication.k8s.io";
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
/// Tokens asked for with this odd lifetime are the automatic ones; they live on for a year so that
/// programs that never read them again keep working, and warn after the time asked for.
const EXTENDED_SECONDS: i64 = 3607;
const YEAR: u64 = 365 * 24 * 3600;

pub(super) struct Token(pub(super) Arc<ServiceAccountTokens>);

impl Subresource for Token {
    fn serves(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        vec![("", "serviceaccounts", "token")]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        let tokens = self.0.clone();
        Box::pin(async move {
            issue(
                &tokens,
                Plain::new(server, def, request)?.only(&[Verb::Create])?,
            )
            .await
        })
    }
}

async fn issue(tokens: &ServiceAccountTokens, mut plain: Plain) -> Result<Reply, Status> {
    let mut request = plain.body(GROUP, "v1", "TokenRequest")?;
    let account = plain.current()?;
    let name = plain.call.name().to_owned();
    for (key, own) in [
        ("name", name.as_str()),
        ("namespace", plain.call.namespace()),
    ] {
        let given = text(&request, &["metadata", key]);
        if !given.is_empty() && given != own {
            return Err(Status::bad_request(format!(
                "the {key} of the object ({given}) does not match the {key} on the URL ({own})"
            )));
        }
        meta::set(&mut request, &["metadata", key], own.to_owned());
    }
    // Admission sees what was asked for: an audience that is left out is the server's own.
    plain.admit(&mut request, None).await?;
    complete(&mut request, tokens);
    check(&request)?;
    let uid = text(&account, &["metadata", "uid"]).to_owned();
    let mut spec = TokenSpec {
        namespace: plain.call.namespace().to_owned(),
        account: Reference { name, uid },
        audiences: items(&request, &["spec", "audiences"])
            .iter()
            .filter_map(|audience| audience.as_str().map(str::to_owned))
            .collect(),
        ..TokenSpec::default()
    };
    bind(&plain, &mut request, &mut spec)?;
    let seconds = integer(&request, &["spec", "expirationSeconds"]).unwrap_or(DEFAULT_SECONDS);
    let asked = Duration::from_secs(seconds.unsigned_abs());
    spec.lifetime = asked;
    let for_server = spec
        .audiences
        .iter()
        .any(|one| tokens.audiences().contains(one));
    if seconds == EXTENDED_SECONDS && spec.pod.is_some() && for_server {
        spec.lifetime = Duration::from_secs(YEAR);
        spec.warn_after = Some(asked);
    }
    let now = SystemTime::from(plain.call.now);
    let (token, _) = tokens
        .issue(&spec, &uuid(), now)
        .map_err(Status::internal)?;
    let expires = jiff::Timestamp::try_from(now + asked).map_err(Status::internal)?;
    request["status"] = json!({"token": token, "expirationTimestamp": time::format(expires)});
    meta::set(&mut request, &["metadata", "uid"], uuid());
    meta::set(
        &mut request,
        &["metadata", "creationTimestamp"],
        time::format(plain.call.now),
    );
    Ok(plain.reply(201, &request))
}

fn complete(request: &mut Value, tokens: &ServiceAccountTokens) {
    if items(request, &["spec", "audiences"]).is_empty() {
        meta::set(request, &["spec", "audiences"], tokens.audiences().to_vec());
    }
    if at(request, &["spec", "expirationSeconds"]).is_null() {
        meta::set(request, &["spec", "expirationSeconds"], DEFAULT_SECONDS);
    }
}

fn check(request: &Value) -> Result<(), Status> {
    let mut errors = ErrorList::new();
    let spec = Path::new("spec");
    let path = spec.child("expirationSeconds");
    let seconds = integer(request, &["spec", "expirationSeconds"]).unwrap_or(DEFAULT_SECONDS);
    if seconds < MIN_SECONDS {
        errors.invalid(
            &path,
            seconds,
            "may not specify a duration less than 10 minutes",
        );
    }
    if seconds > MAX_SECONDS {
        errors.invalid(
            &path,
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        );
    }
    errors.into_result(GROUP, "TokenRequest", "")
}

/// Ties the token to the object it is asked for.
fn bind(plain: &Plain, request: &mut Value, spec: &mut TokenSpec) -> Result<(), Status> {
    let bound = at(request, &["spec", "boundObjectRef"]).clone();
    if bound.is_null() {
        return Ok(());
    }
    let name = text(&bound, &["name"]);
    let (plural, namespace) = match (text(&bound, &["apiVersion"]), text(&bound, &["kind"])) {
        ("v1", "Pod") => ("pods", Some(plain.call.namespace())),
        ("v1", "Secret") => ("secrets", Some(plain.call.namespace())),
        ("v1", "Node") => ("nodes", None),
        (version, kind) => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    };
    let object = plain
        .call
        .server
        .core()
        .get("", plural, namespace, name)
        .ok_or_else(|| Status::not_found("", plural, name))?;
    let object: Value = serde_json::from_slice(&object.bytes).map_err(Status::internal)?;
    let uid = text(&object, &["metadata", "uid"]);
    let wanted = text(&bound, &["uid"]);
    if !wanted.is_empty() && wanted != uid {
        return Err(Status::conflict(
            "",
            plural,
            name,
            &format!(
                "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    meta::set(request, &["spec", "boundObjectRef", "uid"], uid);
    let reference = Reference {
        name: name.to_owned(),
        uid: uid.to_owned(),
    };
    match plural {
        "pods" => {
            let account = text(&object, &["spec", "serviceAccountName"]);
            let own = plain.call.name();
            if account != own {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {own:?} to pod running with different serviceaccount name."
                )));
            }
            let node = text(&object, &["spec", "nodeName"]);
            if !node.is_empty() {
                spec.node = Some(node_reference(plain, node));
            }
            spec.pod = Some(reference);
        }
        "secrets" => spec.secret = Some(reference),
        _ => spec.node = Some(reference),
    }
    Ok(())
}

fn node_reference(plain: &Plain, name: &str) -> Reference {
    let object = plain.call.server.core().get("", "nodes", None, name);
    let uid = object
        .and_then(|object| serde_json::from_slice::<Value>(&object.bytes).ok())
        .map(|node| text(get(&node, "metadata"), &["uid"]).to_owned())
        .unwrap_or_default();
    Reference {
        name: name.to_owned(),
        uid,
    }
}

fn uuid() -> String {
    crate::registry::write::new_uid()
}
