//! Exec, attach and port-forward: the runtime serves the stream, we hand its bytes on.
//!
//! SPDY and the oldest protocols of WebSocket look alike from here: a request to upgrade goes to the address that the
//! runtime named, and once it has agreed its bytes are handed on. The newer ones are translated: [`super::channels`].

use super::query::Query;
use super::route::Target;
use super::{Answer, Context, Failure, channels, text};
use crate::lookup::ContainerRef;
use http::header::{self, HeaderMap, HeaderName};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use sampan_cri::runtime::v1::{AttachRequest, ExecRequest, ExecSyncRequest, PortForwardRequest};
use sampan_net::{Body, ClientConfig, ClientTls, HttpClient, TcpDialer, Trust, empty, relay};
use std::sync::{Arc, OnceLock};

/// The client for the runtime's streaming server on loopback.
#[derive(Default)]
pub(crate) struct Backend(OnceLock<HttpClient>);

impl Backend {
    pub fn new() -> Self {
        Self::default()
    }

    fn client(&self) -> Result<HttpClient, Failure> {
        if let Some(client) = self.0.get() {
            return Ok(client.clone());
        }
        let config = ClientConfig {
            tls: ClientTls {
                trust: Trust::Anything,
                identity: None,
            },
            dialer: Arc::new(TcpDialer),
            http2: false,
        };
        let client = HttpClient::new(&config)
            .map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        Ok(self.0.get_or_init(|| client).clone())
    }

    /// Sends a request that asks for an upgrade.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        let sent = self.client()?.send_upgradable(request).await;
        sent.map_err(|error| {
            let problem = format!("error dialing backend: {error}");
            Failure::new(StatusCode::BAD_GATEWAY, problem)
        })
    }
}

/// Which of the three streams, and whether a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

impl Streams {
    fn parse(query: &Query) -> Result<Self, Failure> {
        let tty = query.is_set("tty");
        let streams = Self {
            stdin: query.is_set("input"),
            stdout: query.is_set("output"),
            // A terminal has one output only.
            stderr: query.is_set("error") && !tty,
            tty,
        };
        if streams.stdin || streams.stdout || streams.stderr {
            Ok(streams)
        } else {
            Err(Failure::new(
                StatusCode::BAD_REQUEST,
                "you must specify at least 1 of stdin, stdout, stderr",
            ))
        }
    }

    /// As the container was made: whether it has a terminal cannot be changed by who attaches to it.
    fn of_container(self, has_terminal: bool) -> Self {
        Self {
            tty: has_terminal,
            stderr: self.stderr && !has_terminal,
            // The one output of a terminal is where a client that wants errors only finds them.
            stdout: self.stdout || (self.stderr && has_terminal),
            ..self
        }
    }
}

impl Context {
    pub(super) async fn exec(
        &self,
        request: Request<Incoming>,
        target: &Target,
        query: &Query,
    ) -> Answer {
        let streams = Streams::parse(query)?;
        let exec = ExecRequest {
            container_id: self.container(target)?.container_id,
            cmd: query.all("command"),
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let url = self.state.runtime.exec(exec).await?.url;
        self.session(request, &url, streams).await
    }

    pub(super) async fn attach(
        &self,
        request: Request<Incoming>,
        target: &Target,
        query: &Query,
    ) -> Answer {
        let container = self.container(target)?;
        let streams = Streams::parse(query)?.of_container(container.tty);
        let attach = AttachRequest {
            container_id: container.container_id,
            stdin: streams.stdin,
            tty: streams.tty,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let url = self.state.runtime.attach(attach).await?.url;
        self.session(request, &url, streams).await
    }

    pub(super) async fn port_forward(
        &self,
        request: Request<Incoming>,
        target: &Target,
        query: &Query,
    ) -> Answer {
        let lookup = &self.state.lookup;
        let sandbox = lookup.sandbox(&target.namespace, &target.pod, target.uid.as_deref())?;
        let forward = PortForwardRequest {
            pod_sandbox_id: sandbox.sandbox_id,
            port: parse_ports(query)?,
        };
        let url = self.state.runtime.port_forward(forward).await?.url;
        self.relay(request, &url).await
    }

    /// A command without streams; its output is the answer.
    pub(super) async fn run(&self, target: &Target, query: &Query) -> Answer {
        let command = query.first("cmd").unwrap_or_default();
        let exec = ExecSyncRequest {
            container_id: self.container(target)?.container_id,
            cmd: command.split(' ').map(str::to_owned).collect(),
            timeout: 0,
        };
        let reply = self.state.runtime.exec_sync(exec).await?;
        let mut output = String::from_utf8_lossy(&reply.stdout).into_owned();
        output.push_str(&String::from_utf8_lossy(&reply.stderr));
        match reply.exit_code {
            0 => Ok(text(StatusCode::OK, output)),
            code => Err(Failure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("command '{command}' exited with {code}: {output}"),
            )),
        }
    }

    fn container(&self, target: &Target) -> Result<ContainerRef, Failure> {
        let found = self.state.lookup.container(
            &target.namespace,
            &target.pod,
            target.uid.as_deref(),
            &target.container,
        );
        Ok(found?)
    }

    /// Exec and attach, by whichever protocol the client asks for.
    async fn session(&self, request: Request<Incoming>, url: &str, streams: Streams) -> Answer {
        if let Some(protocol) = channels::wanted(request.headers()) {
            let address = parse_address(url)?;
            return channels::serve(&self.backend, request, address, streams, protocol).await;
        }
        self.relay(request, url).await
    }

    /// Asks the runtime's server for the upgrade that the client asked us for, and joins the two.
    async fn relay(&self, mut request: Request<Incoming>, url: &str) -> Answer {
        if !request.headers().contains_key(header::UPGRADE) {
            return Err(Failure::new(
                StatusCode::BAD_REQUEST,
                "Upgrade request required",
            ));
        }
        let address = parse_address(url)?;
        let mut onward = Request::new(empty());
        *onward.method_mut() = request.method().clone();
        *onward.uri_mut() = address;
        *onward.headers_mut() = forwarded(request.headers());
        let mut answer = self.backend.send(onward).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()));
        }
        let is_spdy = !sampan_net::websocket::is_websocket(request.headers());
        let mut switch = Response::new(empty());
        *switch.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *switch.headers_mut() = answer.headers().clone();
        tokio::spawn(sampan_util::task::contain("relay", async move {
            let client = hyper::upgrade::on(&mut request);
            let runtime = hyper::upgrade::on(&mut answer);
            match futures_util::future::try_join(client, runtime).await {
                Ok((client, runtime)) if is_spdy => {
                    relay::relay_spdy(TokioIo::new(client), TokioIo::new(runtime)).await;
                }
                Ok((client, runtime)) => {
                    relay::relay(TokioIo::new(client), TokioIo::new(runtime)).await;
                }
                Err(error) => tracing::debug!(%error, "a stream was not upgraded"),
            }
        }));
        Ok(switch)
    }
}

fn parse_address(url: &str) -> Result<Uri, Failure> {
    url.parse().map_err(|_| {
        let problem = format!("the runtime named {url:?} as streaming address");
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, problem)
    })
}

/// Only WebSocket clients name the ports here.
fn parse_ports(query: &Query) -> Result<Vec<i32>, Failure> {
    let texts = query.all("port");
    let ports = texts.iter().flat_map(|text| text.split(','));
    ports
        .map(|text| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(i32::from(port)),
            _ => Err(Failure::new(
                StatusCode::BAD_REQUEST,
                format!("invalid port {text:?}"),
            )),
        })
        .collect()
}

/// What concerned our connection only is left out; credentials are not the runtime's business.
const NOT_FORWARDED: [HeaderName; 5] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::COOKIE,
];

fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in NOT_FORWARDED {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_terminal_has_no_stderr_and_something_must_be_streamed() {
        let all = Streams::parse(&Query::parse("input=1&output=1&error=1&tty=1")).unwrap();
        assert!(all.stdin && all.stdout && !all.stderr && all.tty);
        assert!(Streams::parse(&Query::parse("output=true")).is_err());
    }

    #[test]
    fn who_attaches_gets_the_containers_terminal() {
        let asked = |query| Streams::parse(&Query::parse(query)).unwrap();
        let got = asked("input=1&output=1&error=1").of_container(true);
        assert!(got.stdin && got.stdout && !got.stderr && got.tty);
        let got = asked("error=1").of_container(true);
        assert!(got.stdout && !got.stderr && !got.stdin);
        let got = asked("output=1&tty=1").of_container(false);
        assert!(got.stdout && !got.tty && !got.stderr);
    }

    #[test]
    fn ports_are_checked() {
        assert_eq!(
            parse_ports(&Query::parse("port=80,443&port=1")).unwrap(),
            [80, 443, 1]
        );
        assert!(parse_ports(&Query::parse("port=0")).is_err());
        assert_eq!(parse_ports(&Query::parse("")).unwrap(), Vec::<i32>::new());
    }
}
