//! What the streaming server asks about the pods of this node.
//!
//! The pod workers publish their newest view; the server on 10250 reads it through [`Lookup`] and
//! knows nothing of workers.

use k8s_openapi::api::core::v1::Pod;
use std::path::PathBuf;
use std::sync::Arc;

/// A pod and the sandbox that holds its network.
#[derive(Debug, Clone)]
pub struct SandboxRef {
    pub pod: Arc<Pod>,
    pub sandbox_id: String,
}

/// One run of a container.
#[derive(Debug, Clone)]
pub struct ContainerRef {
    pub pod: Arc<Pod>,
    pub sandbox_id: String,
    pub container_id: String,
    pub running: bool,
    /// The log in CRI format; rotated parts lie beside it.
    pub log_path: PathBuf,
    pub tty: bool,
    pub stdin: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("pod \"{namespace}/{name}\" not found")]
    PodNotFound { namespace: String, name: String },
    #[error("pod \"{namespace}/{name}\" has no running sandbox")]
    SandboxNotFound { namespace: String, name: String },
    #[error("container not found (\"{container}\")")]
    ContainerNotFound { container: String },
    /// The container is known and has not run yet (or not before); worth a 400, not a 404.
    #[error("{0}")]
    NotAvailable(String),
}

pub trait Lookup: Send + Sync + 'static {
    /// All pods of this node with their newest status.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// `uid` narrows the answer where the caller knows it.
    fn sandbox(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<SandboxRef, LookupError>;

    /// The running instance of a container, for exec and attach.
    fn container(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        container: &str,
    ) -> Result<ContainerRef, LookupError>;

    /// The instance whose log is asked for: the newest, or with `previous` the one before it.
    fn log(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        previous: bool,
    ) -> Result<ContainerRef, LookupError>;
}
