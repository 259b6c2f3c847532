//! PATCH: the current object, changed as the patch says.

use sampan_api::field::{ErrorList, Path};
use sampan_api::patch::bad_result;
use sampan_api::resource::PatchType;
use sampan_api::{Status, convert};
use sampan_client::Body;
use serde_json::Value;

use super::super::call::Call;
use super::super::codec;
use super::super::patching;
use super::super::write::Source;
use super::create::validate_options;
use crate::request::Reply;

pub async fn run(mut call: Call) -> Result<Reply, Status> {
    let Body::Patch(kind, patch) = std::mem::replace(&mut call.body, Body::None) else {
        return Err(Status::bad_request("the request needs a patch in its body"));
    };
    check_options(&call, kind)?;
    let written = if kind == PatchType::Apply {
        call.update(&mut patching::Apply::new(patch)).await?
    } else {
        call.update(&mut Patched { kind, patch }).await?
    };
    Ok(Reply::Object {
        code: if written.created { 201 } else { 200 },
        object: codec::serve(&call.def, &call.version, &written.bytes)?,
        warnings: call.warnings.take(),
    })
}

fn check_options(call: &Call, kind: PatchType) -> Result<(), Status> {
    let mut errors = ErrorList::new();
    if kind == PatchType::Apply {
        if call
            .options
            .field_manager
            .as_deref()
            .unwrap_or_default()
            .is_empty()
        {
            errors.required(&Path::new("fieldManager"), "is required for apply patch");
        }
    } else if call.options.force.is_some() {
        errors.forbidden(
            &Path::new("force"),
            "may not be specified for non-apply patch",
        );
    }
    errors.into_result("meta.k8s.io", "PatchOptions", "")?;
    validate_options(call, "PatchOptions")
}

struct Patched {
    kind: PatchType,
    patch: Value,
}

impl Source for Patched {
    fn make(&mut self, call: &mut Call, old: Option<&Value>) -> Result<Value, Status> {
        let Some(old) = old else {
            return Err(call.not_found(call.name()));
        };
        let mut object = old.clone();
        convert::from_storage(&call.def, &call.version, &mut object);
        patching::apply(call, self.kind, &mut object, &self.patch)?;
        patching::check_kind(call, &object)?;
        // Strategic merge works on typed objects, the others on documents that are read again.
        let shown = match self.kind {
            PatchType::Strategic => self.patch.clone(),
            _ => object.clone(),
        };
        let unknown = codec::to_storage(call, &mut object).map_err(|error| match self.kind {
            PatchType::Strategic => bad_result(&shown, &error.of_tree),
            _ => bad_result(&shown, &error.text),
        })?;
        patching::strictness(call, &shown, unknown)?;
        Ok(object)
    }

    fn creates(&self) -> bool {
        false
    }
}
