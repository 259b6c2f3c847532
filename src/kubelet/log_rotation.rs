//! Keeps the logs of containers from filling the disk.
//!
//! A log that has grown too large is put aside under a name with the time, and the runtime is told
//! to open a new one; the oldest of those put aside goes. Upstream counterpart: `logs/container_log_manager`.

use crate::lookup::ContainerRef;
use crate::manager::Views;
use crate::settings::Settings;
use sampan_cri::Runtime;
use sampan_cri::runtime::v1::ReopenContainerLogRequest;
use sampan_util::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

const INTERVAL: Duration = Duration::from_secs(10);

pub async fn run(settings: Arc<Settings>, views: Arc<Views>, runtime: Runtime, shutdown: Shutdown) {
    let files = settings.log_max_files;
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.wait() => return,
        }
        for container in too_large(views.running(), settings.log_max_bytes).await {
            if let Err(error) = rotate(&runtime, &container, files).await {
                let log = container.log_path.display();
                tracing::warn!(%log, %error, "a log cannot be rotated");
            }
        }
    }
}

/// Disks may be slow: nothing of them is waited for on the threads that serve everybody.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

async fn too_large(mut containers: Vec<ContainerRef>, limit: u64) -> Vec<ContainerRef> {
    let found = on_disk(move || {
        containers.retain(|container| {
            fs::metadata(&container.log_path).is_ok_and(|file| file.len() > limit)
        });
        Ok(containers)
    });
    found.await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the sizes of logs cannot be read");
        Vec::new()
    })
}

async fn rotate(runtime: &Runtime, container: &ContainerRef, files: usize) -> io::Result<()> {
    let log = container.log_path.clone();
    let aside = on_disk(move || put_log_aside(&log, files)).await?;
    let request = ReopenContainerLogRequest {
        container_id: container.container_id.clone(),
    };
    if let Err(error) = runtime.reopen_container_log(request).await {
        // The runtime still writes to the old file: give it its name back.
        let log = container.log_path.clone();
        on_disk(move || fs::rename(&aside, log)).await?;
        return Err(io::Error::other(error.to_string()));
    }
    Ok(())
}

/// Removes the oldest files of a log, so that with the one put aside now and the next one there are `files`; the new
/// name.
fn put_log_aside(log: &Path, files: usize) -> io::Result<PathBuf> {
    for old in put_aside(log)?.iter().rev().skip(files.saturating_sub(2)) {
        fs::remove_file(old)?;
    }
    let stamp = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    let aside = PathBuf::from(format!("{}.{stamp}", log.display()));
    fs::rename(log, &aside)?;
    Ok(aside)
}

/// The files that were put aside for this log, the oldest first.
pub fn put_aside(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name()) else {
        return Ok(Vec::new());
    };
    let prefix = format!("{}.", name.to_string_lossy());
    let mut files: Vec<PathBuf> = fs::read_dir(dir)?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_parts_of_the_same_run_are_listed_in_order() {
        let dir = std::env::temp_dir().join(format!("sampan-logs-{}", rand::random::<u64>()));
        fs::create_dir(&dir).unwrap();
        for name in [
            "0.log",
            "0.log.20260102-030405",
            "0.log.20260101-030405",
            "10.log.20260101-000000",
        ] {
            fs::write(dir.join(name), "").unwrap();
        }
        let names: Vec<String> = put_aside(&dir.join("0.log"))
            .unwrap()
            .iter()
            .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["0.log.20260101-030405", "0.log.20260102-030405"]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn no_more_files_are_kept_than_were_asked_for() {
        let dir = std::env::temp_dir().join(format!("sampan-logs-{}", rand::random::<u64>()));
        fs::create_dir(&dir).unwrap();
        let log = dir.join("0.log");
        for day in 1..=3 {
            fs::write(dir.join(format!("0.log.2025010{day}-000000")), "").unwrap();
        }
        fs::write(&log, "newest").unwrap();
        let aside = put_log_aside(&log, 3).unwrap();
        assert_eq!(fs::read_to_string(&aside).unwrap(), "newest");
        // With the file that the runtime opens anew there are three.
        let kept = put_aside(&log).unwrap();
        assert_eq!(kept, [dir.join("0.log.20250103-000000"), aside]);
        assert!(!log.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
