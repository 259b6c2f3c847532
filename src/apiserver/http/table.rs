//! `as=Table`: lists and objects as rows for people.

use bytes::Bytes;
use sampan_api::ResourceDef;
use sampan_client::List;
use serde_json::{Value, json};

use super::respond::{self, Form};

/// How much of each object goes into its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    /// The value of the `includeObject` option.
    pub fn parse(value: Option<&str>) -> Self {
        match value {
            Some("None") => Self::None,
            Some("Object") => Self::Object,
            _ => Self::Metadata,
        }
    }
}

/// Where a resource's columns come from.
#[derive(Clone, Copy)]
pub struct TableSource<'a> {
    pub kind: &'a str,
    pub def: Option<&'a ResourceDef>,
    pub version: &'a str,
    pub now: jiff::Timestamp,
}

impl TableSource<'_> {
    #[cfg(test)]
    pub fn plain(kind: &str) -> TableSource<'_> {
        TableSource {
            kind,
            def: None,
            version: "v1",
            now: jiff::Timestamp::UNIX_EPOCH,
        }
    }
}

/// The Table of `items`; `list` gives the list's metadata.
pub fn render(
    items: &[Bytes],
    source: &TableSource<'_>,
    form: &Form,
    list: Option<&List>,
) -> Vec<u8> {
    let version = if form.negotiated.beta_transform {
        "meta.k8s.io/v1beta1"
    } else {
        "meta.k8s.io/v1"
    };
    let metadata = match list {
        Some(list) => respond::list_metadata(list),
        None => items.first().map_or_else(
            || json!({}),
            |item| json!({"resourceVersion": resource_version(item)}),
        ),
    };
    let mut out = format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"columnDefinitions\":{},\"rows\":[",
        columns(source)
    )
    .into_bytes();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        append_row(&mut out, item, source, form, version);
    }
    out.extend_from_slice(b"]}");
    out
}

/// A Table of one row for a watch; only the first one of a stream describes its columns.
pub fn render_event(object: &Bytes, source: &TableSource<'_>, form: &Form, first: bool) -> Bytes {
    let document = render(std::slice::from_ref(object), source, form, None);
    if first {
        return document.into();
    }
    let text = columns(source).to_string();
    let needle = format!("\"columnDefinitions\":{text}");
    let document = String::from_utf8_lossy(&document);
    document
        .replacen(&needle, "\"columnDefinitions\":null", 1)
        .into()
}

fn resource_version(object: &Bytes) -> String {
    sampan_api::Meta::from_bytes(object)
        .map(|meta| meta.resource_version)
        .unwrap_or_default()
}

fn append_row(
    out: &mut Vec<u8>,
    item: &Bytes,
    source: &TableSource<'_>,
    form: &Form,
    version: &str,
) {
    out.extend_from_slice(b"{\"cells\":");
    out.extend_from_slice(cells(item, source).to_string().as_bytes());
    match form.include_object {
        IncludeObject::None => {}
        IncludeObject::Metadata => {
            out.extend_from_slice(b",\"object\":");
            out.extend_from_slice(&respond::partial(item, version));
        }
        IncludeObject::Object => {
            out.extend_from_slice(b",\"object\":");
            out.extend_from_slice(item);
        }
    }
    out.push(b'}');
}

fn columns(_: &TableSource<'_>) -> Value {
    json!([
        {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
        {"name": "Age", "type": "string", "format": "", "description": "", "priority": 0},
    ])
}

fn cells(item: &Bytes, source: &TableSource<'_>) -> Value {
    let meta = sampan_api::Meta::from_bytes(item).unwrap_or_default();
    let age = meta
        .creation_timestamp
        .and_then(|time| time.parse::<jiff::Timestamp>().ok())
        .map_or_else(|| "<unknown>".to_owned(), |made| age(source.now, made));
    json!([meta.name, age])
}

/// A duration as kubectl shows ages.
fn age(now: jiff::Timestamp, then: jiff::Timestamp) -> String {
    let seconds = now.as_second() - then.as_second();
    match seconds {
        ..0 => "<invalid>".to_owned(),
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
