//! Serializes what touches a pod's files, and ends it for good when they are released.

use std::sync::{Arc, Mutex, PoisonError};

/// Work on the disk goes on even if whoever asked for it is gone; so it must be known that nothing
/// is mounted any more once the pod's mounts were taken down.
#[derive(Debug, Default)]
pub struct Disk(Mutex<bool>);

impl Disk {
    /// Runs blocking work; `None` if the files have been released.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let disk = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let released = disk.0.lock().unwrap_or_else(PoisonError::into_inner);
            (!*released).then(work)
        });
        done.await.ok().flatten()
    }

    /// Runs the work that releases the files; if it succeeds nothing runs after it.
    pub async fn release<E: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Option<Result<(), E>> {
        let disk = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let mut released = disk.0.lock().unwrap_or_else(PoisonError::into_inner);
            let result = work();
            *released = result.is_ok();
            result
        });
        done.await.ok()
    }
}
