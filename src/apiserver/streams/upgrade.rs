//! Sending a request on, and joining the two ends if it becomes a byte stream.

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sampan_api::{Reason, Status};
use sampan_net::{Body, HttpClient, client, empty, relay, websocket};
use tokio::io::{AsyncRead, AsyncWrite};

/// Headers that belong to one connection, and those that are for us alone.
const DROPPED: &[&str] = &[
    "authorization",
    "connection",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

pub fn wants_upgrade(headers: &HeaderMap) -> bool {
    let asks = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    asks && headers.contains_key(UPGRADE)
}

/// The headers that are passed on.
pub fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let own = DROPPED.contains(&name.as_str())
            || name.as_str().starts_with("impersonate-")
            || name.as_str().starts_with("x-remote-");
        if !own {
            out.append(name, value.clone());
        }
    }
    out
}

pub fn url(text: &str) -> Result<Uri, Status> {
    text.parse()
        .map_err(|error| Status::internal(format!("cannot make a URL of {text:?}: {error}")))
}

fn unreachable(error: &client::ClientError) -> Status {
    tracing::info!(%error, "a backend cannot be reached");
    Status::new(
        Reason::ServiceUnavailable,
        format!("error trying to reach service: {error}"),
    )
}

fn dialing(error: &client::ClientError) -> Status {
    tracing::info!(%error, "a kubelet cannot be reached");
    Status::internal(format!("error dialing backend: {error}"))
}

/// Sends an ordinary request and streams the answer back.
pub async fn forward(
    client: &HttpClient,
    request: Request<Incoming>,
    target: Uri,
    extra: HeaderMap,
) -> Result<Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let mut out = Request::new(body.map_err(Into::into).boxed_unsync());
    *out.method_mut() = parts.method;
    *out.uri_mut() = target;
    *out.headers_mut() = forwarded_headers(&parts.headers);
    out.headers_mut().extend(extra);
    let answer = client
        .send(out)
        .await
        .map_err(|error| unreachable(&error))?;
    Ok(streamed(answer))
}

/// The backend's answer as ours.
fn streamed(answer: Response<Incoming>) -> Response<Body> {
    let (parts, body) = answer.into_parts();
    let mut response = Response::new(body.map_err(Into::into).boxed_unsync());
    *response.status_mut() = parts.status;
    *response.headers_mut() = forwarded_headers(&parts.headers);
    response
}

/// Relays a request that wants to become a byte stream.
pub async fn relay_upgrade(
    client: &HttpClient,
    mut request: Request<Incoming>,
    target: Uri,
    extra: HeaderMap,
) -> Result<Response<Body>, Status> {
    let ours = hyper::upgrade::on(&mut request);
    let mut headers = forwarded_headers(request.headers());
    for name in [CONNECTION, UPGRADE] {
        for value in request.headers().get_all(&name) {
            headers.append(&name, value.clone());
        }
    }
    headers.remove(CONTENT_LENGTH);
    headers.extend(extra);
    let mut out = Request::new(empty());
    *out.method_mut() = request.method().clone();
    *out.uri_mut() = target;
    *out.headers_mut() = headers;
    let mut answer = client
        .send_upgradable(out)
        .await
        .map_err(|error| dialing(&error))?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(streamed(answer));
    }
    let theirs = hyper::upgrade::on(&mut answer);
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answer.headers().clone();
    join(ours, theirs, |stream| stream);
    Ok(response)
}

/// Port-forwarding inside a WebSocket: accepts it here and speaks bare SPDY to the kubelet.
pub async fn tunnel_spdy(
    client: &HttpClient,
    mut request: Request<Incoming>,
    target: Uri,
    subprotocol: &str,
    stream_protocol: &'static str,
) -> Result<Response<Body>, Status> {
    let accepted = websocket::accept(request.headers(), Some(subprotocol))
        .ok_or_else(|| Status::bad_request("the WebSocket handshake has no key"))?;
    let ours = hyper::upgrade::on(&mut request);
    let mut out = Request::new(empty());
    *out.method_mut() = Method::POST;
    *out.uri_mut() = target;
    let headers = out.headers_mut();
    headers.insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, http::HeaderValue::from_static("SPDY/3.1"));
    headers.insert(
        HeaderName::from_static("x-stream-protocol-version"),
        http::HeaderValue::from_static(stream_protocol),
    );
    let mut answer = client
        .send_upgradable(out)
        .await
        .map_err(|error| dialing(&error))?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(streamed(answer));
    }
    let theirs = hyper::upgrade::on(&mut answer);
    join(ours, theirs, websocket::ByteTunnel::new);
    Ok(accepted)
}

/// Copies between the two ends once both are there.
fn join<T>(
    ours: OnUpgrade,
    theirs: OnUpgrade,
    wrap: impl FnOnce(TokioIo<hyper::upgrade::Upgraded>) -> T + Send + 'static,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(sampan_util::task::contain("relay", async move {
        match futures_util::future::try_join(ours, theirs).await {
            Ok((ours, theirs)) => {
                relay::relay(wrap(TokioIo::new(ours)), TokioIo::new(theirs)).await;
            }
            Err(error) => tracing::debug!(%error, "an upgrade did not come about"),
        }
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::HeaderValue;

    use super::*;

    #[test]
    fn credentials_stay_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("impersonate-user", "y"),
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        assert!(wants_upgrade(&headers));
        let out = forwarded_headers(&headers);
        assert_eq!(out.len(), 1);
        assert!(out.contains_key("x-stream-protocol-version"));
    }
}
