//! Cluster DNS answered from informers.
