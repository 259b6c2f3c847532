//! Continue tokens of paged lists, and the texts of what is wrong with one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sampan_api::{Reason, Status};
use serde::{Deserialize, Serialize};

const VERSION: &str = "meta.k8s.io/v1";

/// Where a list goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The state that is listed; negative: whatever is newest.
    pub revision: i64,
    /// The first key that is still to come, without the list's prefix.
    pub start: String,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: i64,
    #[serde(default)]
    start: String,
}

impl Token {
    pub fn encode(&self) -> String {
        let wire = Wire {
            v: VERSION.to_owned(),
            rv: self.revision,
            start: self.start.clone(),
        };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&wire).unwrap_or_default())
    }

    pub fn decode(text: &str) -> Result<Self, Status> {
        let invalid =
            |why: String| Status::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| invalid(error.to_string()))?;
        let wire: Wire =
            serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
        if wire.v != VERSION {
            return Err(invalid(format!(
                "server does not recognize this encoded version {}",
                wire.v
            )));
        }
        if wire.rv == 0 {
            return Err(invalid(format!(
                "incorrect encoded start resourceVersion (version {VERSION})"
            )));
        }
        if wire.start.is_empty() {
            return Err(invalid(format!(
                "encoded start key empty (version {VERSION})"
            )));
        }
        let path = wire.start.strip_prefix('/').unwrap_or(&wire.start);
        let clean = path
            .split('/')
            .all(|step| !step.is_empty() && step != "." && step != "..");
        if !clean {
            return Err(invalid(wire.start));
        }
        Ok(Self {
            revision: wire.rv,
            start: path.to_owned(),
        })
    }
}

/// The state of a token is gone; `next` goes on with the newest state.
pub fn expired(next: Option<&Token>) -> Status {
    let Some(next) = next else {
        return Status::new(
            Reason::Expired,
            "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.",
        );
    };
    let mut status = Status::new(
        Reason::Expired,
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    status.continue_token = Some(next.encode());
    status
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokens_travel_and_bad_ones_are_refused() {
        let token = Token {
            revision: 7,
            start: "ns/name\0".into(),
        };
        assert_eq!(Token::decode(&token.encode()).unwrap(), token);
        let forged = Token {
            revision: 7,
            start: "../secrets".into(),
        };
        assert!(
            Token::decode(&forged.encode())
                .unwrap_err()
                .message
                .starts_with("continue key is not valid: ")
        );
        assert!(Token::decode("%%").is_err());
        assert_eq!(expired(Some(&token)).code, 410);
    }
}
