//! Services to nftables rules.
