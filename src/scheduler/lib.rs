//! Pods to nodes: snapshot, plugins, queue, binding.
