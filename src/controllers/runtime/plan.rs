//! Plans: what a controller wants done, as data.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use sampan_api::Target;
use sampan_client::client::target_of;
use sampan_client::recorder::reference_to;
use sampan_client::{DeleteOptions, ObjectKey, Resource};
use serde::Serialize;
use serde_json::{Value, json};

use crate::json;

/// How a change reaches the API server; which forms a controller may use is a matter of its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The whole object as the cache has it, with the change merged in: fails if it is not current. For roles that
    /// allow no patch.
    Put,
    /// The change alone, on the condition that the object is as the cache has it.
    MergeCurrent,
    Merge,
    Strategic,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Create {
        target: Target,
        object: Value,
    },
    Write {
        target: Target,
        form: Form,
        /// A merge patch, or a strategic one.
        change: Value,
    },
    /// A write whose content is made when it is carried out.
    Make {
        target: Target,
        form: Form,
        change: Maker,
    },
    Delete {
        target: Target,
        /// Only the object with this uid is meant.
        uid: String,
        options: DeleteOptions,
    },
}

/// Makes a change that takes secrets and randomness, such as a signature: planning stays pure, and a plan that is not
/// carried out has signed nothing.
#[derive(Clone)]
pub struct Maker(Arc<dyn Fn() -> Value + Send + Sync>);

impl Maker {
    pub fn new(make: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    pub fn make(&self) -> Value {
        (self.0)()
    }
}

impl PartialEq for Maker {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maker")
    }
}

impl Action {
    /// The namespace is taken from the object.
    pub fn create<K: Resource>(object: &K) -> Self {
        Self::Create {
            target: target_of::<K>(object.metadata().namespace.as_deref(), None),
            object: json::to_value(object),
        }
    }

    pub fn write<K: Resource>(key: &ObjectKey, form: Form, change: Value) -> Self {
        Self::Write {
            target: target_of::<K>(key.namespace(), Some(&key.name)),
            form,
            change,
        }
    }

    pub fn write_status<K: Resource>(key: &ObjectKey, form: Form, change: Value) -> Self {
        Self::write_subresource::<K>(key, "status", form, change)
    }

    pub fn write_subresource<K: Resource>(
        key: &ObjectKey,
        subresource: &'static str,
        form: Form,
        change: Value,
    ) -> Self {
        let mut target = target_of::<K>(key.namespace(), Some(&key.name));
        target.subresource = Some(subresource.into());
        Self::Write {
            target,
            form,
            change,
        }
    }

    /// What makes `old` status into `new`, or `None` if they are equal.
    pub fn replace_status<K: Resource, S: Serialize>(
        key: &ObjectKey,
        old: &Option<S>,
        new: &S,
    ) -> Option<Self> {
        let old = old.as_ref().map_or_else(|| json!({}), json::to_value);
        let difference = json::difference(&old, &json::to_value(new))?;
        let change = json!({"status": difference});
        Some(Self::write_status::<K>(key, Form::Put, change))
    }

    pub fn delete<K: Resource>(object: &K) -> Self {
        Self::delete_with(object, DeleteOptions::default())
    }

    /// The precondition on the uid is added here.
    pub fn delete_with<K: Resource>(object: &K, mut options: DeleteOptions) -> Self {
        let metadata = object.metadata();
        let uid = metadata.uid.clone().unwrap_or_default();
        options.preconditions.uid = Some(uid.clone());
        Self::Delete {
            target: target_of::<K>(metadata.namespace.as_deref(), metadata.name.as_deref()),
            uid,
            options,
        }
    }

    pub fn target(&self) -> &Target {
        match self {
            Self::Create { target, .. }
            | Self::Write { target, .. }
            | Self::Make { target, .. }
            | Self::Delete { target, .. } => target,
        }
    }
}

/// An event to record.
#[derive(Debug, Clone, PartialEq)]
pub struct EventNote {
    pub about: ObjectReference,
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl EventNote {
    pub fn normal<K: Resource>(
        about: &K,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            about: reference_to(about),
            warning: false,
            reason,
            message: message.into(),
        }
    }

    pub fn warning<K: Resource>(
        about: &K,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            warning: true,
            ..Self::normal(about, reason, message)
        }
    }
}

/// An action and the events that tell how it went.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub action: Action,
    /// `{}` in the message becomes the written object's name.
    pub success: Option<EventNote>,
    /// `{}` in the message becomes the error.
    pub failure: Option<EventNote>,
    /// Only if this object, read from the server and not from a cache, is there and stays.
    pub only_while: Option<Alive>,
}

/// An object that must exist with this uid and without a deletion timestamp.
#[derive(Debug, Clone, PartialEq)]
pub struct Alive {
    pub target: Target,
    pub uid: String,
}

impl From<Action> for Step {
    fn from(action: Action) -> Self {
        Self {
            action,
            success: None,
            failure: None,
            only_while: None,
        }
    }
}

impl Step {
    #[must_use]
    pub fn only_while<K: Resource>(mut self, owner: &K) -> Self {
        let metadata = owner.metadata();
        self.only_while = Some(Alive {
            target: target_of::<K>(metadata.namespace.as_deref(), metadata.name.as_deref()),
            uid: metadata.uid.clone().unwrap_or_default(),
        });
        self
    }

    #[must_use]
    pub fn on_success(mut self, note: EventNote) -> Self {
        self.success = Some(note);
        self
    }

    #[must_use]
    pub fn on_failure(mut self, note: EventNote) -> Self {
        self.failure = Some(note);
        self
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// In order; neighbours that create, or delete, objects of one resource run side by side.
    pub actions: Vec<Step>,
    /// Written last, also when actions failed.
    pub status: Option<Step>,
    pub events: Vec<EventNote>,
    pub requeue_after: Option<Duration>,
}

impl Plan {
    pub fn is_nothing(&self) -> bool {
        self.actions.is_empty() && self.status.is_none() && self.events.is_empty()
    }

    pub fn push(&mut self, step: impl Into<Step>) {
        self.actions.push(step.into());
    }

    /// Asks to be called again after a time; the shortest wish counts.
    pub fn requeue_within(&mut self, after: Duration) {
        let after = after.max(Duration::from_millis(1));
        self.requeue_after = Some(self.requeue_after.map_or(after, |known| known.min(after)));
    }

    /// The plan's lines, for tests.
    pub fn lines(&self) -> Vec<String> {
        let steps = self.actions.iter().chain(&self.status);
        steps.map(|step| step.action.to_string()).collect()
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self {
            Self::Create { .. } => "create",
            Self::Write { .. } | Self::Make { .. } => "write",
            Self::Delete { .. } => "delete",
        };
        let target = self.target();
        write!(f, "{verb} {}", target.resource.resource)?;
        if let Some(subresource) = &target.subresource {
            write!(f, "/{subresource}")?;
        }
        f.write_str(" ")?;
        if let Some(namespace) = &target.namespace {
            write!(f, "{namespace}/")?;
        }
        match self {
            Self::Create { object, .. } => f.write_str(created_name(object)),
            Self::Write { change, .. } => {
                write!(f, "{} {change}", target.name.as_deref().unwrap_or_default())
            }
            Self::Make { .. } | Self::Delete { .. } => {
                f.write_str(target.name.as_deref().unwrap_or_default())
            }
        }
    }
}

fn created_name(object: &Value) -> &str {
    let text = |field: &str| object["metadata"][field].as_str();
    text("name")
        .or_else(|| text("generateName"))
        .unwrap_or_default()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("; "))?;
        for event in &self.events {
            write!(f, "; event {}: {}", event.reason, event.message)?;
        }
        if let Some(after) = self.requeue_after {
            write!(f, "; again in {after:?}")?;
        }
        Ok(())
    }
}
