//! Live objects as authentication and authorization need them: from memory, without waiting.

use std::sync::Arc;

use bytes::Bytes;

/// One object has changed; both are JSON with `kind` and `apiVersion` in the storage version.
#[derive(Debug, Clone)]
pub struct ObjectChange {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    pub old: Option<Bytes>,
    /// `None`: it was deleted.
    pub new: Option<Bytes>,
}

/// Called in the order of commits, before the writer is answered; must be quick and must not write.
pub type ChangeHandler = Arc<dyn Fn(&ObjectChange) + Send + Sync>;

/// The registry's cache is one.
pub trait ObjectSource: Send + Sync + 'static {
    /// The object as it is now; `namespace` is empty for cluster-scoped resources.
    fn object(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes>;

    /// Replays what exists as changes without `old`, then reports every change from then on,
    /// leaving none out between the two.
    fn subscribe(&self, group: &str, resource: &str, handler: ChangeHandler);
}
