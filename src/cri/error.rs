//! What can go wrong between us and the runtime.

use std::path::PathBuf;
use tonic::Code;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot connect to the container runtime at {}", socket.display())]
    Connect {
        socket: PathBuf,
        #[source]
        source: tonic::transport::Error,
    },
    /// The runtime answered a call with an error; `message` is its own text.
    #[error("{message}")]
    Call {
        call: &'static str,
        code: Code,
        message: String,
    },
}

impl Error {
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call { code, .. } => Some(*code),
            Self::Connect { .. } => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    pub fn is_already_exists(&self) -> bool {
        self.code() == Some(Code::AlreadyExists)
    }

    /// The runtime is older than the call (containerd 1.6 lacks several CRI calls).
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Some(Code::Unimplemented)
    }

    pub(crate) fn call(call: &'static str, status: tonic::Status) -> Self {
        Self::Call {
            call,
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}
