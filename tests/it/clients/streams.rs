//! exec, logs and port-forward by the `kube` crate, which speaks WebSocket where kubectl may fall back to SPDY.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, LogParams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client_of;
use crate::support::cluster::Cluster;

const PAYLOAD: usize = 200_000;

/// Called by the Helm test, which has a cluster with Pods.
pub fn streams_work(cluster: &Cluster, pod: &str) -> String {
    let namespace = cluster.nodes[0].path();
    // The client's sockets must be made inside the node's namespace: a thread of its own moves there.
    let pod = pod.to_owned();
    let sampan = &cluster.server;
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                crate::support::load::enter(std::path::Path::new(&namespace));
                let local = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                local.block_on(async {
                    let pods: Api<Pod> = Api::default_namespaced(client_of(sampan).await);
                    executes(&pods, &pod).await;
                    echoes(&pods, &pod).await;
                    logs(&pods, &pod).await;
                    forwards(&pods, &pod).await;
                });
            })
            .join()
            .unwrap();
    });
    format!("exec with exit codes, {PAYLOAD} bytes through exec and back, logs, port-forward")
}

async fn executes(pods: &Api<Pod>, pod: &str) {
    let line = ["sh", "-c", "echo out; echo err >&2; exit 3"];
    let mut process = pods
        .exec(pod, line, &AttachParams::default())
        .await
        .unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    let (mut stdout, mut stderr) = (process.stdout().unwrap(), process.stderr().unwrap());
    let both = tokio::join!(
        stdout.read_to_string(&mut out),
        stderr.read_to_string(&mut err)
    );
    assert!(both.0.is_ok() && both.1.is_ok());
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
    let status = process.take_status().unwrap().await.unwrap();
    let causes = status
        .details
        .and_then(|details| details.causes)
        .unwrap_or_default();
    assert!(
        causes
            .iter()
            .any(|cause| cause.message.as_deref() == Some("3")),
        "exit code 3 in {causes:?}"
    );
}

async fn echoes(pods: &Api<Pod>, pod: &str) {
    let attach = AttachParams::default().stdin(true).stderr(false);
    let line = format!("head -c {PAYLOAD}");
    let mut process = pods.exec(pod, ["sh", "-c", &line], &attach).await.unwrap();
    let (mut stdin, mut stdout) = (process.stdin().unwrap(), process.stdout().unwrap());
    let sent = vec![b'x'; PAYLOAD];
    let mut received = Vec::new();
    let both = tokio::join!(stdin.write_all(&sent), stdout.read_to_end(&mut received));
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    assert_eq!(received.len(), PAYLOAD);
}

async fn logs(pods: &Api<Pod>, pod: &str) {
    let text = pods.logs(pod, &LogParams::default()).await.unwrap();
    assert_eq!(text.trim(), "started");
}

async fn forwards(pods: &Api<Pod>, pod: &str) {
    let mut forward = pods.portforward(pod, &[8080]).await.unwrap();
    let mut stream = forward.take_stream(8080).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("hello\n"), "{answer}");
}
