//! PUT: replaces an object, or its status.

use sampan_api::Status;
use serde_json::Value;

use super::super::call::Call;
use super::super::codec;
use super::super::write::Source;
use super::create::validate_options;
use crate::request::Reply;

pub async fn run(mut call: Call) -> Result<Reply, Status> {
    validate_options(&call, "UpdateOptions")?;
    let object = codec::decode(&mut call)?;
    let creates = call.subresource().is_empty() && call.def.strategy.allow_create_on_update();
    let mut source = Replace { object, creates };
    let written = call.update(&mut source).await?;
    Ok(Reply::Object {
        code: if written.created { 201 } else { 200 },
        object: codec::serve(&call.def, &call.version, &written.bytes)?,
        warnings: call.warnings.take(),
    })
}

struct Replace {
    object: Value,
    creates: bool,
}

impl Source for Replace {
    fn make(&mut self, _: &mut Call, _: Option<&Value>) -> Result<Value, Status> {
        Ok(self.object.clone())
    }

    fn creates(&self) -> bool {
        self.creates
    }
}
