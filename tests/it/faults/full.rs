//! A running server whose disk is full, then has space again; one whose disk can only be read.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sampan_client::{Error, EventKind};
use serde_json::{Value, json};

use crate::support::process::ControlPlane;
use crate::support::rest::{CONFIG_MAPS, LEASES, NAMESPACES, Rest, revision};
use crate::support::run;

const NAMESPACE: &str = "full";

fn map(name: &str, size: usize) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": "x".repeat(size)}})
}

fn lease(at: Option<u64>, second: u64) -> Value {
    let mut lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "node"},
        "spec": {"holderIdentity": "a", "renewTime": format!("2030-01-01T00:00:{second:02}.000000Z")}});
    if let Some(at) = at {
        lease["metadata"]["resourceVersion"] = json!(at.to_string());
    }
    lease
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

async fn begin(plane: &ControlPlane) -> Rest {
    let rest = Rest::admin(plane, NAMESPACE);
    let namespace =
        json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}});
    rest.create(NAMESPACES, namespace).await.unwrap();
    for number in 0..150 {
        let object = map(&format!("small-{number}"), 500);
        rest.create(CONFIG_MAPS, object).await.unwrap();
    }
    rest.create(LEASES, lease(None, 0)).await.unwrap();
    rest
}

/// Takes every byte that is left.
fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("filler");
    fill_into(&path);
    path
}

fn fill_into(path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    let mut written = 0_u64;
    for size in [1 << 20, 4096] {
        let piece = vec![0x5a; size];
        while std::os::unix::fs::FileExt::write_all_at(&file, &piece, written).is_ok() {
            written += size as u64;
        }
    }
}

/// A refusal that says what is wrong and what to do.
fn is_full(error: &Error) -> bool {
    let status = error.status();
    status.is_some_and(|status| {
        status.code == 500 && status.message.contains("is full: delete objects or files")
    })
}

#[derive(Default)]
struct Counts {
    created: u32,
    refused: u32,
    updated: u32,
    late: u32,
    renewed: u32,
    deleted: u32,
    read: u32,
}

/// Creates until it is refused, then does everything that must go on.
async fn go_on(rest: &Rest, round: u32, counts: &mut Counts) {
    for number in 0..2_000 {
        match rest
            .create(CONFIG_MAPS, map(&format!("big-{round}-{number}"), 200_000))
            .await
        {
            Ok(_) => counts.created += 1,
            Err(error) if is_full(&error) => {
                counts.refused += 1;
                if counts.refused.is_multiple_of(5) {
                    break;
                }
            }
            Err(error) => panic!("creation {number} of round {round}: {error}"),
        }
    }
    assert!(counts.refused >= 5, "nothing was refused");
    for number in 0..20 {
        let name = format!("small-{}", 149 - number);
        let mut object = rest.get(CONFIG_MAPS, &name).await.unwrap();
        counts.read += 1;
        object["metadata"]["labels"] = json!({"round": round.to_string()});
        match rest.update(CONFIG_MAPS, &name, object).await {
            Ok(_) => counts.updated += 1,
            // Somebody else has taken even what was given free for updates: now only deletions fit.
            Err(error) if round > 0 && is_full(&error) => counts.late += 1,
            Err(error) => panic!("an update on the full disk: {error}"),
        }
        let current = rest.get(LEASES, "node").await.unwrap();
        let renewed = lease(Some(revision(&current)), u64::from(counts.renewed % 60));
        rest.update(LEASES, "node", renewed).await.unwrap();
        counts.renewed += 1;
    }
    for number in 0..40 {
        let name = format!("small-{}", round * 40 + number);
        rest.delete(CONFIG_MAPS, &name).await.unwrap();
        counts.deleted += 1;
    }
}

#[test]
fn a_full_disk_refuses_creations_only_and_recovers() {
    let mut plane = ControlPlane::spawn_on(&[], |data| {
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
            .arg(data));
        Vec::new()
    });
    plane.wait_ready();
    runtime().block_on(async {
        let rest = begin(&plane).await;
        let start = rest.list(CONFIG_MAPS).await.unwrap();
        let after = start.resource_version.parse().unwrap();
        let watch = rest.watch(CONFIG_MAPS, after, None).await.unwrap();
        let mut counts = Counts::default();
        let filler = fill(&plane.sampan.data_dir);
        go_on(&rest, 0, &mut counts).await;
        let deletions = watch.filter(|event| {
            let deleted = event.as_ref().is_ok_and(|event| event.kind == EventKind::Deleted);
            std::future::ready(deleted)
        });
        let wanted = counts.deleted as usize;
        let seen = tokio::time::timeout(Duration::from_secs(10), deletions.take(wanted).count());
        let watched = seen.await.expect("deletions are watched");
        plane.sampan.kill();
        plane.start_again();
        rest.ready(Duration::from_secs(30)).await.unwrap();
        let left = rest.list(CONFIG_MAPS).await.unwrap().items.len();
        fill_again(&filler);
        go_on(&rest, 1, &mut counts).await;
        std::fs::remove_file(&filler).unwrap();
        let freed = Instant::now();
        rest.create(CONFIG_MAPS, map("after", 1000)).await.unwrap();
        let recovered = freed.elapsed();
        plane.sampan.kill();
        plane.start_again();
        rest.ready(Duration::from_secs(30)).await.unwrap();
        let kept = rest.list(CONFIG_MAPS).await.unwrap().items.len();
        let lost = left_of(&start, &counts, 1).abs_diff(kept);
        println!(
            "full disk: {} created until {} were refused with 500, while full {} updated ({} refused at the very end), {} Leases renewed, {} deleted \
             ({watched} of 40 watched), {} read, killed and started on the full disk with {left} objects, \
             space again: first creation after {} ms, lost {lost}",
            counts.created, counts.refused, counts.updated, counts.late, counts.renewed, counts.deleted, counts.read,
            recovered.as_millis()
        );
        assert_eq!(lost, 0);
    });
}

fn left_of(start: &sampan_client::List, counts: &Counts, more: usize) -> usize {
    start.items.len() + counts.created as usize + more - counts.deleted as usize
}

/// What the restart has given back is taken, too.
fn fill_again(filler: &Path) {
    fill_into(&filler.with_file_name("filler2"));
}

#[test]
fn a_disk_that_can_only_be_read_is_said_and_served_from() {
    read_only_at_start();
    read_only_at_run_time();
}

fn read_only_at_start() {
    let mut plane = ControlPlane::spawn_on(&[], |data| {
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "ro,size=16m", "tmpfs"])
            .arg(data));
        Vec::new()
    });
    assert!(
        !plane.sampan.wait(),
        "a start on a read-only disk succeeded"
    );
    let log = plane.sampan.tail();
    let told = log.contains("Read-only file system") && log.contains("--data-dir");
    assert!(told, "the error does not say what to do:\n{log}");
}

/// A file system in a file, which goes read-only at the first error it meets.
fn read_only_at_run_time() {
    let plane = ControlPlane::spawn_on(&[], |data| {
        let image = data.with_file_name("image");
        run(Command::new("truncate").args(["-s", "96M"]).arg(&image));
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop,errors=remount-ro"])
            .arg(&image)
            .arg(data));
        Vec::new()
    });
    plane.wait_ready();
    runtime().block_on(async {
        let rest = begin(&plane).await;
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let data = plane.sampan.data_dir.display().to_string();
        let line = mounts.lines().find(|line| line.contains(&data)).unwrap();
        let device = line.split(['/', ' ']).nth(2).unwrap();
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").unwrap();
        let mut refused = 0;
        for number in 0..20 {
            let result = rest.create(CONFIG_MAPS, map(&format!("late-{number}"), 100)).await;
            let status = result.expect_err("written to a read-only disk");
            let status = status.status().expect("a Status").clone();
            assert_eq!(status.code, 500, "{status:?}");
            refused += 1;
        }
        let list = rest.list(CONFIG_MAPS).await.unwrap();
        let object = rest.get(CONFIG_MAPS, "small-7").await.unwrap();
        assert_eq!(object["data"]["k"], "x".repeat(500));
        let after = list.resource_version.parse().unwrap();
        let watched = rest.watch(CONFIG_MAPS, after, Some(1)).await.unwrap().count().await;
        println!(
            "read-only disk: refused at start with advice; at run time {refused} writes refused with 500, \
             {} objects read, watches {}",
            list.items.len(),
            watched + 1
        );
        assert!(list.items.len() >= 150);
    });
}
