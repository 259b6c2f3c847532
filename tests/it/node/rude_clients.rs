//! Clients of exec and attach that go away when they should not.

use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use super::scene::{FOREVER, Scene, main_container};
use crate::clients::client_of;
use crate::support::load;
use crate::support::process::Sampan;

const HASTY: usize = 30;
const STUCK: usize = 10;
/// Longer than the server takes to ask a client a few times.
const PATIENCE: Duration = Duration::from_secs(60);

/// What `work` does with the Pods of the scenario, inside the node's network namespace.
fn with_pods(scene: &Scene<'_>, work: impl AsyncFn(&Api<Pod>) + Sync) {
    let namespace = scene.node.itself.path();
    let (server, pods_of) = (&scene.node.server, scene.namespace());
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            load::enter(Path::new(&namespace));
            let local = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            local.block_on(async {
                let client = client_of(server).await;
                work(&Api::namespaced(client, pods_of)).await;
            });
        });
        worker.join().unwrap();
    });
}

/// Who attaches to a terminal and hangs up at once does not stop its container.
pub(super) fn hasty(scene: &Scene<'_>) {
    let script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done";
    scene.pod("talk", &main_container(script, ", stdin: true, tty: true"));
    scene.ready("pod/talk");
    with_pods(scene, async |pods| {
        let terminal = AttachParams::default().stdin(true).stderr(false).tty(true);
        for _ in 0..HASTY {
            let process = pods.attach("talk", &terminal).await.unwrap();
            process.abort();
        }
    });
    let last = || scene.kubectl("logs talk --tail=1");
    // What was written until now may be from before.
    for _ in 0..3 {
        let before = last();
        scene.until("the log grows", || {
            let now = last();
            if now == before { Err(now) } else { Ok(()) }
        });
    }
    println!("streams: the log grows after {HASTY} attaches that were closed at once");
}

fn open_files(server: &Sampan) -> usize {
    let folder = format!("/proc/{}/fd", server.pid());
    std::fs::read_dir(folder).unwrap().count()
}

/// A command that never reads, and a client that has written all that fits and is gone: nothing stays open.
pub(super) fn stuck(scene: &Scene<'_>) {
    scene.pod("deaf", &main_container(FOREVER, ""));
    scene.ready("pod/deaf");
    let server = &scene.node.server;
    let before = open_files(server);
    with_pods(scene, async |pods| {
        let input = AttachParams::default().stdin(true).stderr(false);
        let mut sessions = Vec::new();
        for _ in 0..STUCK {
            let mut process = pods.exec("deaf", ["sleep", "600"], &input).await.unwrap();
            let mut stdin = process.stdin().unwrap();
            let fill = async { while stdin.write_all(&[b'x'; 16_384]).await.is_ok() {} };
            assert!(timeout(Duration::from_secs(1), fill).await.is_err());
            sessions.push(process);
        }
        let open = open_files(server);
        assert!(open >= before + 2 * STUCK, "{open} files, {before} before");
        for process in sessions {
            process.abort();
        }
    });
    let most = open_files(server);
    let since = Instant::now();
    let mut after = most;
    while after > before + 4 && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(500));
        after = open_files(server);
    }
    println!(
        "streams: {before} open files before {STUCK} clients with stuck input, {most} when they went, {after} {} s later",
        since.elapsed().as_secs()
    );
    scene.truth("no file stays open", after <= before + 4);
}
