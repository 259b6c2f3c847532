//! Join, node identity and certificate life cycle.

pub mod identity;
pub mod info;
pub mod join;
pub mod node_name;
pub mod renew;
pub mod servers;
pub mod token;
