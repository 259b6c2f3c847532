//! What others tell a worker: kept as state, so that many messages are one wake-up.

use crate::plan::{ResizePending, Verdict};
use crate::probes;
use crate::start::Progress;
use k8s_openapi::api::core::v1::Pod;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct Mail {
    /// The newest form of the pod.
    pub pod: Option<Arc<Pod>>,
    /// The copy in the API of a static pod; `None` within if there is none any more.
    pub mirror: Option<Option<Arc<Pod>>>,
    pub is_gone: bool,
    pub verdict: Option<Verdict>,
    /// Whether the node can give what the pod asks for now.
    pub resize: Option<Option<ResizePending>>,
    /// The runtime holds something else than the worker saw.
    pub runtime_changed: bool,
    /// An object that the pod shows has changed.
    pub objects_changed: bool,
    pub progress: Vec<Progress>,
    pub probes: Vec<(String, probes::Kind, bool)>,
}

#[derive(Debug, Default)]
pub struct Mailbox {
    mail: Mutex<Mail>,
    notify: Notify,
}

impl Mailbox {
    /// Changes what lies in the box and wakes the worker.
    pub fn put(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.locked());
        self.notify.notify_one();
    }

    pub fn take(&self) -> Mail {
        std::mem::take(&mut *self.locked())
    }

    pub async fn notified(&self) {
        self.notify.notified().await;
    }

    fn locked(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
