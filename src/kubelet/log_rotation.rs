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
        for container in views.running() {
            let size = fs::metadata(&container.log_path).map_or(0, |m| m.len());
            if size > settings.log_max_bytes
                && let Err(error) = rotate(&runtime, &container, files).await
            {
                let log = container.log_path.display();
                tracing::warn!(%log, %error, "a log cannot be rotated");
            }
        }
    }
}

async fn rotate(runtime: &Runtime, container: &ContainerRef, files: usize) -> io::Result<()> {
    let log = &container.log_path;
    for old in put_aside(log)?.iter().rev().skip(files.saturating_sub(2)) {
        fs::remove_file(old)?;
    }
    let stamp = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    let aside = PathBuf::from(format!("{}.{stamp}", log.display()));
    fs::rename(log, &aside)?;
    let request = ReopenContainerLogRequest {
        container_id: container.container_id.clone(),
    };
    if let Err(error) = runtime.reopen_container_log(request).await {
        // The runtime still writes to the old file: give it its name back.
        fs::rename(&aside, log)?;
        return Err(io::Error::other(error.to_string()));
    }
    Ok(())
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
}
