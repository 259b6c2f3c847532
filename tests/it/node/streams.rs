//! Logs and everything that talks to a running container.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::scene::{FOREVER, Scene, container, main_container};
use crate::support::run;

pub(super) fn logs(scene: &Scene<'_>) {
    scene.pod(
        "talk",
        &format!(
            "containers: [{}, {}]",
            container(
                "main",
                &format!(
                    "for i in 1 2 3 4 5; do echo line $i; done; sleep 3; echo late; {FOREVER}"
                ),
                ""
            ),
            container("other", &format!("echo other >&2; {FOREVER}"), "")
        ),
    );
    scene.ready("pod/talk");
    let mut follow = scene
        .command(&["logs", "-f", "talk", "-c", "main"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut got = String::new();
    let mut output = follow.stdout.take().unwrap();
    let mut buffer = [0; 256];
    while !got.contains("late") {
        let read = output.read(&mut buffer).unwrap();
        assert!(read > 0, "the stream ended after {got:?}");
        got.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    follow.kill().unwrap();
    follow.wait().unwrap();
    scene.is(
        "followed",
        &got,
        "line 1\nline 2\nline 3\nline 4\nline 5\nlate",
    );
    let logs = |options: &str| scene.kubectl(&format!("logs talk -c main {options}"));
    scene.is("tail", &logs("--tail=2"), "line 5\nlate");
    scene.is("bytes", &logs("--limit-bytes=6"), "line 1");
    scene.is("since", &logs("--since=1h --tail=1"), "late");
    let stamped = logs("--timestamps --tail=1");
    let (stamp, text) = stamped.trim().split_once(' ').unwrap();
    scene.is("text", text, "late");
    scene.truth(
        "a time of nanoseconds",
        stamp.len() >= 20 && stamp.starts_with("20") && stamp.ends_with('Z'),
    );
    scene.is(
        "since a time",
        &logs(&format!("--since-time={stamp}")),
        "late",
    );
    let all = scene.kubectl("logs talk --all-containers --prefix");
    scene.has("all", &all, "[pod/talk/other] other");
    scene.has("all", &all, "[pod/talk/main] late");
    let refused = scene.attempt("logs talk -c main --previous").unwrap_err();
    scene.has(
        "previous",
        &refused,
        "previous terminated container \"main\" in pod \"talk\" not found",
    );
}

/// The log stays bounded, and what is shown goes on over a rotation.
pub(super) fn log_rotation(scene: &Scene<'_>) {
    scene.pod(
        "much",
        &main_container(
            "i=0; while :; do i=$((i+1)); echo line $i $(head -c 600 /dev/zero | tr '\\0' x); sleep 0.02; done",
            "",
        ),
    );
    scene.ready("pod/much");
    let uid = scene.field("pod/much", "{.metadata.uid}");
    let folder = scene
        .node
        .server
        .data_dir
        .join(format!("agent/logs/{}_much_{uid}/main", scene.namespace()));
    scene.until("a log was put aside", || {
        let names: Vec<String> = std::fs::read_dir(&folder)
            .map_err(|e| format!("{}: {e}", folder.display()))?
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        if names.len() > 2 {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    });
    let sizes: Vec<u64> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().len())
        .collect();
    scene.truth(&format!("three files at most: {sizes:?}"), sizes.len() <= 3);
    let last = scene.kubectl("logs much --tail=1");
    scene.has("the newest line", &last, "line ");
    scene.event("much", "Started", "");
}

pub(super) fn attach(scene: &Scene<'_>) {
    scene.pod(
        "echo",
        &main_container(
            "while read line; do echo got $line; done; sleep 100000",
            ", stdin: true",
        ),
    );
    scene.ready("pod/echo");
    let mut child = scene
        .command(&["attach", "-i", "echo"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    input.write_all(b"one\n").unwrap();
    let mut got = String::new();
    let mut buffer = [0; 256];
    while !got.contains("got one\n") {
        let read = output.read(&mut buffer).unwrap();
        assert!(read > 0, "the stream ended after {got:?}");
        got.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    scene.has("attached", &got, "got one");
    scene.is("logged", &scene.kubectl("logs echo"), "got one");
    let once = run(&mut scene.command(&[
        "run",
        "once",
        "--image=sampan.test/node:1",
        "--restart=Never",
        "--rm",
        "-i",
        "--quiet",
        "--command",
        "--",
        "sh",
        "-c",
        "sleep 1; echo hello; exit 0",
    ]));
    scene.has("kubectl run --rm -i", &once, "hello");
}

pub(super) fn terminal(scene: &Scene<'_>) {
    scene.pod("term", &main_container(FOREVER, ""));
    scene.pod("tty", &main_container(FOREVER, ", stdin: true, tty: true"));
    scene.ready("pod/term");
    scene.ready("pod/tty");
    // `script` gives kubectl a terminal; its size reaches the container.
    let inner = scene.command(&[
        "exec",
        "-it",
        "term",
        "--",
        "sh",
        "-c",
        "tty; until stty size 2>/dev/null | grep .; do sleep 0.1; done; echo typed $0",
    ]);
    let words: Vec<String> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|w| format!("'{}'", w.to_string_lossy()))
        .collect();
    let line = format!("stty rows 33 cols 99; {}", words.join(" "));
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null());
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let got = run(&mut command);
    scene.has("a terminal", &got, "/dev/pts/");
    scene.has("its size", &got, "33 99");
    let without = scene.exec("term", "tty || true");
    scene.has("no terminal", &without, "not a tty");
    let line = "readlink /proc/1/fd/0";
    scene.has("the container's own", &scene.exec("tty", line), "/dev/pts/");
}

pub(super) fn copy(scene: &Scene<'_>) {
    scene.pod("box", &main_container(FOREVER, ""));
    scene.ready("pod/box");
    let folder = scene.node.scratch.path().join("copy");
    std::fs::create_dir_all(folder.join("tree/deep")).unwrap();
    let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(folder.join("tree/deep/data"), &data).unwrap();
    let from = folder.join("tree").display().to_string();
    let back = folder.join("back").display().to_string();
    scene.kubectl(&format!("cp {from} box:/tmp/tree"));
    scene.is(
        "size inside",
        &scene.exec("box", "stat -c %s /tmp/tree/deep/data"),
        &data.len().to_string(),
    );
    scene.kubectl(&format!("cp box:/tmp/tree {back}"));
    scene.truth(
        "the same bytes came back",
        std::fs::read(folder.join("back/deep/data")).unwrap() == data,
    );
}

pub(super) fn debug(scene: &Scene<'_>) {
    scene.pod("patient", &main_container("exec sleep 54321", ""));
    scene.ready("pod/patient");
    let mut command = scene.command(&[
        "debug",
        "patient",
        "--image=sampan.test/node:1",
        "--target=main",
        "-c",
        "doctor",
        "--profile=general",
        "--",
        "sh",
        "-c",
        "ps -o args; hostname",
    ]);
    run(&mut command);
    scene.until_is(
        "pod/patient",
        "{.status.ephemeralContainerStatuses[0].state.terminated.exitCode}",
        "0",
    );
    let got = scene.kubectl("logs patient -c doctor");
    scene.has("the target's processes", &got, "sleep 54321");
    scene.has("the same Pod", &got, "patient");
    scene.is(
        "restarts",
        &scene.field("pod/patient", "{.status.containerStatuses[0].restartCount}"),
        "0",
    );
    scene.is(
        "phase",
        &scene.field("pod/patient", "{.status.phase}"),
        "Running",
    );
}
