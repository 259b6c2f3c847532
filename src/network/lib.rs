//! Pod network: CNI plugin, addresses, routes, masquerade.
