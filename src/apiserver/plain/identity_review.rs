//! Reviews of identity: who am I, and whose token is this.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use sampan_api::meta::{items, text};
use sampan_api::{ResourceDef, Status, UserInfo, Verb, time};
use serde_json::{Map, Value, json};

use super::Plain;
use crate::auth::authenticator::Authenticator;
use crate::registry::hooks::Virtual;
use crate::registry::server::ApiServer;
use crate::request::{ApiRequest, Reply};

const GROUP: &str = "authentication.k8s.io";

pub(super) struct SelfReview;

impl Virtual for SelfReview {
    fn serves(&self) -> Vec<(&'static str, &'static str)> {
        vec![(GROUP, "selfsubjectreviews")]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        Box::pin(async move {
            let mut plain = Plain::new(server, def, request)?.only(&[Verb::Create])?;
            let mut review = plain.body(GROUP, "v1", "SelfSubjectReview")?;
            plain.admit(&mut review, None).await?;
            let now = time::format(plain.call.now);
            review["metadata"] = json!({"creationTimestamp": now});
            review["status"] = json!({"userInfo": user_info(&plain.call.user)});
            Ok(plain.reply(201, &review))
        })
    }
}

fn user_info(user: &UserInfo) -> Value {
    let mut info = Map::new();
    let mut put = |key: &str, empty: bool, value: Value| {
        if !empty {
            info.insert(key.to_owned(), value);
        }
    };
    put("username", user.username.is_empty(), json!(user.username));
    put("uid", user.uid.is_empty(), json!(user.uid));
    put("groups", user.groups.is_empty(), json!(user.groups));
    put("extra", user.extra.is_empty(), json!(user.extra));
    Value::Object(info)
}

pub(super) struct TokenReview(pub(super) Arc<Authenticator>);

impl Virtual for TokenReview {
    fn serves(&self) -> Vec<(&'static str, &'static str)> {
        vec![(GROUP, "tokenreviews")]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        let authenticator = self.0.clone();
        Box::pin(async move {
            let mut plain = Plain::new(server, def, request)?.only(&[Verb::Create])?;
            let mut review = plain.body(GROUP, "v1", "TokenReview")?;
            let token = text(&review, &["spec", "token"]).to_owned();
            if token.is_empty() {
                return Err(Status::bad_request(
                    "token is required for TokenReview in authentication",
                ));
            }
            plain.admit(&mut review, None).await?;
            let mut audiences: Vec<String> = items(&review, &["spec", "audiences"])
                .iter()
                .filter_map(|one| one.as_str().map(str::to_owned))
                .collect();
            let asked = !audiences.is_empty();
            if let (false, Some(tokens)) = (asked, authenticator.service_accounts()) {
                audiences = tokens.audiences().to_vec();
            }
            let found = authenticator.authenticate_token(
                &token,
                &audiences,
                SystemTime::from(plain.call.now),
            );
            review["status"] = match found {
                Ok(found) => json!({"authenticated": true, "user": user_info(&found.user),
                    "audiences": found.audiences}),
                Err(why) => json!({"user": {}, "error": why}),
            };
            Ok(plain.reply(201, &review))
        })
    }
}
