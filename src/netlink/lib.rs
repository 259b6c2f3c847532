//! Encoders for nf_tables, conntrack, links and routes, and the one socket they are sent through.
