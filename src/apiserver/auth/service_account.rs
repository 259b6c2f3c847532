//! Service-account tokens: made for the TokenRequest API, checked against live objects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use sampan_api::{Meta, UserInfo};
use sampan_pki::{TokenSigner, TokenVerifier};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::source::ObjectSource;
use super::token_file::hash;

/// Clocks of two machines may differ by this much.
const LEEWAY: Duration = Duration::from_secs(60);
/// Verified signatures that are remembered.
const CACHE_SIZE: usize = 4096;

pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// An object that a token dies with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The claims under `kubernetes.io`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct PrivateClaims {
    namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<Reference>,
    serviceaccount: Reference,
    #[serde(skip_serializing_if = "Option::is_none")]
    warnafter: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Claims {
    iss: String,
    #[serde(deserialize_with = "one_or_many")]
    aud: Vec<String>,
    exp: u64,
    nbf: u64,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    private: PrivateClaims,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(one) => Ok(vec![one]),
        other => serde_json::from_value(other).map_err(serde::de::Error::custom),
    }
}

/// What a token is made for.
#[derive(Debug, Clone, Default)]
pub struct TokenSpec {
    pub namespace: String,
    pub account: Reference,
    pub audiences: Vec<String>,
    pub pod: Option<Reference>,
    pub secret: Option<Reference>,
    pub node: Option<Reference>,
    pub lifetime: Duration,
    /// Warn its user (in logs) once it is older than this.
    pub warn_after: Option<Duration>,
}

/// A user and the audiences for which the token is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    pub user: UserInfo,
    pub audiences: Vec<String>,
}

/// Makes and checks service-account tokens.
pub struct ServiceAccountTokens {
    signer: Arc<TokenSigner>,
    verifier: TokenVerifier,
    issuer: String,
    audiences: Vec<String>,
    source: Arc<dyn ObjectSource>,
    /// Claims of tokens whose signature was good.
    verified: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

impl ServiceAccountTokens {
    /// `verifier` knows all keys that may have signed tokens, also those of other servers.
    pub fn new(
        signer: Arc<TokenSigner>,
        verifier: TokenVerifier,
        issuer: &str,
        source: Arc<dyn ObjectSource>,
    ) -> Self {
        Self {
            signer,
            verifier,
            issuer: issuer.to_owned(),
            audiences: vec![issuer.to_owned()],
            source,
            verified: Mutex::default(),
        }
    }

    /// The audiences of the API server itself.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    pub fn key_set(&self) -> Value {
        self.verifier.jwks()
    }

    /// Whether `token` says that it is one of ours; it may still be invalid.
    pub fn claims_to_be_ours(&self, token: &str) -> bool {
        TokenVerifier::peek(token).is_ok_and(|claims| claims["iss"] == self.issuer.as_str())
    }

    /// A new token and its claims' expiration.
    pub fn issue(
        &self,
        spec: &TokenSpec,
        id: &str,
        now: SystemTime,
    ) -> Result<(String, SystemTime), sampan_pki::Error> {
        let expires = now + spec.lifetime;
        let seconds = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs()
        };
        let audiences = if spec.audiences.is_empty() {
            &self.audiences
        } else {
            &spec.audiences
        };
        let private = PrivateClaims {
            namespace: spec.namespace.clone(),
            node: spec.node.clone(),
            pod: spec.pod.clone(),
            secret: spec.secret.clone(),
            serviceaccount: spec.account.clone(),
            warnafter: spec.warn_after.map(|after| seconds(now + after)),
        };
        let claims = json!({
            "aud": audiences,
            "exp": seconds(expires),
            "iat": seconds(now),
            "iss": self.issuer,
            "jti": id,
            "kubernetes.io": private,
            "nbf": seconds(now),
            "sub": format!("system:serviceaccount:{}:{}", spec.namespace, spec.account.name),
        });
        Ok((self.signer.sign(&claims)?, expires))
    }

    /// The token's user, if the token is for one of `audiences` (none: for this API server).
    pub fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
        now: SystemTime,
    ) -> Result<Authenticated, String> {
        let claims = self.verify(token)?;
        check_time(&claims, now)?;
        let wanted = if audiences.is_empty() {
            &self.audiences
        } else {
            audiences
        };
        let common: Vec<String> = claims
            .aud
            .iter()
            .filter(|audience| wanted.contains(audience))
            .cloned()
            .collect();
        if common.is_empty() {
            return Err(format!(
                "[invalid bearer token, token audiences {} is invalid for the target audiences {}]",
                quoted(&claims.aud),
                quoted(wanted)
            ));
        }
        let node = self.check_objects(&claims.private, now)?;
        Ok(Authenticated {
            user: user_of(&claims, node),
            audiences: common,
        })
    }

    fn verify(&self, token: &str) -> Result<Arc<Claims>, String> {
        let key = hash(token);
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = verified.get(&key) {
            return Ok(Arc::clone(claims));
        }
        let claims = self
            .verifier
            .verify(token)
            .map_err(|_| "invalid bearer token".to_owned())?;
        let claims: Claims =
            serde_json::from_value(claims).map_err(|_| "invalid bearer token".to_owned())?;
        if claims.iss != self.issuer {
            return Err("invalid bearer token".to_owned());
        }
        if verified.len() >= CACHE_SIZE {
            verified.clear();
        }
        let claims = Arc::new(claims);
        verified.insert(key, Arc::clone(&claims));
        Ok(claims)
    }

    /// The account and what the token is bound to must still be there. Returns the pod's node.
    fn check_objects(
        &self,
        private: &PrivateClaims,
        now: SystemTime,
    ) -> Result<Option<Reference>, String> {
        let namespace = &private.namespace;
        let account = &private.serviceaccount;
        self.check_object("serviceaccounts", namespace, account, now)?;
        if let Some(secret) = &private.secret {
            self.check_object("secrets", namespace, secret, now)?;
        }
        if let Some(pod) = &private.pod {
            self.check_object("pods", namespace, pod, now)?;
        }
        if let Some(node) = &private.node {
            // The node of a pod's token may be gone before the pod is: only uids are compared.
            if private.pod.is_none() {
                self.check_object("nodes", "", node, now)?;
            }
        }
        Ok(private.node.clone())
    }

    fn check_object(
        &self,
        resource: &str,
        namespace: &str,
        wanted: &Reference,
        now: SystemTime,
    ) -> Result<(), String> {
        let name = &wanted.name;
        let gone = || format!("{resource} {namespace}/{name} has been deleted");
        let object = self
            .source
            .object("", resource, namespace, name)
            .ok_or_else(gone)?;
        let meta = Meta::from_bytes(&object).map_err(|_| gone())?;
        if !wanted.uid.is_empty() && meta.uid != wanted.uid {
            return Err(format!(
                "{resource} UID ({}) does not match claim ({})",
                meta.uid, wanted.uid
            ));
        }
        if is_long_deleted(&meta, now) {
            return Err(gone());
        }
        Ok(())
    }
}

/// Something that is being deleted keeps its tokens for a minute, to end in order.
fn is_long_deleted(meta: &Meta, now: SystemTime) -> bool {
    let Some(at) = &meta.deletion_timestamp else {
        return false;
    };
    let Ok(at) = at.parse::<jiff::Timestamp>() else {
        return true;
    };
    SystemTime::from(at) + LEEWAY < now
}

fn check_time(claims: &Claims, now: SystemTime) -> Result<(), String> {
    let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    if claims.exp != 0 && at(claims.exp) + LEEWAY < now {
        return Err("service account token has expired".to_owned());
    }
    if at(claims.nbf) > now + LEEWAY {
        return Err("service account token is not valid yet".to_owned());
    }
    Ok(())
}

fn user_of(claims: &Claims, node: Option<Reference>) -> UserInfo {
    let private = &claims.private;
    let account = &private.serviceaccount;
    let mut user = UserInfo::service_account(&private.namespace, &account.name, &account.uid);
    let mut add = |key: &str, value: &str| {
        if !value.is_empty() {
            let key = format!("authentication.kubernetes.io/{key}");
            user.extra.insert(key, vec![value.to_owned()]);
        }
    };
    if !claims.jti.is_empty() {
        add("credential-id", &format!("JTI={}", claims.jti));
    }
    if let Some(pod) = &private.pod {
        add("pod-name", &pod.name);
        add("pod-uid", &pod.uid);
    }
    if let Some(node) = &node {
        add("node-name", &node.name);
        add("node-uid", &node.uid);
    }
    user
}

fn quoted(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use sampan_pki::PrivateKey;

    use super::*;
    use crate::auth::ChangeHandler;

    /// Objects by resource and name.
    struct Objects(Mutex<HashMap<(String, String), String>>);

    impl ObjectSource for Objects {
        fn object(&self, _: &str, resource: &str, _: &str, name: &str) -> Option<Bytes> {
            let objects = self.0.lock().unwrap();
            let uid = objects.get(&(resource.to_owned(), name.to_owned()))?;
            let object = json!({"metadata": {"name": name, "uid": uid}});
            Some(Bytes::from(object.to_string()))
        }

        fn subscribe(&self, _: &str, _: &str, _: ChangeHandler) {}
    }

    #[test]
    fn tokens_live_as_long_as_what_they_are_bound_to() {
        let objects = Arc::new(Objects(Mutex::default()));
        let put = |resource: &str, name: &str, uid: &str| {
            let key = (resource.to_owned(), name.to_owned());
            objects.0.lock().unwrap().insert(key, uid.to_owned());
        };
        put("serviceaccounts", "sa", "u1");
        put("pods", "p", "u2");
        let signer = Arc::new(TokenSigner::new(PrivateKey::generate().unwrap()));
        let verifier = signer.verifier();
        let tokens = ServiceAccountTokens::new(signer, verifier, DEFAULT_ISSUER, objects.clone());
        let now = SystemTime::now();
        let reference = |name: &str, uid: &str| Reference {
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        let spec = TokenSpec {
            namespace: "a".to_owned(),
            account: reference("sa", "u1"),
            pod: Some(reference("p", "u2")),
            lifetime: Duration::from_secs(3600),
            ..TokenSpec::default()
        };
        let (token, _) = tokens.issue(&spec, "id", now).unwrap();
        assert!(tokens.claims_to_be_ours(&token));
        let check = |audiences: &[&str], later: u64| {
            let audiences: Vec<String> = audiences.iter().map(|&one| one.to_owned()).collect();
            tokens.authenticate(&token, &audiences, now + Duration::from_secs(later))
        };
        let found = check(&[], 0).unwrap();
        assert_eq!(found.user.username, "system:serviceaccount:a:sa");
        assert_eq!(
            found.user.extra["authentication.kubernetes.io/pod-name"],
            ["p"]
        );
        assert!(
            check(&["elsewhere"], 0)
                .unwrap_err()
                .contains("target audiences")
        );
        assert!(check(&[], 3700).unwrap_err().contains("expired"));
        put("pods", "p", "u3");
        assert!(check(&[], 0).unwrap_err().contains("UID"));
        objects.0.lock().unwrap().clear();
        assert!(check(&[], 0).unwrap_err().contains("deleted"));
    }
}
