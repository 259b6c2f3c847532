//! Tokens of service accounts, bound to the pod and renewed in time.

use crate::pod;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use sampan_client::{Client, Error};
use std::collections::HashMap;

const DEFAULT_SECONDS: i64 = 3600;
/// A token is renewed after this much of its life, and at the latest after a day.
const USED_PERCENT: i64 = 80;
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug, Clone)]
pub struct Token {
    pub text: String,
    pub renew_at: Timestamp,
}

/// The tokens of one pod, by audience and lifetime.
#[derive(Debug, Clone, Default)]
pub struct Tokens(HashMap<(String, i64), Token>);

/// When a token has to be renewed that was issued at `issued` and ends at `expires`.
fn renewal(issued: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(issued);
    let used = SignedDuration::from_secs(life.as_secs() * USED_PERCENT / 100);
    issued + used.min(MAX_AGE)
}

impl Tokens {
    /// A token that is still good, from memory or newly issued.
    pub async fn get(
        &mut self,
        client: &Client,
        pod: &Pod,
        source: &ServiceAccountTokenProjection,
    ) -> Result<Token, Error> {
        let audience = source.audience.clone().unwrap_or_default();
        let seconds = source.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
        let key = (audience, seconds);
        let now = Timestamp::now();
        if let Some(token) = self.0.get(&key).filter(|t| now < t.renew_at) {
            return Ok(token.clone());
        }
        let token = request(client, pod, &key.0, seconds, now).await?;
        self.0.insert(key, token.clone());
        Ok(token)
    }
}

async fn request(
    client: &Client,
    pod: &Pod,
    audience: &str,
    seconds: i64,
    now: Timestamp,
) -> Result<Token, Error> {
    let account = pod::spec(pod).service_account_name.as_deref();
    let account = account.filter(|a| !a.is_empty()).unwrap_or("default");
    let audiences = (!audience.is_empty()).then(|| vec![audience.to_owned()]);
    let body = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(audiences.unwrap_or_default()),
            expiration_seconds: Some(seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod::name(pod).to_owned()),
                uid: Some(pod::uid(pod).to_owned()),
            }),
        }),
        ..TokenRequest::default()
    };
    let namespace = Some(pod::namespace(pod));
    let reply: TokenRequest = client
        .create_subresource::<ServiceAccount, _, _>(namespace, account, "token", &body)
        .await?;
    let status = reply.status.unwrap_or_default();
    let expires = status
        .expiration_timestamp
        .map_or(now + SignedDuration::from_secs(seconds), |t| t.0);
    let text = status
        .token
        .ok_or_else(|| Error::Malformed("a token request without a token".to_owned()))?;
    Ok(Token {
        text,
        renew_at: renewal(now, expires),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_is_early_enough() {
        let at = crate::fixture::at;
        assert_eq!(renewal(at(0), at(3600)), at(2880));
        assert_eq!(renewal(at(0), at(365 * 86_400)), at(86_400));
    }
}
