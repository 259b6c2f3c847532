//! DELETE of a collection: lists, then deletes what it found one by one.

use sampan_api::resource::api_version;
use sampan_api::{Reason, Status};
use sampan_client::List;

use super::super::call::Call;
use super::super::codec;
use super::super::filter::Filter;
use super::delete::{DeleteOptions, delete};
use super::list;
use crate::request::Reply;

pub async fn run(mut call: Call) -> Result<Reply, Status> {
    list::validate(&call)?;
    let options = DeleteOptions::of(&mut call)?;
    let filter = Filter::of(&call)?;
    let page = list::select(&call, &filter).await?;
    call.options.dry_run.clone_from(&options.dry_run);
    let asked = call.target.namespace.clone();
    let mut items = Vec::with_capacity(page.objects.len());
    for object in &page.objects {
        if call.def.is_namespaced() {
            call.target.namespace = Some(object.namespace().to_owned());
        }
        match delete(&mut call, object.name(), &mut options.clone()).await {
            Ok(_) => {}
            Err(status) if status.is(Reason::NotFound) => {}
            Err(status) => return Err(status),
        }
        items.push(codec::serve(&call.def, &call.version, &object.bytes)?);
    }
    call.target.namespace = asked;
    Ok(Reply::List {
        kind: call.def.list_kind.to_string(),
        api_version: api_version(&call.version.group, &call.version.version),
        list: List {
            resource_version: page.revision.to_string(),
            continue_token: page.next.map(|token| token.encode()),
            remaining_item_count: page.remaining,
            items,
        },
    })
}
