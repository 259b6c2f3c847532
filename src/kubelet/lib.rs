//! Pods to containers: planner, workers, volumes, probes, status, node registration, streaming server.
