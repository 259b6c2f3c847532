//! Logs and everything that talks to a running container.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::scene::{FOREVER, LIMIT, Scene, container, main_container};
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

/// A container that ends at once: what it said is seen all the same, every time and once.
pub(super) fn short_runs(scene: &Scene<'_>) {
    let count = if crate::support::long() { 30 } else { 6 };
    let mut seen = 0;
    for number in 0..count {
        let name = format!("short{number}");
        let way = if number % 2 == 0 {
            by_websocket
        } else {
            by_spdy
        };
        let command = scene.command(&[
            "run",
            &name,
            "--image=sampan.test/node:1",
            "--restart=Never",
            "-i",
            "--command",
            "--",
            "sh",
            "-c",
            "echo hello",
        ]);
        let (ok, out, err) = given(way(command), b"");
        scene.truth(&format!("kubectl run -i ends well: {err}"), ok);
        seen += u32::from(out == "hello\n");
    }
    println!("streams: {seen} of {count} short runs showed what they said");
    scene.truth("every short run is heard", seen == count);
}

/// kubectl's WebSockets, and no falling back to SPDY.
fn by_websocket(mut command: Command) -> Command {
    command
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "true")
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "true");
    command
}

/// The older way, which clients before 1.31 know only.
fn by_spdy(mut command: Command) -> Command {
    command
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
    command
}

/// What a command says on both outputs when it is given this and then no more; it must end by itself.
fn given(command: Command, input: &[u8]) -> (bool, String, String) {
    talk(command, input, false)
}

/// The same; its input may stay open: a runtime lets go of who attached to a terminal when their input ends.
fn talk(mut command: Command, input: &[u8], stays_open: bool) -> (bool, String, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        let written = to.write_all(&input);
        written.map(|()| stays_open.then_some(to))
    });
    let pid = child.id();
    let (done, ended) = std::sync::mpsc::channel();
    let guard = std::thread::spawn(move || {
        if ended.recv_timeout(LIMIT).is_err() {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    let _ = done.send(());
    guard.join().unwrap();
    // Who reads no input closes it.
    let _ = writer.join().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Both protocols, with input that ends, a status, much data both ways, and output of its own kind.
pub(super) fn protocols(scene: &Scene<'_>) {
    scene.pod("both", &main_container(FOREVER, ""));
    scene.ready("pod/both");
    let exec =
        |script: &str| scene.command(&["exec", "-i", "-v=7", "both", "--", "sh", "-c", script]);
    let large = vec![b'x'; 3_000_000];
    for (name, way, is_websocket) in [
        ("WebSocket", by_websocket as fn(Command) -> Command, true),
        ("SPDY", by_spdy, false),
    ] {
        let (ok, out, err) = given(way(exec("cat; echo end; echo other >&2")), b"typed\n");
        scene.truth(&format!("{name} ends well: {err}"), ok);
        scene.is(name, &out, "typed\nend");
        scene.has(name, &err, "other\n");
        // What was spoken: a GET upgrades a WebSocket, a POST a SPDY connection.
        let asked = |verb: &str| {
            err.lines()
                .any(|line| line.contains(verb) && line.contains("/exec?"))
        };
        let (got, posted) = (asked("GET"), asked("POST"));
        scene.truth(
            &format!("{name} without the other one: {err}"),
            got == is_websocket && posted != is_websocket && !err.contains("allback"),
        );
        let (ok, _, err) = given(way(exec("exit 42")), b"");
        scene.truth("a failure", !ok);
        scene.has(name, &err, "exit code 42");
        let (ok, out, _) = given(
            way(exec("cat | wc -c; head -c 2000000 /dev/zero | tr '\\0' y")),
            &large,
        );
        scene.truth("much data", ok);
        let (count, rest) = out.split_once('\n').unwrap();
        scene.is(name, count.trim(), "3000000");
        scene.truth(
            name,
            rest.len() == 2_000_000 && rest.bytes().all(|b| b == b'y'),
        );
    }
}

/// Containers with and without input and a terminal; clients with and without a terminal.
pub(super) fn attach_anyhow(scene: &Scene<'_>) {
    let script = "echo started; while read line; do echo got $line; [ \"$line\" = end ] && exit 0; done; sleep 100000";
    scene.pod(
        "tty",
        &format!(
            "restartPolicy: Never, {}",
            main_container(script, ", stdin: true, tty: true")
        ),
    );
    scene.pod(
        "deaf",
        &format!(
            "restartPolicy: Never, {}",
            main_container(
                "sleep 6; for i in 1 2 3; do echo told $i; sleep 1; done",
                ""
            )
        ),
    );
    scene.ready("pod/tty");
    scene.ready("pod/deaf");
    // A container without input streams its output, and the end of the container is the end of it.
    let (ok, out, err) = given(by_websocket(scene.command(&["attach", "deaf"])), b"");
    scene.truth(&format!("attached to its end: {err}"), ok);
    scene.has("the output", &out, "told 3");
    // A terminal in the container and none here.
    let attach = by_websocket(scene.command(&["attach", "-it", "tty"]));
    let (ok, out, err) = talk(attach, b"one\nend\n", true);
    scene.truth(&format!("attached without a terminal: {out} {err}"), ok);
    scene.has("what was said", &out, "got end");
    let run = |name: &'static str, flags: &[&'static str], command: &[&'static str]| {
        let mut all = vec![
            "run",
            name,
            "--image=sampan.test/node:1",
            "--restart=Never",
            "--rm",
        ];
        all.extend(flags);
        all.extend(["--quiet", "--command", "--"]);
        all.extend(command);
        scene.command(&all)
    };
    // Its input ends, and so does it.
    let (ok, out, err) = given(run("cat", &["-i"], &["cat"]), b"fed\n");
    scene.truth(&format!("kubectl run -i … cat ends: {err}"), ok);
    scene.has("what cat was fed", &out, "fed");
    let line = "read line; echo got $line; exit 0";
    let command = run("unterminal", &["-it"], &["sh", "-c", line]);
    let (ok, out, err) = talk(command, b"word\n", true);
    scene.truth(
        &format!("kubectl run -it without a terminal ends: {err}"),
        ok,
    );
    scene.has("what it read", &out, "got word");
    // And with one on both sides.
    let command = run(
        "terminal",
        &["-it"],
        &[
            "sh",
            "-c",
            "until stty size | grep 33; do sleep 0.1; done; tty",
        ],
    );
    let got = in_terminal(&command);
    scene.has("a terminal", &got, "/dev/pts/");
    scene.has("its size", &got, "33 99");
}

/// Runs a command in a terminal of 33 rows and 99 columns.
fn in_terminal(inner: &Command) -> String {
    let words: Vec<String> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|w| format!("'{}'", w.to_string_lossy().replace('\'', "'\\''")))
        .collect();
    let line = format!("stty rows 33 cols 99; {}", words.join(" "));
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null());
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    run(&mut command)
}

/// A forwarded port, by either protocol.
pub(super) fn port_forward(scene: &Scene<'_>) {
    scene.pod(
        "served",
        &main_container(
            "mkdir -p /tmp/w; echo hello > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w",
            "",
        ),
    );
    scene.ready("pod/served");
    for (name, way, verb) in [
        ("WebSocket", by_websocket as fn(Command) -> Command, "GET"),
        ("SPDY", by_spdy, "POST"),
    ] {
        let log = scene.node.scratch.path().join(format!("forward-{verb}"));
        let file = std::fs::File::create(&log).unwrap();
        let mut child = way(scene.command(&["port-forward", "-v=7", "pod/served", ":8080"]))
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let read = || std::fs::read_to_string(&log).unwrap();
        scene.until("the port is open", || {
            let text = read();
            text.contains("Forwarding from 127.0.0.1:")
                .then_some(())
                .ok_or(text)
        });
        let text = read();
        let port = text.split("Forwarding from 127.0.0.1:").nth(1).unwrap();
        let port = port.split(" ->").next().unwrap().to_owned();
        for _ in 0..5 {
            let url = format!("http://127.0.0.1:{port}/");
            let got = run(scene
                .node
                .itself
                .command("curl")
                .args(["-s", "-m", "10", &url]));
            scene.is(name, &got, "hello");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let text = read();
        let mut lines = text.lines();
        scene.truth(
            &format!("{name}: {text}"),
            lines.any(|line| line.contains(verb) && line.contains("/portforward"))
                && !text.contains("allback"),
        );
    }
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
    let got = in_terminal(&inner);
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
