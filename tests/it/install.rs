//! `install.sh` and `sampan uninstall`, on machines made of namespaces: own network, own /etc, /run, /usr/local, /var.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{Scratch, attempt, eventually, output, run, tools};

const MINUTE: Duration = Duration::from_secs(60);
/// Makes the machine; whoever holds this process holds the machine.
const MACHINE: &str = r#"
set -e
upper=$1
mount -t tmpfs sampan-test "$upper"
for place in etc usr/local; do
    mkdir -p "$upper/$place/upper" "$upper/$place/work"
    mount -t overlay overlay -o "lowerdir=/$place,upperdir=$upper/$place/upper,workdir=$upper/$place/work" "/$place"
done
for place in /run /var/lib /var/log; do mount -t tmpfs sampan-test "$place"; done
ip link set lo up
ip link add eth0 type veth peer name eth0p
ip addr add 10.97.0.1/24 dev eth0
ip link set eth0 up
ip link set eth0p up
echo ready
exec sleep infinity
"#;
/// Everything about the machine that an uninstall has to bring back.
const PICTURE: &str = r#"
for place in /etc /usr/local /run /var/lib /var/log; do find "$place" -xdev -printf '%p %y %m\n'; done | sort
cut -d' ' -f2,3 /proc/self/mounts | sort
ip -o link show | cut -d' ' -f2
ip -o addr show | tr -s ' ' | cut -d' ' -f2-4
ip route
nft list ruleset
cat /proc/sys/net/ipv4/ip_forward
ls -d /sys/fs/cgroup/*/sampan-"$1" /sys/fs/cgroup/sampan-"$1" 2>/dev/null || true
own=$(readlink /proc/self/ns/net)
for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/net")" != "$own" ] || tr '\0' ' ' <"$process/cmdline" | cut -c1-60
done | grep -v -e '^sh -c' -e '^nsenter' -e '^cut' -e '^tr' -e '^sort' -e '^grep' | sort
"#;

struct Machine {
    holder: Child,
    scratch: Scratch,
    data_dir: String,
}

impl Machine {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let mut holder = Command::new("unshare")
            .args([
                "--mount",
                "--net",
                "--propagation",
                "private",
                "sh",
                "-c",
                MACHINE,
                "machine",
            ])
            .arg(scratch.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        let stdout = holder.stdout.as_mut().unwrap();
        std::io::Read::read_exact(stdout, &mut ready).unwrap();
        let data_dir = format!("/var/lib/sampan-{}-{name}", std::process::id());
        Self {
            holder,
            scratch,
            data_dir,
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.holder.id()))
            .args(["--mount", "--net", "--", program])
            .env_remove("SAMPAN_TEST_TOOLS")
            .env_remove("SAMPAN_TEST_LONG");
        command
    }

    fn shell(&self, line: &str) -> String {
        run(self.command("sh").args(["-c", line]))
    }

    fn install(&self, options: &[&str]) -> Command {
        let mut command = self.command("sh");
        command
            .arg(format!("{}/install.sh", env!("CARGO_MANIFEST_DIR")))
            .args(options)
            .env("SAMPAN_BINARY", env!("CARGO_BIN_EXE_sampan"));
        command
    }

    fn sampan(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("sampan");
        command.args(arguments);
        command
    }

    fn kubectl(&self, kubeconfig: &str, arguments: &str) -> Command {
        let kubectl = tools().join("bin/kubectl").display().to_string();
        let mut command = self.command(&kubectl);
        command
            .env("KUBECONFIG", kubeconfig)
            .env("HOME", "/var/lib")
            .args(arguments.split_whitespace());
        command
    }

    fn picture(&self) -> Vec<String> {
        let digest = self.shell(&format!("printf %s {}/agent | sha256sum", self.data_dir));
        let text = run(self
            .command("sh")
            .args(["-c", PICTURE, "picture", &digest[..12]]));
        text.lines().map(str::to_owned).collect()
    }

    /// Programs that write down how they were called, in front of the real ones.
    fn fake(&self, name: &str, script: &str) {
        let text = format!("#!/bin/sh\necho \"{name} $*\" >>/var/log/calls\n{script}\n");
        let file = self.scratch.path().join("fake");
        std::fs::write(&file, text).unwrap();
        let target = format!("/usr/local/bin/{name}");
        let content = std::fs::File::open(&file).unwrap();
        let line = format!("cat >{target} && chmod 755 {target}");
        run(self.command("sh").args(["-c", &line]).stdin(content));
    }

    fn calls(&self) -> Vec<String> {
        let text = self.shell("cat /var/log/calls 2>/dev/null; : >/var/log/calls");
        let calls = text.lines().filter(|line| !line.starts_with("journalctl "));
        calls.map(str::to_owned).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What a failed test left; on a machine that is clean it does nothing.
        let taken_off = self
            .command(env!("CARGO_BIN_EXE_sampan"))
            .args(["uninstall", "--purge", "--data-dir", &self.data_dir])
            .output();
        if !std::thread::panicking() {
            assert!(taken_off.unwrap().status.success());
        }
        let _killed = self.holder.kill();
        let _waited = self.holder.wait();
    }
}

/// Lines of one that the other has not.
fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let only = |sign: char, these: &[String], those: &[String]| {
        let missing = these.iter().filter(|line| !those.contains(line));
        missing
            .map(|line| format!("{sign}{line}"))
            .collect::<Vec<_>>()
    };
    [only('-', before, after), only('+', after, before)].concat()
}

const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {terminationGracePeriodSeconds: 0, \
    containers: [{name: main, image: 'sampan.io/pause:1', imagePullPolicy: Never}]}}";

#[test]
fn installs_upgrades_and_leaves_without_an_init_system() {
    let machine = Machine::new("none");
    let before = machine.picture();
    let (data, kubeconfig) = (
        format!("--data-dir={}", machine.data_dir),
        "/etc/sampan/other.yaml",
    );
    let options = [
        "server",
        &data,
        "--write-kubeconfig",
        kubeconfig,
        "--node-name=i",
        "--token=not-for-others",
    ];
    let said = run(&mut machine.install(&options));
    assert!(
        said.contains(&format!("export KUBECONFIG={kubeconfig}")),
        "{said}"
    );
    assert!(
        said.contains(&format!("{}/server/node-token", machine.data_dir)),
        "{said}"
    );
    let processes = machine.shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '");
    assert!(
        !processes.contains("not-for-others"),
        "the token is in the process list"
    );
    assert!(run(&mut machine.kubectl(kubeconfig, "get nodes")).contains("Ready"));
    machine.shell(&format!("echo \"{POD}\" >/var/log/pod.yaml"));
    run(&mut machine.kubectl(kubeconfig, "apply -f /var/log/pod.yaml"));
    run(&mut machine.kubectl(kubeconfig, "wait --for=condition=Ready pod/p --timeout=60s"));
    let id = || {
        run(&mut machine.kubectl(
            kubeconfig,
            "get pod p -o jsonpath={.status.containerStatuses[0].containerID}",
        ))
    };
    let container = id();

    let said = run(&mut machine.install(&[]));
    assert!(
        said.contains("options as before: server --data-dir="),
        "{said}"
    );
    assert!(
        said.contains(&format!("export KUBECONFIG={kubeconfig}")),
        "{said}"
    );
    assert_eq!(id(), container, "an upgrade leaves containers alone");

    let answer = tour(&machine, kubeconfig);
    let refused = refusals(&machine, &data);
    assert_eq!(id(), container, "what was refused has stopped nothing");
    // What cannot be seen beforehand: nobody has this address.
    let base = ["server", &data, "--write-kubeconfig", kubeconfig];
    let told = fails(&mut machine.install(&[&base[..], &["--bind-address=10.97.0.99"]].concat()));
    assert!(
        told.contains("it has ended: cannot listen on 10.97.0.99:6443"),
        "{told}"
    );
    run(&mut machine.install(&[]));
    // The one that runs is not known any more, and answers.
    machine.shell("cp /run/sampan.pid /run/kept.pid; rm /run/sampan.pid");
    let told = fails(&mut machine.install(&[]));
    assert!(
        told.contains("it has ended: another sampan already runs"),
        "{told}"
    );
    machine.shell("mv /run/kept.pid /run/sampan.pid");
    run(&mut machine.install(&[]));
    assert_eq!(id(), container);

    let would = run(&mut machine.sampan(&["uninstall", "--dry-run"]));
    assert!(
        would.contains("would remove file /usr/local/bin/sampan"),
        "{would}"
    );
    assert_eq!(id(), container, "a dry run does nothing");
    let said = run(&mut machine.sampan(&["uninstall"]));
    assert!(
        said.contains(&format!("kept: {}", machine.data_dir)),
        "{said}"
    );
    machine.shell("rm -rf /var/log/pod.yaml /var/lib/.kube");
    let left = difference(&before, &machine.picture());
    let data_only = |line: &&String| !line.starts_with(&format!("+{}", machine.data_dir));
    let left: Vec<_> = left.iter().filter(data_only).collect();
    assert!(left.is_empty(), "left after an uninstall: {left:#?}");

    // The same cluster again, from what was kept.
    run(&mut machine.install(&[
        "server",
        &data,
        "--write-kubeconfig",
        kubeconfig,
        "--node-name=i",
    ]));
    eventually("the Pod runs again", MINUTE, || {
        attempt(&mut machine.kubectl(kubeconfig, "wait --for=condition=Ready pod/p --timeout=1s"))
    });
    let said = run(&mut machine.sampan(&["uninstall", "--purge"]));
    machine.shell("rm -rf /var/lib/.kube");
    let left = difference(&before, &machine.picture());
    assert!(left.is_empty(), "left after a purge: {left:#?}");
    println!(
        "install (no init system): installed, an archive written over 3 s imported once (its Pod {answer} answers by name), \
         upgraded in place 3 times, {refused} wrong calls refused with the server going on, \
         2 failed starts told their reason, uninstalled 2 times; {} facts of the machine as before, {} steps taken back",
        before.len(),
        said.lines().count()
    );
}

/// The way of the README's tour: an image of the machine's own busybox, copied slowly, imported once.
fn tour(machine: &Machine, kubeconfig: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let folder = format!("{}/agent/images", machine.data_dir);
    let busybox = tools().join("busybox/bin/busybox").display().to_string();
    // A copy in twenty parts, as over a slow line.
    machine.shell(&format!(
        "BUSYBOX={busybox} {root}/packaging/web-image.sh >/var/lib/web.tar && mkdir -p {folder} && \
         size=$(wc -c </var/lib/web.tar) && exec 3>{folder}/web.tar && part=0 && while [ $part -lt 20 ]; do \
         dd if=/var/lib/web.tar bs=$((size / 19)) skip=$part count=1 status=none >&3; part=$((part + 1)); sleep 0.15; done"
    ));
    let kubectl = |arguments: &str| run(&mut machine.kubectl(kubeconfig, arguments));
    kubectl("create deployment web --image=sampan.test/web:1 --replicas=2");
    kubectl("expose deployment web --port=80 --target-port=8080");
    kubectl("rollout status deployment web --timeout=60s");
    let answer = eventually("the Service answers by its name", MINUTE, || {
        let url = "http://web.default.svc.cluster.local";
        let asking = format!("exec deploy/web -- wget -qO- {url}");
        attempt(&mut machine.kubectl(kubeconfig, &asking))
    });
    assert!(answer.starts_with("web-"), "{answer}");
    let log = machine.shell("cat /var/log/sampan.log");
    let about = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!(about("images imported"), 1, "{log}");
    assert_eq!(about("cannot import"), 0, "{log}");
    assert_eq!(
        about("another program has changed the pod network"),
        0,
        "{log}"
    );
    kubectl("delete service/web deployment/web --wait=true");
    machine.shell("rm /var/lib/web.tar");
    answer.trim().to_owned()
}

/// What a command that must fail says of it.
fn fails(command: &mut Command) -> String {
    let failed = output(command);
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success(), "{command:?} should fail: {told}");
    told
}

/// Calls that are refused before anything is done: the process goes on, and so does every file. Returns how many.
fn refusals(machine: &Machine, data: &str) -> usize {
    const ROWS: &[(&[&str], &str)] = &[
        (&["--cluster-cidr=none"], "option --cluster-cidr (flag)"),
        (
            &["--cluster-cidr=10.43.0.0/17"],
            "--cluster-cidr=10.43.0.0/17 and --service-cidr=10.43.0.0/16 overlap",
        ),
        (
            &["--cluster-cidr=10.44.0.0/16"],
            "the data was made with --cluster-cidr=10.42.0.0/16, and now it is 10.44.0.0/16",
        ),
        (
            &["--service-cidr=10.97.0.0/16", "--data-dir=/var/lib/new"],
            "--service-cidr=10.97.0.0/16 holds 10.97.0.1, an address of this machine",
        ),
        (
            &["--kube-apiserver-arg=token-auth-flie=/x"],
            "the API server has no argument token-auth-flie here",
        ),
        (&["--kubelet-arg=max-pods=x"], "--kubelet-arg=max-pods=x"),
        (
            &["--clutser-cidr=10.44.0.0/16"],
            "unknown option --clutser-cidr",
        ),
        (&["surplus"], "unknown option surplus"),
        (&["--tls-san"], "--tls-san needs a value"),
    ];
    let picture = "md5sum /etc/sampan/* /usr/local/bin/sampan; cat /run/sampan.pid; kill -0 $(cat /run/sampan.pid)";
    let before = machine.shell(picture);
    for (options, expected) in ROWS {
        let told = fails(&mut machine.install(&[&["server", data], *options].concat()));
        assert!(
            told.contains(expected) && told.contains("nothing was done"),
            "{told}"
        );
        assert_eq!(machine.shell(picture), before, "{options:?}");
    }
    for call in [&["--help"][..], &["server", "--help"], &["agent", "-h"]] {
        let said = run(&mut machine.install(call));
        assert!(said.contains("./install.sh [server|agent]"), "{said}");
        assert_eq!(machine.shell(picture), before, "{call:?}");
    }
    let mut check = machine.sampan(&["server", data, "--check"]);
    let checked = output(check.env("SAMPAN_DATADIR", "/x"));
    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
    let warning = "warning: the environment variable SAMPAN_DATADIR means nothing to sampan; the nearest option is SAMPAN_DATA_DIR";
    assert!(checked.status.success() && told.contains(warning), "{told}");
    ROWS.len() + 3
}

/// Starts what the unit says, as systemd would.
const SYSTEMCTL: &str = r#"
unit=/etc/systemd/system/sampan.service
case $* in
"restart --no-block sampan")
    [ ! -f /run/fake.pid ] || kill "$(cat /run/fake.pid)"
    set -a; . /etc/sampan/sampan.env; set +a
    setsid sh -c "exec $(sed -n 's/%%/%/g; s/[$][$]/\\$/g; s/^ExecStart=//p' $unit)" >>/var/log/journal.txt 2>&1 </dev/null &
    echo $! >/run/fake.pid ;;
"disable --now sampan") kill "$(cat /run/fake.pid)"; rm /run/fake.pid ;;
esac
"#;
const RC_SERVICE: &str = r#"
case $* in
"sampan restart")
    . /etc/conf.d/sampan
    eval "set -- $SAMPAN_OPTIONS"
    set -a; . /etc/sampan/sampan.env; set +a
    setsid "$SAMPAN_BIN" "$SAMPAN_ROLE" "$@" >>/var/log/sampan.log 2>&1 </dev/null &
    echo $! >/run/fake.pid ;;
"--ifstarted sampan stop") kill "$(cat /run/fake.pid)"; rm /run/fake.pid ;;
esac
"#;

/// A control plane alone: what is tried here is the service.
fn service_round(machine: &Machine, expected_start: &[&str], expected_end: &[&str]) -> usize {
    machine.calls();
    let before = machine.picture();
    let odd = "--private-registry=/a\"b $HOME %n 'c'";
    let data = format!("--data-dir={}", machine.data_dir);
    let said = run(&mut machine.install(&["server", "--disable-agent", &data, odd]));
    assert!(
        said.contains("export KUBECONFIG=/etc/sampan/sampan.yaml"),
        "{said}"
    );
    assert_eq!(machine.calls(), expected_start);
    let processes = machine.shell("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'");
    assert!(
        processes.lines().any(|line| line == odd),
        "an option was changed on its way: {processes}"
    );
    run(&mut machine.sampan(&["uninstall", "--purge"]));
    assert_eq!(machine.calls(), expected_end);
    machine.shell(
        "rm -f /var/log/journal.txt /etc/sampan/sampan.yaml; rmdir /etc/sampan 2>/dev/null || true",
    );
    let left = difference(&before, &machine.picture());
    assert!(left.is_empty(), "left: {left:#?}");
    before.len()
}

#[test]
fn installs_a_systemd_service() {
    let machine = Machine::new("systemd");
    machine.shell("mkdir -p /run/systemd/system");
    machine.fake("systemctl", SYSTEMCTL);
    machine.fake("journalctl", "cat /var/log/journal.txt");
    let start = [
        "systemctl daemon-reload",
        "systemctl enable --quiet sampan",
        "systemctl restart --no-block sampan",
    ];
    let end = ["systemctl disable --now sampan", "systemctl daemon-reload"];
    let facts = service_round(&machine, &start, &end);
    run(machine
        .install(&["server", "--private-registry=/a b"])
        .env("SAMPAN_SKIP_START", "1"));
    machine.calls();
    let unit = "/etc/systemd/system/sampan.service";
    let verified = output(
        machine
            .command("/usr/bin/systemd-analyze")
            .args(["verify", "--man=no", unit]),
    );
    let told = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(
        verified.status.success() && !told.contains("sampan.service:"),
        "{told}"
    );
    machine.fake("systemctl", "");
    run(&mut machine.sampan(&["uninstall", "--purge"]));
    println!(
        "install (systemd): unit verified by systemd-analyze, started, removed; {facts} facts as before"
    );
}

#[test]
fn installs_an_openrc_service() {
    let machine = Machine::new("openrc");
    machine.shell("mkdir -p /etc/conf.d /etc/init.d");
    machine.fake("rc-service", RC_SERVICE);
    machine.fake("rc-update", "");
    let start = [
        "rc-update -q add sampan default",
        "rc-service sampan restart",
    ];
    let end = [
        "rc-service --ifstarted sampan stop",
        "rc-update -q delete sampan",
    ];
    let facts = service_round(&machine, &start, &end);
    println!("install (OpenRC): service started, removed; {facts} facts as before");
}

#[test]
fn packages_come_from_the_distribution_and_none_is_removed() {
    const ROWS: &[(&str, &str)] = &[
        (
            "apt-get",
            "apt-get install -y -qq --no-install-recommends --no-remove containerd runc",
        ),
        ("apk", "apk add --quiet containerd runc"),
        (
            "dnf",
            "dnf install -y -q --setopt=clean_requirements_on_remove=False containerd runc",
        ),
        ("pacman", "pacman -S --noconfirm --needed containerd runc"),
        (
            "zypper",
            "zypper --non-interactive install --no-recommends containerd runc",
        ),
    ];
    let machine = Machine::new("pkg");
    let skip = |machine: &Machine| {
        let mut command = machine.install(&["server"]);
        command.env("SAMPAN_SKIP_START", "1");
        command
    };
    // Neither a runtime nor a package manager of the machine's own.
    for name in ["containerd", "runc", "apt-get", "rc-service"] {
        let found = machine.shell(&format!("command -v {name} || true"));
        for path in found.lines().map(PathBuf::from) {
            let path = std::fs::canonicalize(&path).unwrap_or(path);
            machine.shell(&format!("mount --bind /dev/null {}", path.display()));
        }
    }
    let failed = output(&mut skip(&machine));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("cannot install containerd runc"));
    for (name, expected) in ROWS {
        machine.fake(name, "");
        machine.calls();
        run(&mut skip(&machine));
        let calls = machine.calls();
        assert_eq!(
            calls.last().map(String::as_str),
            Some(*expected),
            "{calls:?}"
        );
        machine.shell(&format!("rm /usr/local/bin/{name}"));
    }
    let would = run(&mut machine.sampan(&["uninstall", "--dry-run"]));
    assert!(
        would.contains("kept: the packages containerd runc"),
        "{would}"
    );
    // A machine with Docker's packages, which conflict with the distribution's.
    machine.fake(
        "apt-get",
        "[ \"$2\" != -s ] || echo 'Remv containerd.io [1.7]'",
    );
    let failed = output(&mut skip(&machine));
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(
        !failed.status.success() && told.contains("would remove containerd.io"),
        "{told}"
    );
    let calls = machine.calls();
    assert!(
        !calls
            .iter()
            .any(|call| call.starts_with("apt-get install -y")),
        "{calls:?}"
    );
    machine.shell("rm /usr/local/bin/apt-get");
    run(&mut machine.sampan(&["uninstall", "--purge"]));
    println!(
        "install: {} package managers called right; an installation that would remove a package is refused",
        ROWS.len()
    );
}

#[test]
fn the_scripts_are_posix_shell() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for script in [
        "install.sh",
        "packaging/sampan.openrc",
        "packaging/web-image.sh",
        "tests/run",
        "tests/tools/need",
    ] {
        run(Command::new("dash").arg("-n").arg(root.join(script)));
    }
}

#[test]
fn check_names_the_command_that_lets_pods_through() {
    let machine = Machine::new("check");
    let sampan = env!("CARGO_BIN_EXE_sampan");
    let check = || {
        output(
            machine
                .command(sampan)
                .args(["check", "--data-dir", &machine.data_dir]),
        )
    };
    let clean = check();
    assert!(
        clean.status.success(),
        "{}",
        String::from_utf8_lossy(&clean.stdout)
    );
    machine.shell("nft add table ip filter; nft add chain ip filter FORWARD '{ type filter hook forward priority 0; policy drop; }'");
    let told = check();
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(!told.status.success());
    for command in [
        "iptables -I FORWARD -s 10.42.0.0/16 -j ACCEPT",
        "iptables -I FORWARD -d 10.42.0.0/16 -j ACCEPT",
    ] {
        assert!(text.contains(command), "{text}");
    }
    let rules = machine.shell("nft list ruleset");
    assert!(
        !rules.contains("accept;"),
        "others' rules are not changed: {rules}"
    );
    println!(
        "check: a FORWARD chain that drops is named with 2 exact commands; {} lines",
        text.lines().count()
    );
}

#[test]
fn installs_an_agent() {
    let machine = Machine::new("agent");
    let before = machine.picture();
    // A server beside it, as another machine would run it.
    let other = Scratch::new("srv");
    let folder = other.path().display().to_string();
    let server = machine
        .command(env!("CARGO_BIN_EXE_sampan"))
        .args(["server", "--disable-agent", "--advertise-address=10.97.0.1"])
        .arg(format!("--data-dir={folder}/d"))
        .arg(format!("--write-kubeconfig={folder}/kubeconfig"))
        .stderr(std::fs::File::create(other.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    let server = Ended(server);
    let token = eventually("the server has a token", MINUTE, || {
        std::fs::read_to_string(other.path().join("d/server/node-token"))
            .map_err(|error| error.to_string())
    });
    let data = format!("--data-dir={}", machine.data_dir);
    let url = "--server=https://10.97.0.1:6443";
    // A first start that fails: what comes next is an agent all the same.
    let options = ["agent", url, &data, "--node-name=i", "--token"];
    let told = fails(&mut machine.install(&[&options[..], &["wrong"]].concat()));
    assert!(told.contains("it has ended: the server"), "{told}");
    let told = fails(&mut machine.install(&[]));
    assert!(told.contains("it has ended: the server"), "{told}");
    let said = run(&mut machine.install(&[&options[..], &[token.trim()]].concat()));
    assert!(said.contains("the agent runs"), "{said}");
    let nodes = run(&mut machine.kubectl(&format!("{folder}/kubeconfig"), "get nodes"));
    assert!(
        nodes
            .lines()
            .any(|line| line.starts_with("i ") && line.contains(" Ready ")),
        "{nodes}"
    );
    let kubectl = |arguments: &str| machine.kubectl(&format!("{folder}/kubeconfig"), arguments);
    machine.shell(&format!("echo \"{POD}\" >/var/log/pod.yaml"));
    run(&mut kubectl("apply -f /var/log/pod.yaml"));
    run(&mut kubectl(
        "wait --for=condition=Ready pod/p --timeout=60s",
    ));
    let id = || {
        run(&mut kubectl(
            "get pod p -o jsonpath={.status.containerStatuses[0].containerID}",
        ))
    };
    let container = id();
    // The token is not needed again, nor are the options.
    let said = run(&mut machine.install(&[]));
    assert!(
        said.contains("options as before: agent --server=https://10.97.0.1:6443"),
        "{said}"
    );
    assert!(fails(&mut machine.install(&["server"])).contains("is installed as agent"));
    // Even if nobody knows any more how it was installed, an agent does not become a server.
    machine.shell("mv /etc/sampan/arguments /etc/sampan/kept");
    let told = fails(&mut machine.install(&[]));
    assert!(told.contains("this machine is an agent"), "{told}");
    let told = fails(&mut machine.install(&["server", &data]));
    assert!(
        told.contains("is the data of an agent") && told.contains("nothing was done"),
        "{told}"
    );
    machine.shell("mv /etc/sampan/kept /etc/sampan/arguments");
    run(&mut machine.install(&[]));
    assert_eq!(id(), container, "the Pod goes on");
    machine.shell("rm /var/log/pod.yaml");
    run(&mut machine.sampan(&["uninstall", "--purge"]));
    drop(server);
    machine.shell("rm -rf /var/lib/.kube");
    let left = difference(&before, &machine.picture());
    assert!(left.is_empty(), "left after a purge: {left:#?}");
    println!(
        "install (agent): 2 starts with a wrong token told so, joined, upgraded 2 times without its token being given again \
         with 1 Pod going on, 3 calls that would make it a server refused, purged; {} facts as before",
        before.len()
    );
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _waited = self.0.wait();
    }
}
