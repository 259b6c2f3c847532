//! How every component reaches the API: transports, informers, work queues, events.
//!
//! Reading order: [`transport`] is the seam to the API server, [`client`] the typed calls on it,
//! [`informer`] the shared, watched copies ([`cache`] holds them, [`reflector`] feeds them),
//! [`queue`] what turns changes into work, [`recorder`] what leaves events behind.

mod cache;
pub mod client;
pub mod https;
pub mod informer;
pub mod key;
pub mod queue;
pub mod recorder;
pub mod reflector;
pub mod testing;
pub mod transport;

pub use client::{Client, DeleteOptions, ListParams, Patch, Preconditions, Propagation, Resource};
pub use https::{Credentials, HttpsTransport};
pub use informer::{Change, Informers, Lister};
pub use key::ObjectKey;
pub use queue::{Figures, Queue};
pub use recorder::Recorder;
pub use transport::{Body, Error, EventKind, List, Request, Transport, WatchEvent, WatchStream};
