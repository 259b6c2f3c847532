//! Small HTTP servers of the test, in a network namespace of its own.

use std::convert::Infallible;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;

use super::netns::Namespace;

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Ends with its value.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Answers HTTP/1.1 and HTTP/2 on `address` of the namespace.
pub fn serve(
    namespace: &Namespace,
    address: &str,
    answer: impl Fn(Request<Incoming>) -> Response<Body> + Send + Sync + 'static,
) -> Server {
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (path, address) = (namespace.path(), address.parse::<SocketAddr>().unwrap());
    let answer = Arc::new(answer);
    let thread = std::thread::spawn(move || {
        // Only this thread moves.
        let file = File::open(path).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind(address).await.unwrap();
            ready.send(()).unwrap();
            tokio::select! {
                () = accept(listener, answer) => {}
                _ = stopped => {}
            }
        });
    });
    is_ready.recv().unwrap();
    Server {
        stop: Some(stop),
        thread: Some(thread),
    }
}

async fn accept(
    listener: tokio::net::TcpListener,
    answer: Arc<impl Fn(Request<Incoming>) -> Response<Body> + Send + Sync + 'static>,
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let answer = Arc::clone(&answer);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let reply = answer(request);
                async move { Ok::<_, Infallible>(reply) }
            });
            // What a client does to its connection is not the test's business.
            let _closed = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

pub fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// The answer of the standard gRPC health service: 1 is SERVING, 2 is NOT_SERVING.
pub fn grpc_health(status: u8) -> Response<Body> {
    let message = Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]);
    let trailers = async {
        let mut map = HeaderMap::new();
        map.insert("grpc-status", HeaderValue::from_static("0"));
        Some(Ok(map))
    };
    Response::builder()
        .header("content-type", "application/grpc")
        .body(Full::new(message).with_trailers(trailers).boxed_unsync())
        .unwrap()
}
