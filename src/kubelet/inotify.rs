//! File changes as events, one inotify instance for the whole process (the kernel allows a user only 128).

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Files written, created, moved, removed: what any watcher here wants to hear of.
const FLAGS: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF);

/// The instance. Cheap to clone; the last clone ends it.
#[derive(Debug, Clone)]
pub struct FileWatcher(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    fd: AsyncFd<OwnedFd>,
    watches: Mutex<HashMap<i32, Vec<Arc<Listener>>>>,
}

#[derive(Debug, Default)]
struct Listener {
    notify: Notify,
    closed: AtomicBool,
}

/// Says that something changed and hardly what: whoever listens looks again.
#[derive(Debug)]
pub struct FileWatch {
    shared: Arc<Shared>,
    descriptor: i32,
    listener: Arc<Listener>,
}

/// What happened since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Somebody who had been writing closed the file (or one of the folder), or moved a whole one in.
    pub closed: bool,
}

impl FileWatcher {
    /// Must be called within a tokio runtime.
    pub fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let shared = Arc::new(Shared {
            // SAFETY: the descriptor is owned by what registers it and stays open as long.
            fd: unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?,
            watches: Mutex::default(),
        });
        let reader = tokio::spawn(read(Arc::clone(&shared)));
        Ok(Self(Arc::new(Handle { shared, reader })))
    }

    /// Watches a file, or a folder and what is directly in it.
    pub fn watch(&self, path: &Path) -> io::Result<FileWatch> {
        let shared = Arc::clone(&self.0.shared);
        let listener = Arc::new(Listener::default());
        let descriptor = {
            let mut watches = shared.watches();
            let descriptor = inotify::add_watch(shared.fd.get_ref(), path, FLAGS)?;
            watches
                .entry(descriptor)
                .or_default()
                .push(Arc::clone(&listener));
            descriptor
        };
        Ok(FileWatch {
            shared,
            descriptor,
            listener,
        })
    }
}

impl FileWatch {
    /// Returns at once if something changed since the last call.
    pub async fn changed(&self) -> Changed {
        self.listener.notify.notified().await;
        Changed {
            closed: self.listener.closed.swap(false, Ordering::AcqRel),
        }
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        let mut watches = self.shared.watches();
        let Some(listeners) = watches.get_mut(&self.descriptor) else {
            return;
        };
        listeners.retain(|listener| !Arc::ptr_eq(listener, &self.listener));
        if listeners.is_empty() {
            watches.remove(&self.descriptor);
            if let Err(error) = inotify::remove_watch(self.shared.fd.get_ref(), self.descriptor) {
                // The kernel drops a watch by itself when its file is deleted.
                tracing::trace!(%error, "file watch was gone already");
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Shared {
    fn watches(&self) -> MutexGuard<'_, HashMap<i32, Vec<Arc<Listener>>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, descriptor: i32, closed: bool) {
        for listener in self.watches().get(&descriptor).into_iter().flatten() {
            listener.tell(closed);
        }
    }

    /// Events were lost: everybody looks again.
    fn tell_all(&self) {
        for listener in self.watches().values().flatten() {
            listener.tell(true);
        }
    }
}

impl Listener {
    fn tell(&self, closed: bool) {
        if closed {
            self.closed.store(true, Ordering::Release);
        }
        self.notify.notify_one();
    }
}

async fn read(shared: Arc<Shared>) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    loop {
        let Ok(mut ready) = shared.fd.readable().await else {
            return;
        };
        let mut events = inotify::Reader::new(shared.fd.get_ref(), &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    shared.tell_all();
                }
                Ok(event) => {
                    let closed = event
                        .events()
                        .intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_TO);
                    shared.tell(event.wd(), closed);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => {
                    tracing::error!(%error, "file changes are not seen any more");
                    return;
                }
            }
        }
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn each_listener_hears_of_a_change_and_none_of_silence() {
        let path = std::env::temp_dir().join(format!("sampan-inotify-{}", std::process::id()));
        std::fs::write(&path, "a").unwrap();
        let watcher = FileWatcher::new().unwrap();
        let first = watcher.watch(&path).unwrap();
        let second = watcher.watch(&path).unwrap();
        std::fs::write(&path, "b").unwrap();
        while !first.changed().await.closed {}
        second.changed().await;
        drop(first);
        std::fs::write(&path, "c").unwrap();
        second.changed().await;
        while tokio::time::timeout(Duration::from_millis(20), second.changed())
            .await
            .is_ok()
        {}
        drop(second);
        assert!(watcher.0.shared.watches().is_empty());
        std::fs::remove_file(&path).unwrap();
    }
}
