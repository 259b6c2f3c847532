//! Sampan: Kubernetes in one small executable.
