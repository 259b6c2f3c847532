//! The journal of every change made to the host, each with its inverse.
