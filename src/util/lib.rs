//! Clock, back-off, supervised tasks and shutdown: what every layer needs and knows nothing of Kubernetes.

pub mod backoff;
pub mod chain;
pub mod clock;
pub mod file;
pub mod inbox;
pub mod part;
pub mod shutdown;
pub mod task;

pub use backoff::Backoff;
pub use chain::chain;
pub use clock::Clock;
pub use inbox::Inbox;
pub use part::Parts;
pub use shutdown::Shutdown;
