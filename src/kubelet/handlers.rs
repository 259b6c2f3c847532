//! What probes and life-cycle hooks do to a container: a request, a connection, a command.
//!
//! Failures are worded as upstream's HTTP client and dialer word them, since people search for
//! these texts.

use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sampan_cri::Runtime;
use sampan_cri::runtime::v1::ExecSyncRequest;
use sampan_net::client::ClientError;
use sampan_net::{ClientConfig, ClientTls, HttpClient, TcpDialer, Trust};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

const MAX_BODY: usize = 10 << 10;
const MAX_OUTPUT: usize = 10 << 10;
const MAX_REDIRECTS: usize = 10;
const PROBE_AGENT: &str = "kube-probe/1.36";
const HOOK_AGENT: &str = "kube-lifecycle/1.36";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// It worked, and something about it is worth telling.
    Warning(String),
    Failure(String),
    /// Nothing can be said about the container.
    Error(String),
}

#[derive(Clone)]
pub struct Handlers {
    http: HttpClient,
    runtime: Runtime,
}

/// An HTTP request as a pod spec describes it, with all names resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCall {
    pub scheme: &'static str,
    pub host: String,
    pub port: u16,
    pub path: String,
    pub headers: Vec<(String, String)>,
}

impl HttpCall {
    pub fn new(
        action: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
    ) -> Result<Self, String> {
        let scheme = match action.scheme.as_deref() {
            Some(scheme) if scheme.eq_ignore_ascii_case("https") => "https",
            _ => "http",
        };
        let host = action.host.as_deref().filter(|h| !h.is_empty());
        let path = action.path.as_deref().unwrap_or("/");
        let headers = action.http_headers.iter().flatten();
        Ok(Self {
            scheme,
            host: host.unwrap_or(pod_ip).to_owned(),
            port: port_number(&action.port, container)?,
            path: if path.starts_with('/') {
                path.to_owned()
            } else {
                format!("/{path}")
            },
            headers: headers.map(|h| (h.name.clone(), h.value.clone())).collect(),
        })
    }

    fn authority(&self) -> String {
        host_port(&self.host, self.port)
    }

    fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority(), self.path)
    }
}

fn host_port(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// The number of a port given as number or by its name in the container.
pub fn port_number(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => name.parse().ok().or_else(|| {
            let mut ports = container.ports.iter().flatten();
            ports
                .find(|p| p.name.as_ref() == Some(name))
                .map(|p| p.container_port)
        }),
    };
    let text = match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    number
        .and_then(|n| u16::try_from(n).ok())
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("invalid port number: {text}"))
}

impl Handlers {
    pub fn new(runtime: Runtime) -> Result<Self, ClientError> {
        let http = HttpClient::new(&ClientConfig {
            tls: ClientTls {
                trust: Trust::Anything,
                identity: None,
            },
            dialer: Arc::new(TcpDialer),
            http2: false,
        })?;
        Ok(Self { http, runtime })
    }

    /// A probe: 200 to 399 is success.
    pub async fn probe_http(&self, call: &HttpCall, limit: Duration) -> Outcome {
        let url = call.url();
        match timeout(limit, self.follow(call, PROBE_AGENT)).await {
            Ok(Ok((status, _))) if status.is_success() => Outcome::Success,
            Ok(Ok((status, body))) if status.is_redirection() => {
                Outcome::Warning(format!("Probe terminated redirects, Response body: {body}"))
            }
            Ok(Ok((status, _))) => Outcome::Failure(format!(
                "HTTP probe failed with statuscode: {}",
                status.as_u16()
            )),
            Ok(Err(error)) => Outcome::Failure(format!("Get {url:?}: {error}")),
            Err(_) => Outcome::Failure(format!(
                "Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            )),
        }
    }

    /// A hook: any answer below 400 will do.
    pub async fn hook_http(&self, call: &HttpCall) -> Result<(), String> {
        let url = call.url();
        match self.follow(call, HOOK_AGENT).await {
            Ok((status, _)) if status.as_u16() < 400 => Ok(()),
            Ok((status, _)) => Err(format!("Get {url:?}: status {status}")),
            Err(error) => Err(format!("Get {url:?}: {error}")),
        }
    }

    /// Follows redirects on the same host; one to elsewhere is the answer.
    async fn follow(&self, call: &HttpCall, agent: &str) -> Result<(StatusCode, String), String> {
        let mut call = call.clone();
        for _ in 0..MAX_REDIRECTS {
            let (status, location, body) = self.once(&call, agent).await?;
            let next = location
                .filter(|_| status.is_redirection())
                .and_then(|location| redirected(&call, &location));
            match next {
                Some(next) => call = next,
                None => return Ok((status, body)),
            }
        }
        Err("stopped after 10 redirects".to_owned())
    }

    async fn once(
        &self,
        call: &HttpCall,
        agent: &str,
    ) -> Result<(StatusCode, Option<String>, String), String> {
        let mut builder = Request::builder().method(Method::GET).uri(call.url());
        let given = |name: &str| {
            call.headers
                .iter()
                .any(|(n, _)| n.eq_ignore_ascii_case(name))
        };
        if !given("user-agent") {
            builder = builder.header("User-Agent", agent);
        }
        if !given("accept") {
            builder = builder.header("Accept", "*/*");
        }
        builder = builder.header("Connection", "close");
        for (name, value) in &call.headers {
            if !(name.eq_ignore_ascii_case("accept") && value.is_empty()) {
                builder = builder.header(name, value);
            }
        }
        let request = builder
            .body(sampan_net::empty())
            .map_err(|e| e.to_string())?;
        let response = self
            .http
            .send_upgradable(request)
            .await
            .map_err(|e| connection_error(&e))?;
        let (parts, body) = response.into_parts();
        let location = parts
            .headers
            .get(http::header::LOCATION)
            .and_then(|l| l.to_str().ok())
            .map(str::to_owned);
        let body = match Limited::new(body, MAX_BODY).collect().await {
            Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            Err(_) => String::new(),
        };
        Ok((parts.status, location, body))
    }

    pub async fn probe_tcp(&self, host: &str, port: u16, limit: Duration) -> Outcome {
        let address = host_port(host, port);
        match timeout(limit, TcpStream::connect(&address)).await {
            Ok(Ok(_)) => Outcome::Success,
            Ok(Err(error)) => {
                Outcome::Failure(format!("dial tcp {address}: {}", dial_error(&error)))
            }
            Err(_) => Outcome::Failure(format!("dial tcp {address}: i/o timeout")),
        }
    }

    /// A command in the container; its output explains a failure.
    pub async fn probe_exec(&self, id: &str, command: &[String], limit: Duration) -> Outcome {
        let limit_secs = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX).max(1);
        match self.exec(id, command, limit_secs).await {
            Ok((0, _)) => Outcome::Success,
            Ok((_, output)) => Outcome::Failure(output),
            Err(error) if error.code() == Some(tonic::Code::DeadlineExceeded) => {
                Outcome::Failure(format!(
                    "command timed out: {:?} timed out after {limit_secs}s",
                    command.join(" ")
                ))
            }
            Err(error) => Outcome::Error(crate::text::grpc(&error)),
        }
    }

    pub async fn hook_exec(&self, id: &str, command: &[String]) -> Result<(), String> {
        match self.exec(id, command, 0).await {
            Ok((0, _)) => Ok(()),
            Ok((code, output)) => Err(format!(
                "command '{}' exited with {code}: {output}",
                command.join(" ")
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn exec(
        &self,
        id: &str,
        command: &[String],
        limit_secs: i64,
    ) -> Result<(i32, String), sampan_cri::Error> {
        let reply = self
            .runtime
            .exec_sync(ExecSyncRequest {
                container_id: id.to_owned(),
                cmd: command.to_vec(),
                timeout: limit_secs,
            })
            .await?;
        let mut output = reply.stdout.to_vec();
        output.extend_from_slice(&reply.stderr);
        output.truncate(MAX_OUTPUT);
        Ok((
            reply.exit_code,
            String::from_utf8_lossy(&output).into_owned(),
        ))
    }
}

fn redirected(call: &HttpCall, location: &str) -> Option<HttpCall> {
    let mut next = call.clone();
    if location.starts_with('/') {
        location.clone_into(&mut next.path);
        return Some(next);
    }
    let uri: Uri = location.parse().ok()?;
    if uri.host()? != call.host {
        return None;
    }
    next.scheme = match uri.scheme_str() {
        Some("https") => "https",
        _ => "http",
    };
    let default = if next.scheme == "https" { 443 } else { 80 };
    next.port = uri.port_u16().unwrap_or(default);
    next.path = uri
        .path_and_query()
        .map_or_else(|| "/".to_owned(), ToString::to_string);
    Some(next)
}

fn connection_error(error: &ClientError) -> String {
    match error {
        ClientError::Connect { host, port, source } => {
            format!(
                "dial tcp {}: {}",
                host_port(host, *port),
                dial_error(source)
            )
        }
        ClientError::Http(error) if error.is_incomplete_message() => "EOF".to_owned(),
        other => other.to_string(),
    }
}

fn dial_error(error: &io::Error) -> String {
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::HostUnreachable => "no route to host",
        io::ErrorKind::NetworkUnreachable => "network is unreachable",
        io::ErrorKind::TimedOut => return "i/o timeout".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer",
        _ => return error.to_string(),
    };
    format!("connect: {text}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn call(action: serde_json::Value) -> Result<HttpCall, String> {
        let container = json!({"name": "a", "ports": [{"name": "web", "containerPort": 8080}]});
        HttpCall::new(
            &serde_json::from_value(action).unwrap(),
            &serde_json::from_value(container).unwrap(),
            "10.0.0.1",
        )
    }

    #[test]
    fn names_of_ports_and_hosts_are_resolved() {
        let plain = call(json!({"port": "web", "path": "healthz?x=1"})).unwrap();
        assert_eq!(plain.url(), "http://10.0.0.1:8080/healthz?x=1");
        let secure = call(json!({"port": 443, "scheme": "HTTPS", "host": "::1"})).unwrap();
        assert_eq!(secure.url(), "https://[::1]:443/");
        assert_eq!(
            call(json!({"port": "none"})).unwrap_err(),
            "invalid port number: none"
        );
    }

    #[test]
    fn redirects_stay_on_the_host() {
        let from = call(json!({"port": 80})).unwrap();
        assert_eq!(redirected(&from, "/x").unwrap().path, "/x");
        assert_eq!(redirected(&from, "http://10.0.0.1:81/y").unwrap().port, 81);
        assert_eq!(redirected(&from, "http://elsewhere/"), None);
    }
}
