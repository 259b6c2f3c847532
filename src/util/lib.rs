//! Clock, back-off, supervised tasks and shutdown: what every layer needs and knows nothing of Kubernetes.

pub mod shutdown;

pub use shutdown::Shutdown;
