//! One containerd process: started so that it dies with us, while the shims it started live on.

use super::Error;
use super::binaries::Binaries;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// containerd saves nothing at its end, so it needs no long grace.
const GRACE: Duration = Duration::from_secs(10);

pub(super) struct Process {
    pub pid: i32,
    pub exited: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// What to run and where its traces go.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub binaries: Binaries,
    pub config: PathBuf,
    pub log: PathBuf,
    pub pid_file: PathBuf,
    pub level: &'static str,
}

impl Process {
    pub fn spawn(launch: &Launch) -> Result<Self, Error> {
        let (output, input) = io::pipe().map_err(Error::Spawn)?;
        let output =
            tokio::net::unix::pipe::Receiver::from_owned_fd(output.into()).map_err(Error::Spawn)?;
        let command = command(launch, input).map_err(Error::Spawn)?;
        tokio::spawn(super::log::copy(output, launch.log.clone()));

        let (started, start) = std::sync::mpsc::sync_channel(1);
        let (ended, exited) = oneshot::channel();
        // The kernel ties "die with the parent" to the thread that started the child, so that thread stays.
        std::thread::Builder::new()
            .name("containerd".to_owned())
            .stack_size(128 << 10)
            .spawn(move || run(command, &started, ended))
            .map_err(Error::Spawn)?;
        let pid = start
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("its thread ended")))
            .map_err(Error::Spawn)?;
        fs::write(&launch.pid_file, pid.to_string())
            .map_err(Error::file("write", &launch.pid_file))?;
        Ok(Self { pid, exited })
    }

    /// Asks it to end, and makes it end.
    pub async fn stop(mut self) {
        signal(self.pid, rustix::process::Signal::TERM);
        if tokio::time::timeout(GRACE, &mut self.exited).await.is_err() {
            tracing::warn!(pid = self.pid, "containerd does not end, killing it");
            signal(self.pid, rustix::process::Signal::KILL);
            // Only a process stuck in the kernel survives this; it would not be helped by waiting.
            drop(tokio::time::timeout(GRACE, self.exited).await);
        }
    }
}

fn command(launch: &Launch, output: io::PipeWriter) -> io::Result<Command> {
    let mut command = Command::new(&launch.binaries.containerd);
    command
        .arg("--config")
        .arg(&launch.config)
        .args(["--log-level", launch.level])
        .env("PATH", &launch.binaries.search_path)
        // Ours, not its: it must not report to our service manager.
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output)
        // Out of reach of the terminal's Ctrl-C: we end it, after the pods' workers.
        .process_group(0);
    // SAFETY: between fork and exec only these system calls are made; they allocate nothing.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                return Err(io::Error::last_os_error());
            }
            // Our allocator does without huge pages, for this process alone. Containers shall have what the machine gives.
            libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0);
            Ok(())
        });
    }
    Ok(command)
}

fn run(
    mut command: Command,
    started: &std::sync::mpsc::SyncSender<io::Result<i32>>,
    ended: oneshot::Sender<io::Result<ExitStatus>>,
) {
    let spawned = command.spawn();
    // Closes our copy of the pipe: its reader must see the end when the child is gone.
    drop(command);
    match spawned {
        Ok(mut child) => {
            let told = started.send(Ok(child.id() as i32)).is_ok();
            let status = child.wait();
            if !told || ended.send(status).is_err() {
                tracing::debug!("containerd ended unobserved");
            }
        }
        // The receiver waits in `spawn`.
        Err(error) => drop(started.send(Err(error))),
    }
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    let Some(target) = rustix::process::Pid::from_raw(pid) else {
        return;
    };
    if let Err(error) = rustix::process::kill_process(target, signal) {
        tracing::debug!(pid, %error, "cannot signal containerd");
    }
}

/// Ends the containerd of an earlier run that was killed so hard that its child survived. Shims are not touched.
pub(super) async fn end_leftover(pid_file: &Path, config: &Path) -> Result<(), Error> {
    let Some(pid) = leftover(pid_file, config) else {
        return Ok(());
    };
    tracing::info!(pid, "ending the containerd of an earlier run");
    for (sent, grace) in [
        (rustix::process::Signal::TERM, GRACE),
        (rustix::process::Signal::KILL, GRACE),
    ] {
        signal(pid, sent);
        if tokio::time::timeout(grace, gone(pid)).await.is_ok() {
            return Ok(());
        }
    }
    Err(Error::Leftover { pid })
}

/// The process in the pid file, if it is still the containerd with our configuration.
fn leftover(pid_file: &Path, config: &Path) -> Option<i32> {
    let pid: i32 = fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let config = config.as_os_str().as_encoded_bytes();
    command
        .split(|byte| *byte == 0)
        .any(|argument| argument == config)
        .then_some(pid)
}

async fn gone(pid: i32) {
    let Some(target) = rustix::process::Pid::from_raw(pid) else {
        return;
    };
    let Ok(fd) = rustix::process::pidfd_open(target, rustix::process::PidfdFlags::NONBLOCK) else {
        return;
    };
    // SAFETY: the descriptor is owned by what registers it and stays open as long.
    match unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) } {
        Ok(fd) => drop(fd.readable().await),
        Err(error) => tracing::warn!(%error, "cannot wait for a process"),
    }
}
