//! The controllers, one file each, on one runtime.
