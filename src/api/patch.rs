//! Patches: JSON patch, JSON merge patch and strategic merge patch, on trees.
//! Server-side apply is in [`crate::managed`].

use serde_json::Value;

use crate::field::{ErrorList, Path};
use crate::status::{Cause, Details, Reason, Status};

mod json;
mod merge;
mod strategic;

pub use json::apply as apply_json;
pub use merge::apply as apply_merge;
pub use strategic::apply as apply_strategic;

/// The most operations a JSON patch may have.
pub const MAX_OPERATIONS: usize = 10_000;
/// What all `copy` operations of one JSON patch may add up to, in bytes of JSON.
pub const MAX_COPIED: usize = 3 << 20;
/// How deep below the root an operation may put something, its own depth included.
pub const MAX_DEPTH: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is not one.
    #[error("error decoding patch: {0}")]
    Malformed(String),
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    /// The patch does not fit the object.
    #[error("{0}")]
    Unfitting(String),
    /// A strategic merge patch that contradicts itself or its type.
    #[error("{0}")]
    BadDirective(String),
    #[error("strategic merge patch format is not supported")]
    Unsupported,
}

impl PatchError {
    pub fn to_status(&self) -> Status {
        match self {
            Self::Malformed(_) => Status::bad_request(self.to_string()),
            Self::TooManyOperations(_) => Status::new(
                Reason::RequestEntityTooLarge,
                format!("Request entity too large: {self}"),
            ),
            Self::Unfitting(_) => Status::new(
                Reason::Invalid,
                "the server rejected our request due to an error in our request",
            )
            .with_details(Details::default()),
            Self::BadDirective(_) => Status::new(Reason::Unknown, self.to_string()),
            Self::Unsupported => Status::new(Reason::UnsupportedMediaType, self.to_string()),
        }
    }
}

/// The answer to a patch whose result is no object of its kind.
pub fn bad_result(shown: &Value, why: &str) -> Status {
    let mut errors = ErrorList::new();
    errors.invalid(&Path::new("patch"), shown.to_string(), why);
    let mut status = errors.to_status("", "", "");
    // The cause is all that the details hold.
    if let Some(details) = &mut status.details {
        let causes: Vec<Cause> = std::mem::take(&mut details.causes);
        **details = Details {
            causes,
            ..Details::default()
        };
    }
    status
}
