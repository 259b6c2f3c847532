//! Doing the steps, or telling what they would do.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use sampan_host::{Change, Journal, Outcome};
use sampan_network::HostNetwork;

use super::observe::{Found, Manager};
use super::plan::Step;
use super::processes;
use super::purge::purge;

/// How long containers may take to end; databases write what they have. One time for all: `terminationGracePeriodSeconds` is
/// in the runtime's own records, and neither the runtime nor the API is there to be asked by now.
const CONTAINER_GRACE: Duration = Duration::from_secs(20);
const SAMPAN_GRACE: Duration = Duration::from_secs(40);
const UNIT: &str = "/etc/systemd/system/sampan.service";

/// What became of a step.
enum Result {
    Done,
    Left(String),
    Failed(String),
}

pub(super) fn preview(found: &Found, steps: &[Step], say: &mut dyn FnMut(String)) {
    for step in steps {
        match step {
            Step::Keep { .. } | Step::Tell(_) => say(text(found, step)),
            _ => say(format!("would {}", text(found, step))),
        }
    }
}

/// Returns how many steps failed. One failure does not stop the rest, but nothing is removed that may still be in use.
pub(super) fn execute(
    found: &Found,
    steps: &[Step],
    say: &mut dyn FnMut(String),
) -> anyhow::Result<usize> {
    let mut failures = 0;
    for step in steps {
        let what = text(found, step);
        match act(found, step) {
            Result::Done => say(what),
            Result::Left(why) => say(format!("left: {what}: {why}")),
            Result::Failed(why) => {
                failures += 1;
                say(format!("failed: {what}: {why}"));
                if matches!(step, Step::StopSampan(_) | Step::EndContainers(_)) {
                    anyhow::bail!("cannot {what}, so nothing else was touched");
                }
            }
        }
    }
    Ok(failures)
}

/// In the imperative: `would …` is put before it in a dry run.
fn text(found: &Found, step: &Step) -> String {
    let show = |path: &Path| path.display().to_string();
    match step {
        Step::StopService(Manager::Systemd) => "stop and disable the systemd service sampan".into(),
        Step::StopService(_) => "stop and disable the OpenRC service sampan".into(),
        Step::StopSampan(pid) => format!("stop sampan (process {pid})"),
        Step::EndContainers(shims) => format!("end all containers ({shims} shims)"),
        Step::EndRuntime(pid) => format!("end containerd (process {pid})"),
        Step::Unmount(path) => format!("unmount {}", show(path)),
        Step::Undo(Change::Sysctl { key, old, new, .. }) => {
            format!("take back sysctl {key}: {new} -> {old}")
        }
        Step::Undo(change) => format!("remove {change}"),
        Step::RemoveLeftover(path) | Step::RemoveFile(path) => {
            format!("remove file {}", show(path))
        }
        Step::RemoveDirectory(path) => format!("remove directory {}", show(path)),
        Step::Purge(path) => format!("remove {} with all data", show(path)),
        Step::Keep { what, how } => {
            let more = if found.installed.is_some() {
                "installing again goes on with it"
            } else {
                "starting again goes on with it"
            };
            format!(
                "kept: {} (the cluster's data, images, volumes); {more}; to remove it for good: {how}",
                show(what)
            )
        }
        Step::Tell(text) => text.clone(),
    }
}

fn act(found: &Found, step: &Step) -> Result {
    match step {
        Step::StopService(manager) => stop_service(*manager),
        Step::StopSampan(pid) => stop_sampan(*pid),
        Step::EndContainers(_) => of(end_containers(found)),
        Step::EndRuntime(pid) => all_ended(processes::end(&[*pid], SAMPAN_GRACE)),
        Step::Unmount(path) => of(sampan_host::unmount(path)),
        Step::RemoveLeftover(path) | Step::RemoveFile(path) => remove_file(path),
        Step::Undo(change) => undo(found, change),
        Step::RemoveDirectory(path) => remove_directory(path),
        Step::Purge(path) => of(purge(path)),
        Step::Keep { .. } | Step::Tell(_) => Result::Done,
    }
}

fn of(result: std::result::Result<(), String>) -> Result {
    result.map_or_else(Result::Failed, |()| Result::Done)
}

fn all_ended(ended: bool) -> Result {
    if ended {
        Result::Done
    } else {
        Result::Failed("it does not end".into())
    }
}

/// The manager must forget the service, or it starts it again. A manager that does not know it is content.
fn stop_service(manager: Manager) -> Result {
    let commands: &[&[&str]] = match manager {
        Manager::Systemd if !Path::new(UNIT).exists() => &[],
        Manager::Systemd => &[&["systemctl", "disable", "--now", "sampan"]],
        Manager::OpenRc => &[
            &["rc-service", "--ifstarted", "sampan", "stop"],
            &["rc-update", "-q", "delete", "sampan"],
        ],
        Manager::None => &[],
    };
    for command in commands {
        match Command::new(command[0]).args(&command[1..]).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                tracing::warn!("{}: {}", command.join(" "), why.trim());
            }
            Err(error) => return Result::Failed(format!("{}: {error}", command[0])),
        }
    }
    Result::Done
}

fn stop_sampan(pid: i32) -> Result {
    // The service manager may have stopped it by now.
    if pid == 0 {
        let why =
            "a process holds the data directory's lock and has not noted its number; stop it first";
        return Result::Failed(why.into());
    }
    all_ended(processes::end(&[pid], SAMPAN_GRACE))
}

/// The first process of each container is asked, as a kubelet does; then all that is left is killed. Without shims of ours
/// nothing is: in the node's control groups are another runtime's containers then, which it ends in its own way.
pub(super) fn end_containers(found: &Found) -> std::result::Result<(), String> {
    if found.shims.is_empty() {
        return Ok(());
    }
    let shims: Vec<i32> = found.shims.iter().map(|shim| shim.pid).collect();
    let first: Vec<i32> = shims
        .iter()
        .flat_map(|pid| processes::children(*pid))
        .collect();
    if !processes::end(&first, CONTAINER_GRACE) {
        return Err("a container does not end".into());
    }
    let deadline = Instant::now() + CONTAINER_GRACE;
    loop {
        let members: Vec<i32> = found.cgroups.iter().flat_map(members).collect();
        if members.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("processes {members:?} do not end"));
        }
        processes::end(&members, Duration::ZERO);
    }
    match processes::end(&shims, Duration::from_secs(5)) {
        true => Ok(()),
        false => Err("a shim does not end".into()),
    }
}

/// All processes of a control group and those below it.
fn members(path: impl AsRef<Path>) -> Vec<i32> {
    let path = path.as_ref();
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(members(entry.path()));
        }
    }
    found
}

fn undo(found: &Found, change: &Change) -> Result {
    let network = HostNetwork;
    let outcome = match &found.journal {
        Some(journal) => journal.undo_one(change, &network),
        None => Journal::undo_unrecorded(change, &network),
    };
    match outcome {
        Ok(Outcome::Undone | Outcome::WouldUndo) => Result::Done,
        Ok(Outcome::Skipped(why)) => Result::Left(why),
        Ok(Outcome::Failed(_)) if is_used_by_others(found, change) => {
            Result::Left("containers of another runtime are in it".into())
        }
        Ok(Outcome::Failed(why)) => Result::Failed(why),
        Err(error) => Result::Failed(error.to_string()),
    }
}

/// Ours end before this: with none of ours there, whoever is left in a control group was started by another runtime.
fn is_used_by_others(found: &Found, change: &Change) -> bool {
    match change {
        Change::Cgroup { path } => found.shims.is_empty() && !members(path).is_empty(),
        _ => false,
    }
}

fn remove_file(path: &Path) -> Result {
    match fs::remove_file(path) {
        Ok(()) => reload(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Result::Done,
        Err(error) => Result::Failed(error.to_string()),
    }
}

/// systemd keeps a unit in memory whose file is gone.
fn reload(path: &Path) -> Result {
    if path == Path::new(UNIT)
        && let Err(error) = Command::new("systemctl").arg("daemon-reload").output()
    {
        tracing::debug!(%error, "systemctl does not run");
    }
    Result::Done
}

fn remove_directory(path: &Path) -> Result {
    match fs::remove_dir(path) {
        Ok(()) => Result::Done,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Result::Done,
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            Result::Left("not all in it is ours".into())
        }
        Err(error) => Result::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A child in what looks like the node's control group, which no shim of ours started.
    #[test]
    fn containers_of_another_runtime_live_on() {
        let folder = std::env::temp_dir().join(format!("sampan-foreign-{}", std::process::id()));
        fs::create_dir_all(folder.join("pod")).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let listed = child.id().to_string();
        fs::write(folder.join("pod/cgroup.procs"), listed).unwrap();
        let found = Found {
            data_dir: "/d".into(),
            installed: None,
            sampan: None,
            runtime: Vec::new(),
            shims: Vec::new(),
            cgroups: vec![folder.clone()],
            mounts: Vec::new(),
            leftovers: Vec::new(),
            journal: None,
            data: false,
        };
        assert_eq!(end_containers(&found), Ok(()));
        assert!(child.try_wait().unwrap().is_none(), "it runs on");
        let group = Change::Cgroup {
            path: folder.clone(),
        };
        assert!(is_used_by_others(&found, &group));
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
