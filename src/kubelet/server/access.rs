//! Who asks, and whether they may: client certificates and reviewed tokens, then access reviews.

use super::route::subresources;
use super::{Failure, verb};
use http::{HeaderMap, Method, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use sampan_api::UserInfo;
use sampan_api::user::well_known;
use sampan_client::Client;
use sampan_net::{CertificateChecker, Peer};
use sampan_pki::certificate::CertificateInfo;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

/// How long answers of the API server are believed; the same as upstream's.
const TOKEN_LIFE: Duration = Duration::from_secs(120);
const ALLOWED_LIFE: Duration = Duration::from_secs(300);
const DENIED_LIFE: Duration = Duration::from_secs(30);
/// Answers kept of each kind; a flood of tokens must not fill the memory.
const KEPT: usize = 1024;

/// The gate of the server.
pub struct Access {
    node_name: String,
    client: Client,
    checker: RwLock<Arc<CertificateChecker>>,
    tokens: Cache<String, Option<Arc<UserInfo>>>,
    reviews: Cache<ReviewKey, bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ReviewKey {
    user: String,
    uid: String,
    groups: Vec<String>,
    verb: &'static str,
    subresource: &'static str,
}

impl Access {
    /// `client` asks the API server with the node's identity.
    pub fn new(node_name: &str, client: Client, checker: CertificateChecker) -> Self {
        Self {
            node_name: node_name.to_owned(),
            client,
            checker: RwLock::new(Arc::new(checker)),
            tokens: Cache::default(),
            reviews: Cache::default(),
        }
    }

    /// From now on other authorities are trusted.
    pub fn replace_checker(&self, checker: CertificateChecker) {
        *self.checker.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(checker);
    }

    pub(super) async fn check(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        method: &Method,
        path: &str,
    ) -> Result<(), Failure> {
        let Some(user) = self.authenticate(peer, headers).await else {
            return Err(Failure::new(StatusCode::UNAUTHORIZED, "Unauthorized"));
        };
        if user.in_group(well_known::MASTERS) {
            return Ok(());
        }
        let verb = verb(method);
        let names = subresources(path);
        for subresource in &names {
            if self.is_allowed(&user, verb, subresource).await? {
                return Ok(());
            }
        }
        Err(Failure::new(
            StatusCode::FORBIDDEN,
            format!(
                "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
                user.username,
                names.join(" ")
            ),
        ))
    }

    async fn authenticate(&self, peer: &Peer, headers: &HeaderMap) -> Option<Arc<UserInfo>> {
        if let Some(leaf) = peer.certificates.first() {
            let checker = Arc::clone(&self.checker.read().unwrap_or_else(PoisonError::into_inner));
            match checker.check(&peer.certificates, SystemTime::now()) {
                Ok(()) => return user_of(leaf),
                Err(error) => tracing::debug!(%error, "client certificate is not trusted"),
            }
        }
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        self.review_token(token.trim()).await
    }

    async fn review_token(&self, token: &str) -> Option<Arc<UserInfo>> {
        // The token itself need not lie in memory.
        let key = sampan_cri::import::oci::digest(token.as_bytes());
        if let Some(known) = self.tokens.get(&key) {
            return known;
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let status = match self.client.create(&review).await {
            Ok(review) => review.status.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "cannot have a token reviewed");
                return None;
            }
        };
        let user = status
            .user
            .filter(|_| status.authenticated == Some(true))
            .map(|user| {
                Arc::new(UserInfo {
                    username: user.username.unwrap_or_default(),
                    uid: user.uid.unwrap_or_default(),
                    groups: user.groups.unwrap_or_default(),
                    extra: user.extra.unwrap_or_default(),
                })
            });
        self.tokens.put(key, user.clone(), TOKEN_LIFE);
        user
    }

    async fn is_allowed(
        &self,
        user: &UserInfo,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, Failure> {
        let key = ReviewKey {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            verb,
            subresource,
        };
        if let Some(known) = self.reviews.get(&key) {
            return Ok(known);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.username.clone()),
                uid: Some(user.uid.clone()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(self.node_name.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        match self.client.create(&review).await {
            Ok(review) => {
                let allowed = review.status.is_some_and(|status| status.allowed);
                let life = if allowed { ALLOWED_LIFE } else { DENIED_LIFE };
                self.reviews.put(key, allowed, life);
                Ok(allowed)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot have access reviewed");
                Err(Failure::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.username
                    ),
                ))
            }
        }
    }
}

/// A certificate's common name is the user, its organizations are the groups.
fn user_of(certificate: &[u8]) -> Option<Arc<UserInfo>> {
    match CertificateInfo::from_der(certificate) {
        Ok(info) if !info.common_name.is_empty() => {
            let groups: Vec<&str> = info.organizations.iter().map(String::as_str).collect();
            Some(Arc::new(UserInfo::authenticated(info.common_name, &groups)))
        }
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, "client certificate cannot be read");
            None
        }
    }
}

/// Answers with a time to live.
struct Cache<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, value) = entries.get(key)?;
        (*until > Instant::now()).then(|| value.clone())
    }

    fn put(&self, key: K, value: V, life: Duration) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if entries.len() >= KEPT {
            entries.retain(|_, (until, _)| *until > now);
        }
        if entries.len() >= KEPT {
            entries.clear();
        }
        entries.insert(key, (now + life, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_answers_are_not_given_and_new_ones_are_bounded() {
        let cache = Cache::default();
        cache.put(1, "a", Duration::from_secs(60));
        cache.put(2, "b", Duration::ZERO);
        assert_eq!((cache.get(&1), cache.get(&2)), (Some("a"), None));
        for key in 0..2 * KEPT {
            cache.put(key, "c", Duration::from_secs(60));
        }
        let kept = cache.0.lock().map(|entries| entries.len()).unwrap_or(0);
        assert!(kept <= KEPT);
    }
}
