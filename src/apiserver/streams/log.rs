//! `pods/log`: a container's log, streamed from the kubelet.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use sampan_api::field::{ErrorList, Path};
use sampan_api::status::{Cause, Details};
use sampan_api::{Reason, Status, meta};
use sampan_net::{Body, empty};
use serde_json::Value;

use super::location::{self, encode};
use super::{Relay, upgrade};
use crate::http::Context;
use crate::http::query::Query;

/// How much of a kubelet's complaint is passed on.
const MAX_COMPLAINT: usize = 4096;

pub(super) async fn answer(relay: &Relay, context: &Context) -> Result<Response<Body>, Status> {
    let info = &context.info;
    let options = Options::read(&context.query, &info.name)?;
    let pod = relay.object("pods", &info.namespace, &info.name)?;
    let pod: Value = serde_json::from_slice(&pod).map_err(Status::internal)?;
    let wanted = context.query.first("container").unwrap_or_default();
    let container = location::container(&pod, wanted)?;
    let node = meta::text(&pod, &["spec", "nodeName"]);
    if node.is_empty() {
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    }
    let url = format!(
        "{}/containerLogs/{}/{}/{}?{}",
        relay.kubelet_url(node)?,
        encode(&info.namespace),
        encode(&info.name),
        encode(&container),
        options.query
    );
    let mut request = Request::new(empty());
    *request.uri_mut() = upgrade::url(&url)?;
    let kubelets = relay.kubelets();
    let client = if options.unchecked {
        &kubelets.unchecked
    } else {
        &kubelets.checked
    };
    let answer = client.send(request).await.map_err(|error| {
        tracing::info!(node, %error, "cannot fetch a log");
        Status::internal(format!("Get {url:?}: {error}"))
    })?;
    if !answer.status().is_success() {
        return Err(complaint(answer, &info.name).await);
    }
    let (_, body) = answer.into_parts();
    let mut response = Response::new(body.map_err(Into::into).boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// What the kubelet says is wrong, as a status.
async fn complaint(answer: Response<Incoming>, pod: &str) -> Status {
    let code = answer.status();
    let text = match Limited::new(answer.into_body(), MAX_COMPLAINT)
        .collect()
        .await
    {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes())
            .trim_end()
            .to_owned(),
        Err(_) => String::new(),
    };
    match code {
        StatusCode::BAD_REQUEST => Status::bad_request(text),
        StatusCode::INTERNAL_SERVER_ERROR => Status::internal(text),
        StatusCode::NOT_FOUND => unspecific(
            Reason::NotFound,
            "the server could not find the requested resource",
            pod,
            text,
        ),
        _ => unspecific(
            Reason::InternalError,
            &format!("an error on the server ({text:?}) has prevented the request from succeeding"),
            pod,
            text.clone(),
        ),
    }
}

fn unspecific(reason: Reason, message: &str, pod: &str, text: String) -> Status {
    let message = format!("{message} ( pods/log {pod})");
    Status::new(reason, message).with_details(Details {
        name: pod.to_owned(),
        kind: "pods/log".to_owned(),
        causes: vec![Cause {
            reason: "UnexpectedServerResponse".to_owned(),
            message: text,
            ..Cause::default()
        }],
        ..Details::default()
    })
}

struct Options {
    /// For the kubelet.
    query: String,
    unchecked: bool,
}

impl Options {
    fn read(query: &Query, pod: &str) -> Result<Self, Status> {
        let tail_lines = query.integer("tailLines")?;
        let limit_bytes = query.integer("limitBytes")?;
        let since_seconds = query.integer("sinceSeconds")?;
        let since_time = query.text("sinceTime");
        let stream = query.text("stream").unwrap_or_else(|| "All".to_owned());
        let mut errors = ErrorList::new();
        if let Some(lines) = tail_lines.filter(|lines| *lines < 0) {
            errors.invalid(
                &Path::new("tailLines"),
                lines,
                "must be greater than or equal to 0",
            );
        }
        if let Some(bytes) = limit_bytes.filter(|bytes| *bytes < 1) {
            errors.invalid(&Path::new("limitBytes"), bytes, "must be greater than 0");
        }
        match (since_seconds, &since_time) {
            (Some(_), Some(_)) => errors.forbidden(
                &Path::new("[]"),
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            (Some(seconds), None) if seconds < 1 => {
                errors.invalid(
                    &Path::new("sinceSeconds"),
                    seconds,
                    "must be greater than 0",
                );
            }
            _ => {}
        }
        if !matches!(stream.as_str(), "All" | "Stdout" | "Stderr") {
            errors.not_supported(
                &Path::new("stream"),
                stream.as_str(),
                &["All", "Stderr", "Stdout"],
            );
        }
        if stream != "All" && tail_lines.is_some() {
            errors.forbidden(
                &Path::new("[]"),
                "`tailLines` and specific `stream` are mutually exclusive for now",
            );
        }
        errors.into_result("", "PodLogOptions", pod)?;
        let mut pairs: Vec<(&str, String)> = Vec::new();
        for flag in ["follow", "previous", "timestamps"] {
            if query.flag(flag) {
                pairs.push((flag, "true".to_owned()));
            }
        }
        for (name, number) in [
            ("sinceSeconds", since_seconds),
            ("tailLines", tail_lines),
            ("limitBytes", limit_bytes),
        ] {
            if let Some(number) = number {
                pairs.push((name, number.to_string()));
            }
        }
        if let Some(time) = since_time {
            pairs.push(("sinceTime", time));
        }
        pairs.push(("stream", stream));
        let pairs: Vec<String> = pairs
            .iter()
            .map(|(key, value)| format!("{key}={}", encode(value)))
            .collect();
        Ok(Self {
            query: pairs.join("&"),
            unchecked: query.flag("insecureSkipTLSVerifyBackend"),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_are_checked_and_passed_on() {
        let read = |text: &str| Options::read(&Query::parse(text), "p");
        assert_eq!(
            read("follow=true&tailLines=5&previous=false")
                .unwrap()
                .query,
            "follow=true&tailLines=5&stream=All"
        );
        assert_eq!(
            read("tailLines=-1").err().unwrap().message,
            "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"
        );
        assert_eq!(
            read("sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z")
                .err()
                .unwrap()
                .message,
            "PodLogOptions \"p\" is invalid: []: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
        );
        assert_eq!(read("limitBytes=x").err().unwrap().code, 400);
    }
}
