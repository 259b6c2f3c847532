//! Requests as method, path, query and body.

use std::fmt::Write;

use bytes::Bytes;
use http::Method;
use sampan_api::{Options, Target, Verb};

use super::Call;
use crate::transport::{Body, Error, Request};

pub(crate) fn call(request: &Request) -> Result<Call, Error> {
    let method = match request.verb {
        Verb::Get | Verb::List | Verb::Watch => Method::GET,
        Verb::Create => Method::POST,
        Verb::Update => Method::PUT,
        Verb::Patch => Method::PATCH,
        Verb::Delete | Verb::DeleteCollection => Method::DELETE,
    };
    let (content_type, body) = match &request.body {
        Body::None => ("application/json", None),
        Body::Object(object) => ("application/json", Some(object)),
        Body::Patch(kind, patch) => (kind.content_type(), Some(patch)),
    };
    let body = body
        .map(serde_json::to_vec)
        .transpose()
        .map_err(|error| Error::Malformed(error.to_string()))?;
    Ok(Call {
        method,
        path: format!("{}{}", path(&request.target), query(&request.options)),
        content_type,
        body: body.map(Bytes::from).unwrap_or_default(),
    })
}

/// The URL path of a target.
pub fn path(target: &Target) -> String {
    let resource = &target.resource;
    let mut path = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let mut push = |segment: &str| {
        path.push('/');
        encode(segment, &mut path);
    };
    if let Some(namespace) = &target.namespace
        && resource.resource != "namespaces"
    {
        push("namespaces");
        push(namespace);
    }
    push(&resource.resource);
    if let Some(name) = &target.name {
        push(name);
    }
    if let Some(subresource) = &target.subresource {
        // A proxied path has slashes of its own.
        path.push('/');
        path.push_str(subresource);
    }
    path
}

/// The query string with its question mark, or nothing.
pub fn query(options: &Options) -> String {
    let mut pairs: Vec<(&str, String)> = Vec::new();
    let text = |value: &Option<String>| value.clone();
    let flag = |value: bool| value.then(|| "true".to_owned());
    let optional = [
        ("labelSelector", text(&options.label_selector)),
        ("fieldSelector", text(&options.field_selector)),
        ("limit", options.limit.map(|limit| limit.to_string())),
        ("continue", text(&options.continue_token)),
        ("resourceVersion", text(&options.resource_version)),
        (
            "resourceVersionMatch",
            text(&options.resource_version_match),
        ),
        (
            "timeoutSeconds",
            options.timeout_seconds.map(|seconds| seconds.to_string()),
        ),
        ("watch", flag(options.watch)),
        ("allowWatchBookmarks", flag(options.allow_watch_bookmarks)),
        (
            "sendInitialEvents",
            options.send_initial_events.map(|value| value.to_string()),
        ),
        ("fieldManager", text(&options.field_manager)),
        ("fieldValidation", text(&options.field_validation)),
        ("force", options.force.map(|force| force.to_string())),
        (
            "gracePeriodSeconds",
            options.grace_period_seconds.map(|value| value.to_string()),
        ),
        ("propagationPolicy", text(&options.propagation_policy)),
        (
            "orphanDependents",
            options.orphan_dependents.map(|value| value.to_string()),
        ),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            pairs.push((key, value));
        }
    }
    for value in &options.dry_run {
        pairs.push(("dryRun", value.clone()));
    }
    for (key, value) in &options.other {
        pairs.push((key, value.clone()));
    }
    let mut query = String::new();
    for (key, value) in pairs {
        query.push(if query.is_empty() { '?' } else { '&' });
        encode(key, &mut query);
        query.push('=');
        encode(&value, &mut query);
    }
    query
}

/// Percent-encodes everything but unreserved characters.
fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                into.push(char::from(byte));
            }
            // Writing to a String cannot fail.
            _ => write!(into, "%{byte:02X}").unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sampan_api::GroupVersionResource;

    fn target(group: &'static str, namespace: Option<&str>, name: Option<&str>) -> Target {
        Target {
            resource: GroupVersionResource {
                group: group.into(),
                version: "v1".into(),
                resource: "pods".into(),
            },
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: None,
        }
    }

    #[test]
    fn paths_of_targets() {
        assert_eq!(path(&target("", None, None)), "/api/v1/pods");
        let mut one = target("apps", Some("ns"), Some("a:b"));
        one.subresource = Some("status".into());
        assert_eq!(path(&one), "/apis/apps/v1/namespaces/ns/pods/a%3Ab/status");
    }

    #[test]
    fn queries_are_encoded() {
        let options = Options {
            label_selector: Some("a in (b,c)".to_owned()),
            watch: true,
            other: vec![("pretty".to_owned(), "true".to_owned())],
            ..Options::default()
        };
        let wanted = "?labelSelector=a%20in%20%28b%2Cc%29&watch=true&pretty=true";
        assert_eq!(query(&options), wanted);
        assert_eq!(query(&Options::default()), "");
    }
}
