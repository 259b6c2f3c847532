//! How every component reaches the API: transports, informers, work queues, events.

pub mod transport;

pub use transport::{Body, Error, EventKind, List, Request, Transport, WatchEvent, WatchStream};
