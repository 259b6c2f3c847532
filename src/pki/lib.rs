//! Certificates, keys, tokens and kubeconfigs: everything that proves who somebody is.
//!
//! Synchronous and small. Time is an argument (`SystemTime`) everywhere; files are written atomically
//! and private keys are readable by their owner only. Certificates are encoded here ([`certificate`])
//! because the subject of a certificate request must be copied byte for byte: several organizations
//! in one subject are ordinary in Kubernetes (they are groups).

pub mod authority;
pub mod certificate;
mod der;
pub mod error;
pub mod files;
pub mod join;
pub mod jws;
pub mod key;
pub mod kubeconfig;
pub mod node_name;
pub mod request;
pub mod server;
pub mod usage;

pub use authority::{Authority, Identity, LeafSpec};
pub use certificate::CertificateInfo;
pub use error::Error;
pub use join::JoinToken;
pub use jws::{TokenSigner, TokenVerifier};
pub use key::PrivateKey;
pub use kubeconfig::{Credentials, Kubeconfig};
pub use request::{CertificateRequest, RequestSpec};
pub use server::{ServerNames, ServerPki};
pub use usage::Usage;
