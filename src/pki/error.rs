//! What can go wrong with keys and certificates.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}: {source}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write {path}: {source}")]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("no {what} in the PEM text")]
    NoPem { what: &'static str },
    #[error("the private key cannot be used: {reason}")]
    Key { reason: String },
    #[error("the certificate cannot be read: {reason}")]
    Certificate { reason: String },
    #[error("the certificate request cannot be read: {reason}")]
    Request { reason: String },
    #[error("the certificate request is not signed by its own key")]
    RequestSignature,
    #[error("unknown key usage {0:?}")]
    UnknownUsage(String),
    #[error("the random number generator failed")]
    Random,
    #[error(
        "no certificate can be made for a time after the year 9999; is this machine's clock right?"
    )]
    Date,
    #[error("the key cannot sign")]
    Sign,
    #[error("not a token: {reason}")]
    Token { reason: &'static str },
    #[error(
        "this is not a join token; one looks like K10<sha256>::server:<password> or is the password alone"
    )]
    JoinToken,
    #[error(
        "{path} and its key do not belong together: remove both to have them made again, or restore them"
    )]
    Mismatch { path: PathBuf },
}
