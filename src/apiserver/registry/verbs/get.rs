//! GET of one object: the cached bytes.

use sampan_api::Status;

use super::super::call::Call;
use super::super::codec;
use super::list::{parse_revision, wait_for};
use crate::request::Reply;

pub async fn run(call: Call) -> Result<Reply, Status> {
    if let Some(version) = call.options.resource_version.as_deref()
        && !version.is_empty()
        && version != "0"
    {
        wait_for(&call, parse_revision(version)?).await?;
    }
    let name = call.name();
    let object = call
        .bucket()
        .get(&call.key(name))
        .ok_or_else(|| call.not_found(name))?;
    Ok(Reply::Object {
        code: 200,
        object: codec::serve(&call.def, &call.version, &object.bytes)?,
        warnings: call.warnings.take(),
    })
}
