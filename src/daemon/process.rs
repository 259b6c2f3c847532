//! What concerns the process as a whole: paths, the lock on the data directory, threads, signals.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use sampan_config::Settings;
use sampan_util::Shutdown;
use tokio::signal::unix::{SignalKind, signal};

/// Worker threads beyond this gain nothing on the machines we are made for, and each costs memory.
const MOST_WORKERS: usize = 4;

pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(2, MOST_WORKERS))
        .max_blocking_threads(64)
        .thread_keep_alive(std::time::Duration::from_secs(5))
        .thread_name("sampan")
        .enable_all()
        .build()
}

/// Relative paths mean the folder that sampan was started in.
pub(crate) fn with_absolute_paths(mut settings: Settings) -> anyhow::Result<Settings> {
    let here = std::env::current_dir().context("the working directory cannot be read")?;
    let absolute = |path: &Path| sampan_config::settings::absolute(path, &here);
    settings.data_dir = absolute(&settings.data_dir);
    settings.write_kubeconfig = absolute(&settings.write_kubeconfig);
    Ok(settings)
}

/// Every connection is an open file, and what init systems allow by default is made for programs that
/// use `select`. Raises the limit to what the administrator allows.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Whether the whole machine is going down, as far as systemd tells its services. It waits long for processes that no
/// service ends, such as containers; other init systems end them without asking.
pub(crate) fn machine_goes_down() -> bool {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return false;
    }
    let mut systemctl = Command::new("systemctl");
    match systemctl.arg("is-system-running").output() {
        Ok(output) => output.stdout.trim_ascii() == b"stopping",
        Err(error) => {
            tracing::debug!(%error, "systemctl does not run");
            false
        }
    }
}

/// Two processes on one data directory would destroy each other's work: the second one ends here.
pub(crate) fn lock(data_dir: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(data_dir).with_context(|| {
        format!(
            "cannot make the data directory {}; give another one with --data-dir",
            data_dir.display()
        )
    })?;
    let path = data_dir.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| {
            format!(
                "cannot write {}; make its disk writable, or give another folder with --data-dir",
                path.display()
            )
        })?;
    match file.try_lock() {
        Ok(()) => {
            if let Err(error) = note_process(&file) {
                // Holding it is what counts; a server whose disk is full must start, so that something can be deleted.
                tracing::error!(path = %path.display(), %error, "cannot write down which process runs");
            }
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => anyhow::bail!(
            "another sampan already runs on {}; stop it, or give another --data-dir",
            data_dir.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Whom to ask to end, for an uninstall. Always of one length and written at one stroke, over what was there: so it needs no room
/// on a disk that has filled up, and nobody reads a half of it. Readers leave the ends of lines out.
fn note_process(file: &File) -> io::Result<()> {
    const LENGTH: usize = 12;
    let mut text = std::process::id().to_string();
    while text.len() < LENGTH {
        text.push('\n');
    }
    let written = file.write_all_at(text.as_bytes(), 0);
    if written.is_err() {
        // None is better than that of a process which is gone.
        file.set_len(0)?;
    }
    written
}

/// Whether a process holds the data directory; nothing if none ever did.
pub(crate) fn is_running(data_dir: &Path) -> Option<bool> {
    let file = File::open(data_dir.join("lock")).ok()?;
    // A shared lock disturbs nobody who asks at the same time, and ends with the file.
    Some(matches!(
        file.try_lock_shared(),
        Err(TryLockError::WouldBlock)
    ))
}

/// SIGTERM and SIGINT ask for an orderly end; a second one ends at once.
pub(crate) fn shut_down_on_signals(shutdown: &Shutdown) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        tracing::info!("shutting down");
        crate::notify::notify("STOPPING=1");
        shutdown.trigger();
        next().await;
        std::process::exit(1);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_that_runs_is_seen() {
        let folder = std::env::temp_dir().join(format!("sampan-lock-{}", std::process::id()));
        assert_eq!(is_running(&folder), None);
        let held = lock(&folder).unwrap();
        assert_eq!(is_running(&folder), Some(true));
        let noted = || std::fs::read_to_string(folder.join("lock")).unwrap();
        assert_eq!(noted().trim(), std::process::id().to_string());
        assert_eq!(noted().len(), 12);
        drop(held);
        // A program that another test starts at this moment has a copy of the file until it runs.
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while is_running(&folder) != Some(false) {
            assert!(std::time::Instant::now() < limit, "the lock stays");
            std::thread::yield_now();
        }
        std::fs::write(folder.join("lock"), "4194304").unwrap();
        drop(lock(&folder).unwrap());
        assert_eq!(noted().trim(), std::process::id().to_string());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_disk_that_is_full_keeps_nobody_from_noting_nothing() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert!(note_process(&full).is_err());
    }
}
