//! Scale: the number of replicas of anything that has one, in one form.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sampan_api::field::{ErrorList, Path};
use sampan_api::meta::{self, at, get, integer, text};
use sampan_api::resource::PatchType;
use sampan_api::{ResourceDef, Selector, Status, Verb, patch, schema};
use sampan_client::Body;
use serde_json::{Value, json};

use super::Plain;
use crate::registry::call::Call;
use crate::registry::codec;
use crate::registry::hooks::Subresource;
use crate::registry::server::{ANY, ApiServer};
use crate::registry::write::{MODIFIED, Source};
use crate::request::{ApiRequest, Reply};

mod owners;

const GROUP: &str = "autoscaling";

pub(super) struct Scale;

impl Subresource for Scale {
    fn serves(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        vec![
            ("", "replicationcontrollers", "scale"),
            ("apps", "deployments", "scale"),
            ("apps", "replicasets", "scale"),
            ("apps", "statefulsets", "scale"),
            (ANY, ANY, "scale"),
        ]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        Box::pin(async move {
            let mut plain =
                Plain::new(server, def, request)?.only(&[Verb::Get, Verb::Update, Verb::Patch])?;
            if plain.call.verb == Verb::Get {
                let scale = places(&plain.call).scale_of(&plain.current()?)?;
                return Ok(plain.reply(200, &scale));
            }
            let places = places(&plain.call);
            let mut source = Rescale {
                change: change(&mut plain)?,
                places,
            };
            let written = plain.call.update(&mut source).await?;
            let object = codec::parse(&written.bytes)?;
            let scale = source.places.scale_of(&object)?;
            Ok(plain.reply(200, &scale))
        })
    }
}

/// What the client wants: a scale, or a change of one.
enum Change {
    Put(Value),
    Patch(PatchType, Value),
}

fn change(plain: &mut Plain) -> Result<Change, Status> {
    if plain.call.verb == Verb::Update {
        let scale = plain.body(GROUP, "v1", "Scale")?;
        let (name, wanted) = (plain.call.name(), text(&scale, &["metadata", "name"]));
        if !wanted.is_empty() && wanted != name {
            return Err(Status::bad_request(format!(
                "the name of the object ({wanted}) does not match the name on the URL ({name})"
            )));
        }
        return Ok(Change::Put(scale));
    }
    match std::mem::replace(&mut plain.call.body, Body::None) {
        Body::Patch(kind, patch) => Ok(Change::Patch(kind, patch)),
        _ => Err(Status::bad_request("the request needs a patch in its body")),
    }
}

/// Where an object keeps what its scale shows.
struct Places {
    replicas: Vec<String>,
    ready: Vec<String>,
    /// A selector as text; built-in kinds have one in their spec instead.
    selector: Option<Vec<String>>,
    custom: bool,
}

fn steps(path: &str) -> Vec<String> {
    path.trim_start_matches('.')
        .split('.')
        .map(str::to_owned)
        .collect()
}

/// Those of the kind; a definition names its own.
fn places(call: &Call) -> Places {
    let custom = call.def.custom.as_ref();
    let scale = custom
        .and_then(|custom| custom.of(&call.version.version))
        .map(|version| &version.scale);
    let path = |key: &str, usual: &str| match scale {
        Some(scale) => steps(text(scale, &[key])),
        None => steps(usual),
    };
    let selector = scale.map(|scale| text(scale, &["labelSelectorPath"]));
    Places {
        replicas: path("specReplicasPath", ".spec.replicas"),
        ready: path("statusReplicasPath", ".status.replicas"),
        selector: selector.filter(|path| !path.is_empty()).map(steps),
        custom: custom.is_some(),
    }
}

fn path(steps: &[String]) -> Vec<&str> {
    steps.iter().map(String::as_str).collect()
}

impl Places {
    /// An object as its scale.
    fn scale_of(&self, object: &Value) -> Result<Value, Status> {
        let replicas = integer(object, &path(&self.replicas));
        if self.custom && replicas.is_none() {
            let field = format!(".{}", self.replicas.join("."));
            return Err(Status::internal(format!(
                "the spec replicas field {field:?} does not exist"
            )));
        }
        let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {}, "spec": {},
            "status": {"replicas": integer(object, &path(&self.ready)).unwrap_or(0)}});
        for key in [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
        ] {
            let value = at(object, &["metadata", key]);
            if !value.is_null() {
                meta::set(&mut scale, &["metadata", key], value.clone());
            }
        }
        if let Some(replicas) = replicas.filter(|count| *count != 0) {
            meta::set(&mut scale, &["spec", "replicas"], replicas);
        }
        let selector = match &self.selector {
            Some(steps) => text(object, &path(steps)).to_owned(),
            None if self.custom => String::new(),
            None => selector_text(at(object, &["spec", "selector"])),
        };
        if !selector.is_empty() {
            meta::set(&mut scale, &["status", "selector"], selector);
        }
        Ok(scale)
    }
}

/// A selector as text; a plain map of labels selects these labels.
fn selector_text(selector: &Value) -> String {
    let structured =
        !get(selector, "matchLabels").is_null() || !get(selector, "matchExpressions").is_null();
    let object = if structured {
        selector.clone()
    } else {
        json!({"matchLabels": selector})
    };
    Selector::from_object(&object)
        .map(|selector| selector.to_string())
        .unwrap_or_default()
}

struct Rescale {
    change: Change,
    places: Places,
}

impl Source for Rescale {
    fn make(&mut self, call: &mut Call, old: Option<&Value>) -> Result<Value, Status> {
        let Some(old) = old else {
            return Err(call.not_found(call.name()));
        };
        let before = self.places.scale_of(old)?;
        let mut object = old.clone();
        let scale = match &self.change {
            Change::Put(scale) => scale.clone(),
            Change::Patch(PatchType::Apply, config) => owners::apply(
                call,
                &mut object,
                before.clone(),
                config,
                &self.places.replicas,
            )?,
            Change::Patch(kind, patch) => patched(*kind, before.clone(), patch)?,
        };
        check(&scale, &before, call, &self.places)?;
        let replicas = integer(&scale, &["spec", "replicas"]).unwrap_or(0);
        meta::set(&mut object, &path(&self.places.replicas), replicas);
        Ok(object)
    }

    /// Those of an apply are the applier's, and set with the rest.
    fn tracks_fields(&self) -> bool {
        matches!(self.change, Change::Patch(PatchType::Apply, _))
    }

    fn creates(&self) -> bool {
        false
    }
}

fn patched(kind: PatchType, mut scale: Value, patch: &Value) -> Result<Value, Status> {
    let Some(schema) = schema::of_kind(GROUP, "v1", "Scale") else {
        return Err(Status::internal("the scale has no type"));
    };
    match kind {
        PatchType::Json => patch::apply_json(&mut scale, patch),
        PatchType::Strategic => patch::apply_strategic(&mut scale, patch.clone(), schema),
        PatchType::Merge | PatchType::Apply => patch::apply_merge(&mut scale, patch.clone()),
    }
    .map_err(|error| error.to_status())?;
    let shown = scale.clone();
    schema
        .decode(&mut scale)
        .map_err(|error| patch::bad_result(&shown, &error.to_string()))?;
    Ok(scale)
}

fn check(scale: &Value, before: &Value, call: &Call, places: &Places) -> Result<(), Status> {
    let version = text(scale, &["metadata", "resourceVersion"]);
    if !version.is_empty() && version != text(before, &["metadata", "resourceVersion"]) {
        return Err(call.conflict(call.name(), MODIFIED));
    }
    let mut errors = ErrorList::new();
    let replicas = integer(scale, &["spec", "replicas"]).unwrap_or(0);
    if replicas < 0 && places.custom {
        let field = format!(".{}", places.replicas.join("."));
        errors.invalid(
            &Path::new(&field),
            replicas,
            "should be a non-negative integer",
        );
        return errors.into_result(call.def.group(), &call.def.kind, call.name());
    }
    if replicas < 0 {
        let spec = Path::new("spec");
        errors.invalid(
            &spec.child("replicas"),
            replicas,
            "must be greater than or equal to 0",
        );
    }
    errors.into_result(GROUP, "Scale", call.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales() {
        let deployment = json!({"metadata": {"name": "d", "labels": {"x": "y"}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}}, "status": {"replicas": 1}});
        let places = Places {
            replicas: steps(".spec.replicas"),
            ready: steps(".status.replicas"),
            selector: None,
            custom: false,
        };
        let scale = places.scale_of(&deployment).unwrap_or_default();
        assert_eq!(scale["spec"], json!({"replicas": 2}));
        assert_eq!(scale["status"], json!({"replicas": 1, "selector": "app=a"}));
        assert_eq!(scale["metadata"], json!({"name": "d"}));
        assert_eq!(selector_text(&json!({"app": "a"})), "app=a");
    }
}
