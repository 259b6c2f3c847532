//! File changes as events, one inotify instance for the whole process (the kernel allows a user only 128).

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::collections::{BTreeSet, HashMap};
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
    /// Kept for those who ask for it.
    names: Option<Mutex<Names>>,
}

/// Files of a folder that somebody works on.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Names {
    /// Written to, and not closed yet.
    pub writing: BTreeSet<String>,
    /// Closed after writing, or moved in whole, since the last look.
    pub closed: BTreeSet<String>,
}

impl Names {
    fn hear(&mut self, name: &str, events: ReadFlags) {
        let gone = ReadFlags::MOVED_FROM | ReadFlags::DELETE;
        if events.intersects(gone) {
            self.writing.remove(name);
            self.closed.remove(name);
        } else if events.intersects(CLOSED) {
            self.writing.remove(name);
            self.closed.insert(name.to_owned());
        } else if events.contains(ReadFlags::MODIFY) {
            self.writing.insert(name.to_owned());
            self.closed.remove(name);
        }
    }
}

/// Whoever was writing is done.
const CLOSED: ReadFlags = ReadFlags::CLOSE_WRITE.union(ReadFlags::MOVED_TO);

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
        self.add(path, Listener::default())
    }

    /// Watches a folder and remembers which of its files are being written, see [`FileWatch::names`].
    pub fn watch_names(&self, folder: &Path) -> io::Result<FileWatch> {
        let names = Some(Mutex::default());
        let listener = Listener {
            names,
            ..Listener::default()
        };
        self.add(folder, listener)
    }

    fn add(&self, path: &Path, listener: Listener) -> io::Result<FileWatch> {
        let shared = Arc::clone(&self.0.shared);
        let listener = Arc::new(listener);
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

impl FileWatch {
    /// Who is being written now, and who was closed since the last call.
    pub fn names(&self) -> Names {
        let Some(names) = &self.listener.names else {
            return Names::default();
        };
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        let writing = names.writing.clone();
        Names {
            writing,
            closed: std::mem::take(&mut names.closed),
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

    fn tell(&self, descriptor: i32, events: ReadFlags, name: Option<&str>) {
        for listener in self.watches().get(&descriptor).into_iter().flatten() {
            if let (Some(names), Some(name)) = (&listener.names, name) {
                let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
                names.hear(name, events);
            }
            listener.tell(events.intersects(CLOSED));
        }
    }

    /// Events were lost: everybody looks again.
    fn tell_all(&self) {
        for listener in self.watches().values().flatten() {
            if let Some(names) = &listener.names {
                *names.lock().unwrap_or_else(PoisonError::into_inner) = Names::default();
            }
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
                    let name = event.file_name().and_then(|name| name.to_str().ok());
                    shared.tell(event.wd(), event.events(), name);
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

    #[tokio::test]
    async fn files_that_are_being_written_are_known_by_name() {
        use std::io::Write as _;
        let folder = std::env::temp_dir().join(format!("sampan-names-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let watcher = FileWatcher::new().unwrap();
        let watch = watcher.watch_names(&folder).unwrap();
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let closed = async || loop {
            watch.changed().await;
            let names = watch.names();
            if !names.closed.is_empty() {
                return names;
            }
        };
        let mut slow = std::fs::File::create(folder.join("slow")).unwrap();
        slow.write_all(b"a").unwrap();
        std::fs::write(folder.join("whole"), "b").unwrap();
        let names = closed().await;
        assert_eq!(
            (names.writing, names.closed),
            (set(&["slow"]), set(&["whole"]))
        );
        drop(slow);
        let names = closed().await;
        assert_eq!((names.writing, names.closed), (set(&[]), set(&["slow"])));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
