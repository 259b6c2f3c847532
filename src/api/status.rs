//! `Status`: the one form in which the API reports failure.

use serde::{Deserialize, Serialize};

/// Machine-readable causes of a failure, as clients compare them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Reason {
    #[default]
    #[serde(rename = "")]
    Unknown,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Gone,
    Expired,
    Invalid,
    ServerTimeout,
    StoreReadError,
    Timeout,
    TooManyRequests,
    MethodNotAllowed,
    NotAcceptable,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    InternalError,
    ServiceUnavailable,
}

impl Reason {
    /// The HTTP status code that goes with the reason.
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Gone | Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::Unknown | Self::InternalError | Self::ServerTimeout | Self::StoreReadError => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }
}

/// One field error, or one other detail, of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Cause {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// `metav1.Status` without its envelope; [`Status::to_json`] adds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Status {
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub reason: Reason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<Details>>,
    #[serde(default)]
    pub code: u16,
    /// `metadata.continue`: how an expired list may go on.
    #[serde(default, skip)]
    pub continue_token: Option<String>,
    /// Texts of `Warning` headers; no part of the document.
    #[serde(default, skip)]
    pub warnings: Vec<String>,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl Status {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: reason.code(),
            reason,
            details: None,
            continue_token: None,
            warnings: Vec::new(),
        }
    }

    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    pub fn internal(message: impl std::fmt::Display) -> Self {
        let text = message.to_string();
        Self::new(
            Reason::InternalError,
            format!("Internal error occurred: {text}"),
        )
        .with_details(Details {
            causes: vec![Cause {
                message: text,
                ..Cause::default()
            }],
            ..Details::default()
        })
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(
            Reason::NotFound,
            format!("{} \"{name}\" not found", qualified(resource, group)),
        )
        .with_details(Self::subject(group, resource, name))
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(
            Reason::AlreadyExists,
            format!("{} \"{name}\" already exists", qualified(resource, group)),
        )
        .with_details(Self::subject(group, resource, name))
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        Self::new(
            Reason::Conflict,
            format!(
                "Operation cannot be fulfilled on {} \"{name}\": {why}",
                qualified(resource, group)
            ),
        )
        .with_details(Self::subject(group, resource, name))
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let what = qualified(resource, group);
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} \"{name}\" is forbidden: {why}")
        };
        Self::new(Reason::Forbidden, message).with_details(Self::subject(group, resource, name))
    }

    fn subject(group: &str, resource: &str, name: &str) -> Details {
        Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..Details::default()
        }
    }

    /// The document sent to a client.
    pub fn to_json(&self) -> serde_json::Value {
        let mut document = serde_json::json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if let Some(map) = document.as_object_mut() {
            if self.reason != Reason::Unknown {
                map.insert("reason".to_owned(), serde_json::json!(self.reason));
            }
            if let Some(token) = &self.continue_token {
                map.insert(
                    "metadata".to_owned(),
                    serde_json::json!({"continue": token}),
                );
            }
            if let Some(details) = &self.details {
                map.insert("details".to_owned(), serde_json::json!(details));
            }
        }
        document
    }

    pub fn is(&self, reason: Reason) -> bool {
        self.reason == reason
    }
}

/// `deployments.apps`, or `pods` for the core group: how messages name a resource.
pub fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}
