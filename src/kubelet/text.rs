//! Small renderings of errors and names in upstream's words.

use sampan_cri::Error;

/// A failed call to the runtime as Go's gRPC prints it.
pub fn grpc(error: &Error) -> String {
    match error {
        Error::Call { code, message, .. } => {
            format!("rpc error: code = {code:?} desc = {message}")
        }
        Error::Connect { .. } => {
            format!(
                "rpc error: code = Unavailable desc = connection error: desc = {:?}",
                error.to_string()
            )
        }
    }
}

/// Just the runtime's own words.
pub fn message(error: &Error) -> String {
    error.to_string()
}
