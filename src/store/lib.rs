//! The revisioned key-value log with watch. Bytes only; it has never heard of Kubernetes.
