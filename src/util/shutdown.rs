//! One signal that everything which runs listens to.

use tokio_util::sync::CancellationToken;

/// Cloned into every task; a child is shut down with its parent, or alone.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn trigger(&self) {
        self.0.cancel();
    }

    pub fn is_triggered(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Returns once shutdown was asked for.
    pub async fn wait(&self) {
        self.0.cancelled().await;
    }

    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }
}
