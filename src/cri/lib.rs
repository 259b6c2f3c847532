//! CRI and containerd protocol code, the connection to the runtime, image import.
