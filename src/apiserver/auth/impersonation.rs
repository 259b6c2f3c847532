//! Acting as somebody else, for those who may: the `Impersonate-*` headers.

use std::sync::Arc;

use http::HeaderMap;
use sampan_api::user::well_known;
use sampan_api::{Status, UserInfo};

use super::authenticator::{all, text, with_prefix};
use super::union;
use crate::request::{Attributes, Authorizer, ResourceAttributes};

/// The user that the request acts as: `user` itself if no header asks for more.
pub fn impersonate(
    user: Arc<UserInfo>,
    headers: &HeaderMap,
    authorizer: &dyn Authorizer,
) -> Result<Arc<UserInfo>, Status> {
    let name = text(headers, "impersonate-user").unwrap_or_default();
    let uid = text(headers, "impersonate-uid").unwrap_or_default();
    let groups: Vec<&str> = all(headers, "impersonate-group").collect();
    let extra = with_prefix(headers, "impersonate-extra-");
    if name.is_empty() {
        if uid.is_empty() && groups.is_empty() && extra.is_empty() {
            return Ok(user);
        }
        return Err(Status::internal(format!(
            "requested {} without impersonating a user",
            requested(&groups, &extra, uid)
        )));
    }
    let may = |resource: ResourceAttributes<'_>| {
        union::check(
            authorizer,
            &Attributes {
                user: &user,
                verb: "impersonate",
                resource: Some(resource),
                path: "",
            },
        )
    };
    let account = service_account(name);
    may(match account {
        Some((namespace, account)) => ResourceAttributes {
            version: "v1",
            resource: "serviceaccounts",
            namespace,
            name: account,
            ..ResourceAttributes::default()
        },
        None => ResourceAttributes {
            version: "v1",
            resource: "users",
            name,
            ..ResourceAttributes::default()
        },
    })?;
    for group in &groups {
        may(ResourceAttributes {
            version: "v1",
            resource: "groups",
            name: group,
            ..ResourceAttributes::default()
        })?;
    }
    for (key, value) in &extra {
        may(ResourceAttributes {
            group: "authentication.k8s.io",
            version: "v1",
            resource: "userextras",
            subresource: key,
            name: value,
            ..ResourceAttributes::default()
        })?;
    }
    if !uid.is_empty() {
        may(ResourceAttributes {
            group: "authentication.k8s.io",
            version: "v1",
            resource: "uids",
            name: uid,
            ..ResourceAttributes::default()
        })?;
    }
    Ok(Arc::new(make(name, uid, &groups, &extra, account)))
}

fn requested(groups: &[&str], extra: &[(String, String)], uid: &str) -> String {
    let mut all: Vec<String> = groups
        .iter()
        .map(|group| format!("group {group}"))
        .collect();
    all.extend(extra.iter().map(|(key, _)| format!("extra {key}")));
    if !uid.is_empty() {
        all.push(format!("uid {uid}"));
    }
    format!("[{}]", all.join(" "))
}

fn service_account(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(well_known::SERVICE_ACCOUNT_USER_PREFIX)?
        .split_once(':')
}

fn make(
    name: &str,
    uid: &str,
    groups: &[&str],
    extra: &[(String, String)],
    account: Option<(&str, &str)>,
) -> UserInfo {
    let mut groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
    if let (Some((namespace, _)), true) = (account, groups.is_empty()) {
        groups.push(well_known::SERVICE_ACCOUNTS.to_owned());
        groups.push(format!("{}:{namespace}", well_known::SERVICE_ACCOUNTS));
    }
    let special = if name == well_known::ANONYMOUS {
        well_known::UNAUTHENTICATED
    } else {
        well_known::AUTHENTICATED
    };
    let has_special = [well_known::AUTHENTICATED, well_known::UNAUTHENTICATED]
        .iter()
        .any(|group| groups.iter().any(|own| own == group));
    if !has_special {
        groups.push(special.to_owned());
    }
    let mut user = UserInfo {
        username: name.to_owned(),
        uid: uid.to_owned(),
        groups,
        ..UserInfo::default()
    };
    for (key, value) in extra {
        user.extra
            .entry(key.clone())
            .or_default()
            .push(value.clone());
    }
    user
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::HeaderValue;

    use super::*;
    use crate::request::Decision;

    /// May impersonate users only.
    struct UsersOnly;

    impl Authorizer for UsersOnly {
        fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
            match attributes.resource {
                Some(resource) if resource.resource == "users" => Decision::Allow(String::new()),
                _ => Decision::NoOpinion(String::new()),
            }
        }
    }

    fn ask(headers: &[(&'static str, &str)]) -> Result<Arc<UserInfo>, Status> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let user = Arc::new(UserInfo::authenticated("admin", &[]));
        impersonate(user, &map, &UsersOnly)
    }

    #[test]
    fn every_part_is_asked_for() {
        assert_eq!(ask(&[]).unwrap().username, "admin");
        let carol = ask(&[("impersonate-user", "carol")]).unwrap();
        assert_eq!(carol.groups, ["system:authenticated"]);
        let group = [("impersonate-user", "carol"), ("impersonate-group", "g")];
        assert_eq!(ask(&group).unwrap_err().code, 403);
        let account = [("impersonate-user", "system:serviceaccount:a:b")];
        assert_eq!(ask(&account).unwrap_err().code, 403);
        assert_eq!(ask(&[("impersonate-group", "g")]).unwrap_err().code, 500);
    }
}
