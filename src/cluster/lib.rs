//! Join, node identity and certificate life cycle.
