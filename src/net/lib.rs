//! TLS, HTTP and upgraded-stream plumbing.
