//! A child's output into a file that does not grow without bound.

use std::io;
use std::path::{Path, PathBuf};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// One file of this size and one older: at most twice as much lies on the disk.
const LIMIT: u64 = 4 << 20;

/// Copies until the other side closes. A full disk loses output but never stops the child.
pub(super) async fn copy(mut from: impl AsyncRead + Unpin, path: PathBuf) {
    let mut file = None;
    let mut buffer = vec![0; 8 << 10];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "cannot read the runtime's output any more");
                return;
            }
        };
        if let Err(error) = append(&mut file, &path, &buffer[..read]).await {
            tracing::debug!(%error, path = %path.display(), "output of the runtime is lost");
            file = None;
        }
    }
}

async fn append(file: &mut Option<(File, u64)>, path: &Path, bytes: &[u8]) -> io::Result<()> {
    if file.as_ref().is_some_and(|(_, size)| *size > LIMIT) {
        *file = None;
        tokio::fs::rename(path, older(path)).await?;
    }
    let (handle, size) = match file {
        Some(open) => open,
        None => {
            let handle = File::options().create(true).append(true).open(path).await?;
            let size = handle.metadata().await?.len();
            file.insert((handle, size))
        }
    };
    handle.write_all(bytes).await?;
    handle.flush().await?;
    *size += bytes.len() as u64;
    Ok(())
}

fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn two_files_at_most() {
        let path = std::env::temp_dir().join(format!("sampan-log-{}", std::process::id()));
        let output = vec![b'x'; 3 * LIMIT as usize + 5];
        copy(output.as_slice(), path.clone()).await;
        let sizes = [&path, &older(&path)].map(|path| path.metadata().unwrap().len());
        assert!(sizes[0] + sizes[1] < 2 * LIMIT + (64 << 10), "{sizes:?}");
        for path in [&path, &older(&path)] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
