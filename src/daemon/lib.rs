//! Builds server and agent from settings: start order, supervision, drain.
