//! From credentials to a user: front proxy, client certificate, bearer token, nobody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use sampan_api::UserInfo;
use sampan_net::{CertificateChecker, Peer};
use sampan_pki::CertificateInfo;

use super::service_account::{Authenticated, ServiceAccountTokens};
use super::token_file::StaticTokens;

/// Certificates whose chain was checked and that are remembered.
const CACHE_SIZE: usize = 1024;

/// Who may speak for others by headers.
pub struct FrontProxy {
    pub checker: CertificateChecker,
    /// Common names that may; none: any.
    pub allowed_names: Vec<String>,
}

/// Credentials were given, and they are not good. The client only learns that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

type KnownUsers = HashMap<[u8; 32], (Arc<UserInfo>, SystemTime)>;

pub struct Authenticator {
    client_certificates: CertificateChecker,
    front_proxy: Option<FrontProxy>,
    static_tokens: StaticTokens,
    service_accounts: Option<Arc<ServiceAccountTokens>>,
    anonymous: bool,
    /// Users by the certificate's hash, with the time at which it ends.
    known: Mutex<KnownUsers>,
}

impl Authenticator {
    pub fn new(client_certificates: CertificateChecker) -> Self {
        Self {
            client_certificates,
            front_proxy: None,
            static_tokens: StaticTokens::default(),
            service_accounts: None,
            anonymous: true,
            known: Mutex::default(),
        }
    }

    #[must_use]
    pub fn with_front_proxy(mut self, proxy: FrontProxy) -> Self {
        self.front_proxy = Some(proxy);
        self
    }

    #[must_use]
    pub fn with_static_tokens(mut self, tokens: StaticTokens) -> Self {
        self.static_tokens.extend(tokens);
        self
    }

    #[must_use]
    pub fn with_service_accounts(mut self, tokens: Arc<ServiceAccountTokens>) -> Self {
        self.service_accounts = Some(tokens);
        self
    }

    pub fn service_accounts(&self) -> Option<&Arc<ServiceAccountTokens>> {
        self.service_accounts.as_ref()
    }

    /// The user behind a request.
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: &Peer,
        now: SystemTime,
    ) -> Result<Arc<UserInfo>, Refused> {
        if let Some(user) = self.by_front_proxy(headers, peer, now) {
            return Ok(Arc::new(user));
        }
        let mut problem = None;
        if !peer.certificates.is_empty() {
            match self.by_certificate(peer, now) {
                Ok(user) => return Ok(user),
                Err(error) => problem = Some(error),
            }
        }
        if let Some(token) = bearer_token(headers) {
            return self
                .authenticate_token(&token, &[], now)
                .map(|found| Arc::new(found.user))
                .map_err(Refused);
        }
        match problem {
            Some(error) => Err(error),
            None if self.anonymous => Ok(Arc::new(UserInfo::anonymous())),
            None => Err(Refused("no credentials".to_owned())),
        }
    }

    /// The user of a token that is good for one of `audiences` (none: for this server).
    pub fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
        now: SystemTime,
    ) -> Result<Authenticated, String> {
        if let Some(user) = self.static_tokens.find(token) {
            return Ok(Authenticated {
                user: user.clone(),
                audiences: audiences.to_vec(),
            });
        }
        match &self.service_accounts {
            Some(tokens) if tokens.claims_to_be_ours(token) => {
                tokens.authenticate(token, audiences, now)
            }
            _ => Err("invalid bearer token".to_owned()),
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownUsers> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_user(&self, hash: &[u8; 32], now: SystemTime) -> Option<Arc<UserInfo>> {
        let known = self.known();
        let (user, until) = known.get(hash)?;
        (*until > now).then(|| Arc::clone(user))
    }

    fn by_certificate(&self, peer: &Peer, now: SystemTime) -> Result<Arc<UserInfo>, Refused> {
        let leaf = &peer.certificates[0];
        let mut hash = [0; 32];
        hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, leaf).as_ref());
        if let Some(user) = self.known_user(&hash, now) {
            return Ok(user);
        }
        // Checking signatures takes its time; others must not wait for it.
        self.client_certificates
            .check(&peer.certificates, now)
            .map_err(|error| Refused(error.to_string()))?;
        let info = CertificateInfo::from_der(leaf).map_err(|error| Refused(error.to_string()))?;
        if info.common_name.is_empty() {
            return Err(Refused("the certificate has no common name".to_owned()));
        }
        let user = Arc::new(user_of(&info));
        let mut known = self.known();
        if known.len() >= CACHE_SIZE {
            known.clear();
        }
        known.insert(hash, (Arc::clone(&user), info.not_after));
        Ok(user)
    }

    fn by_front_proxy(
        &self,
        headers: &HeaderMap,
        peer: &Peer,
        now: SystemTime,
    ) -> Option<UserInfo> {
        let proxy = self.front_proxy.as_ref()?;
        let user = text(headers, "x-remote-user").filter(|user| !user.is_empty())?;
        let leaf = peer.certificates.first()?;
        proxy.checker.check(&peer.certificates, now).ok()?;
        let name = CertificateInfo::from_der(leaf).ok()?.common_name;
        if !proxy.allowed_names.is_empty() && !proxy.allowed_names.contains(&name) {
            return None;
        }
        let groups: Vec<&str> = all(headers, "x-remote-group").collect();
        let mut info = UserInfo::authenticated(user, &groups);
        info.uid = text(headers, "x-remote-uid").unwrap_or_default().to_owned();
        for (key, value) in with_prefix(headers, "x-remote-extra-") {
            info.extra.entry(key).or_default().push(value);
        }
        Some(info)
    }
}

fn user_of(info: &CertificateInfo) -> UserInfo {
    let groups: Vec<&str> = info.organizations.iter().map(String::as_str).collect();
    let mut user = UserInfo::authenticated(&info.common_name, &groups);
    user.extra.insert(
        "authentication.kubernetes.io/credential-id".to_owned(),
        vec![format!("X509SHA256={}", info.fingerprint)],
    );
    user
}

/// The token of the `Authorization` header, or the one that browsers hide in a subprotocol.
fn bearer_token(headers: &HeaderMap) -> Option<String> {
    let from_header = text(headers, AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, token) = value.trim().split_once(' ')?;
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
    });
    from_header.or_else(|| {
        const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
        let encoded = all(headers, SEC_WEBSOCKET_PROTOCOL.as_str())
            .flat_map(|value| value.split(','))
            .find_map(|protocol| protocol.trim().strip_prefix(PREFIX))?;
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .decode(encoded)
            .ok()?;
        String::from_utf8(bytes).ok()
    })
}

pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

pub(super) fn all<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
}

/// Values of headers `PREFIX<key>`, with the key decoded.
pub(super) fn with_prefix(headers: &HeaderMap, prefix: &str) -> Vec<(String, String)> {
    headers
        .iter()
        .filter_map(|(name, value)| {
            let key = name.as_str().strip_prefix(prefix)?;
            let key = crate::http::path::percent_decode(key).into_owned();
            Some((key, value.to_str().ok()?.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::HeaderValue;
    use sampan_pki::{Authority, LeafSpec, certificate};

    use super::*;

    struct Fixture {
        authority: Authority,
        proxies: Authority,
        authenticator: Authenticator,
        now: SystemTime,
    }

    impl Fixture {
        fn new() -> Self {
            let now = SystemTime::now();
            let authority = Authority::create("clients", now).unwrap();
            let proxies = Authority::create("proxies", now).unwrap();
            let checker = |ca: &Authority| CertificateChecker::new(ca.certificate_pem()).unwrap();
            let tokens = StaticTokens::parse("secret,alice,u,dev").unwrap();
            let authenticator = Authenticator::new(checker(&authority))
                .with_front_proxy(FrontProxy {
                    checker: checker(&proxies),
                    allowed_names: vec!["front".to_owned()],
                })
                .with_static_tokens(tokens);
            Self {
                authority,
                proxies,
                authenticator,
                now,
            }
        }

        fn ask(
            &self,
            certificate: Option<(&Authority, &str, &[&str])>,
            headers: &[(&'static str, &str)],
        ) -> Result<String, Refused> {
            let certificates = certificate
                .map(|(ca, name, groups)| {
                    let leaf = ca.issue(&LeafSpec::client(name, groups), self.now).unwrap();
                    certificate::certificates_from_pem(&leaf.certificate_pem).unwrap()
                })
                .unwrap_or_default();
            let address = "127.0.0.1:1".parse().unwrap();
            let peer = Peer {
                address,
                local_address: address,
                certificates,
            };
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_str(value).unwrap());
            }
            self.authenticator
                .authenticate(&map, &peer, self.now)
                .map(|user| format!("{} {}", user.username, user.groups.join(",")))
        }
    }

    #[test]
    fn each_way_in() {
        let fixture = Fixture::new();
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(
            fixture.ask(None, &[]),
            ok("system:anonymous system:unauthenticated")
        );
        let own = Some((&fixture.authority, "bob", &["ops", "dev"][..]));
        assert_eq!(
            fixture.ask(own, &[]),
            ok("bob ops,dev,system:authenticated")
        );
        assert_eq!(
            fixture.ask(None, &[("authorization", "Bearer secret")]),
            ok("alice dev,system:authenticated")
        );
        assert!(
            fixture
                .ask(None, &[("authorization", "Bearer wrong")])
                .is_err()
        );
        for nothing in ["Bearer", "Bearer ", "Basic YTpi"] {
            assert!(fixture.ask(None, &[("authorization", nothing)]).is_ok());
        }
        let foreign = Some((&fixture.proxies, "bob", &[][..]));
        assert!(fixture.ask(foreign, &[]).is_err());
    }

    #[test]
    fn only_the_front_proxy_may_speak_for_others() {
        let fixture = Fixture::new();
        let headers = [("x-remote-user", "carol"), ("x-remote-group", "g")];
        let front = Some((&fixture.proxies, "front", &[][..]));
        assert_eq!(
            fixture.ask(front, &headers),
            Ok("carol g,system:authenticated".to_owned())
        );
        let other = Some((&fixture.proxies, "other", &[][..]));
        assert!(fixture.ask(other, &headers).is_err());
        let client = Some((&fixture.authority, "bob", &[][..]));
        assert_eq!(
            fixture.ask(client, &headers),
            Ok("bob system:authenticated".to_owned())
        );
    }
}
