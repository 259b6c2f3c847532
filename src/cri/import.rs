//! Image archives into containerd, without a registry.
//!
//! [`archive`] gives access to the members of a tar file, [`layout`] finds the images in it (OCI layout or
//! `docker save`) and describes them as a [`Bundle`], [`store`] writes a bundle's blobs, unpacks the layers and names
//! the images so that CRI takes them as its own.

pub mod archive;
pub mod bundle;
pub mod layout;
pub mod oci;
pub mod reference;
mod store;
mod unpack;

pub use bundle::{Bundle, Data, Image, Manifest};
pub use store::Importer;

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read image archive {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("malformed image archive {}: {problem}", path.display())]
    Malformed { path: PathBuf, problem: String },
    #[error("{} holds no image for this machine ({os}/{architecture}) under a usable name", path.display(), os = "linux", architecture = oci::host_architecture())]
    NoImage { path: PathBuf },
    #[error("layer {digest} unpacked to {actual} instead of {expected}")]
    LayerDigest {
        digest: String,
        expected: String,
        actual: String,
    },
    #[error("the runtime does not show image {name} after its import")]
    NotVisible { name: String },
    #[error("containerd: {0}")]
    Runtime(#[from] crate::Error),
}
