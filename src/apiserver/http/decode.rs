//! Request bodies: size limit, media type, JSON and YAML to a tree, kind and version checked.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use sampan_api::protobuf::{self, Envelope};
use sampan_api::registry::{ResourceDef, ServedVersion};
use sampan_api::resource::PatchType;
use sampan_api::schema::{self, strict_errors};
use sampan_api::status::Details;
use sampan_api::{Reason, Registry, Status};
use serde_json::Value;

use super::negotiate::MediaType;

/// Upstream's limit.
pub const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// A body as a tree, and what strict field validation would say of its text.
#[derive(Debug)]
pub struct Decoded {
    pub object: Value,
    pub strict_errors: Vec<String>,
}

/// Reads the whole body.
pub async fn read_body(body: Incoming) -> Result<Bytes, Status> {
    match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Status::new(
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: limit is {MAX_BODY_BYTES}"),
        )),
        Err(error) => Err(Status::bad_request(format!(
            "the request's body cannot be read: {error}"
        ))),
    }
}

/// The media type of the body, without parameters; empty if there is none.
fn content_type(headers: &HeaderMap) -> String {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(|media| media.trim().to_ascii_lowercase())
        .unwrap_or_default()
}

/// The media type of an object's body.
pub fn body_media(headers: &HeaderMap) -> Result<MediaType, Status> {
    match content_type(headers).as_str() {
        "" | "application/json" => Ok(MediaType::Json),
        "application/yaml" => Ok(MediaType::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(MediaType::Protobuf),
        _ => Err(body_media_error()),
    }
}

fn body_media_error() -> Status {
    Status::new(
        Reason::UnsupportedMediaType,
        "the body of the request was in an unknown format - accepted media types include: \
         application/json, application/yaml, application/vnd.kubernetes.protobuf",
    )
}

pub fn patch_type(headers: &HeaderMap) -> Result<PatchType, Status> {
    [
        PatchType::Json,
        PatchType::Merge,
        PatchType::Strategic,
        PatchType::Apply,
    ]
    .into_iter()
    .find(|patch| patch.content_type() == content_type(headers))
    .ok_or_else(|| {
        Status::new(Reason::UnsupportedMediaType, "415: Unsupported Media Type")
            .with_details(Details::default())
    })
}

/// The kind that an endpoint takes.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    /// It is the kind of a subresource, not of the row.
    pub of_subresource: bool,
}

impl<'a> Expected<'a> {
    pub fn of(def: &'a ResourceDef, served: &'a ServedVersion) -> Self {
        Self {
            group: &served.group,
            version: &served.version,
            kind: &def.kind,
            of_subresource: false,
        }
    }

    fn api_version(&self) -> String {
        sampan_api::resource::api_version(self.group, self.version)
    }

    fn unrecognized(&self, why: impl std::fmt::Display) -> Status {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {why}",
            self.kind
        ))
    }
}

/// Reads an object. What it does not say of its type is filled in; what it says wrongly is refused.
pub fn decode_object(
    body: &Bytes,
    media: MediaType,
    expected: &Expected<'_>,
    registry: &Registry,
) -> Result<Decoded, Status> {
    let (mut object, text) = match media {
        MediaType::Protobuf => (from_protobuf(body, expected)?, None),
        MediaType::Json => (parse_json(body, expected)?, Some(body.clone())),
        MediaType::Yaml => {
            let text =
                yaml_to_json(body).map_err(|why| expected.unrecognized(format!("yaml: {why}")))?;
            (parse_json(&text, expected)?, Some(text))
        }
    };
    if object.is_null() {
        object = Value::Object(serde_json::Map::new());
    }
    check_type(&mut object, expected, registry)?;
    let schema = schema::of_kind(expected.group, expected.version, expected.kind);
    Ok(Decoded {
        strict_errors: text.map_or_else(Vec::new, |text| strict_errors(&text, schema)),
        object,
    })
}

fn parse_json(text: &[u8], expected: &Expected<'_>) -> Result<Value, Status> {
    match serde_json::from_slice(text) {
        Ok(value) => Ok(value),
        Err(error) => match repaired(text) {
            Some(text) => {
                serde_json::from_slice(text.as_bytes()).map_err(|error| no_json(expected, &error))
            }
            None => Err(no_json(expected, &error)),
        },
    }
}

/// The text with replacement characters for what is no Unicode (bad UTF-8, halves of surrogate
/// pairs), which Go reads so; `None` if there is no such thing in it.
fn repaired(text: &[u8]) -> Option<String> {
    let lossy = String::from_utf8_lossy(text);
    let mut changed = matches!(lossy, std::borrow::Cow::Owned(_));
    let mut out = String::with_capacity(lossy.len());
    let mut rest = lossy.as_ref();
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match half_pair(rest) {
            Some(true) => {
                changed = true;
                out.push_str("\\ufffd");
                rest = &rest[6..];
            }
            Some(false) => {
                out.push_str(&rest[..12]);
                rest = &rest[12..];
            }
            None => {
                let end = rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
        }
    }
    out.push_str(rest);
    changed.then_some(out)
}

/// Whether an escape begins half of a surrogate pair (`true`) or a whole one (`false`).
fn half_pair(text: &str) -> Option<bool> {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    match unit(text)? {
        0xd800..=0xdbff => {
            let low = text.get(6..).and_then(unit);
            Some(!low.is_some_and(|low| (0xdc00..=0xdfff).contains(&low)))
        }
        0xdc00..=0xdfff => Some(true),
        _ => None,
    }
}

/// The tree of a protobuf document, by the schema of the kind that its envelope names.
fn from_protobuf(body: &[u8], expected: &Expected<'_>) -> Result<Value, Status> {
    let envelope = Envelope::parse(body).map_err(|error| expected.unrecognized(error))?;
    let (group, version) = match envelope.api_version.split_once('/') {
        Some((group, version)) => (group, version),
        None if envelope.api_version.is_empty() => (expected.group, expected.version),
        None => ("", envelope.api_version.as_str()),
    };
    let kind = if envelope.kind.is_empty() {
        expected.kind
    } else {
        &envelope.kind
    };
    let mut object = match schema_of(group, version, kind) {
        Some(schema) => {
            protobuf::decode(schema, envelope.raw).map_err(|error| expected.unrecognized(error))?
        }
        None => Value::Object(serde_json::Map::new()),
    };
    if let Some(map) = object.as_object_mut() {
        map.insert("kind".to_owned(), kind.into());
        map.insert(
            "apiVersion".to_owned(),
            sampan_api::resource::api_version(group, version).into(),
        );
    }
    Ok(object)
}

/// Options of deletions are the same in every group.
fn schema_of(group: &str, version: &str, kind: &str) -> Option<&'static schema::Schema> {
    match kind {
        "DeleteOptions" => schema::by_name("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"),
        _ => schema::of_kind(group, version, kind),
    }
}

fn no_json(expected: &Expected<'_>, error: &dyn std::fmt::Display) -> Status {
    expected.unrecognized(format!(
        "couldn't get version/kind; json parse error: {error}"
    ))
}

/// Fills in kind and apiVersion, or checks them.
fn check_type(
    object: &mut Value,
    expected: &Expected<'_>,
    registry: &Registry,
) -> Result<(), Status> {
    let Some(map) = object.as_object_mut() else {
        return Err(no_json(
            expected,
            &"json: cannot unmarshal value into Go value of type struct",
        ));
    };
    let read = |key: &str| match map.get(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(no_json(
            expected,
            &format!("json: cannot unmarshal value into Go struct field .{key} of type string"),
        )),
    };
    let (kind, api_version) = (read("kind")?, read("apiVersion")?);
    let wanted = expected.api_version();
    if (kind.is_empty() || kind == expected.kind)
        && (api_version.is_empty() || api_version == wanted)
    {
        map.insert("kind".to_owned(), expected.kind.into());
        map.insert("apiVersion".to_owned(), wanted.into());
        return Ok(());
    }
    let given_version = if api_version.is_empty() {
        &wanted
    } else {
        &api_version
    };
    let given_kind = if kind.is_empty() {
        expected.kind
    } else {
        &kind
    };
    Err(wrong_type(
        given_version,
        given_kind,
        &wanted,
        expected,
        registry,
    ))
}

fn wrong_type(
    given_version: &str,
    given_kind: &str,
    wanted: &str,
    expected: &Expected<'_>,
    registry: &Registry,
) -> Status {
    let (group, version) = given_version.split_once('/').unwrap_or(("", given_version));
    if given_version != wanted
        && expected.of_subresource
        && is_known(group, version, given_kind, registry)
    {
        let package = match expected.group.split('.').next() {
            None | Some("") => "core",
            Some(package) => package,
        };
        return Status::bad_request(format!(
            "{given_kind} in version {version:?} cannot be handled as a {}: converting ({version}.{given_kind}) to ({package}.{}): unknown conversion",
            expected.kind, expected.kind
        ));
    }
    if given_version != wanted && is_known(group, version, given_kind, registry) {
        return Status::bad_request(format!(
            "the API version in the data ({given_version}) does not match the expected API version ({wanted})"
        ));
    }
    if given_version == wanted && is_known(group, version, given_kind, registry) {
        return Status::bad_request(format!(
            "{given_kind} in version {version:?} cannot be handled as a {}: converting ({given_kind}) to ({}): unknown conversion",
            expected.kind, expected.kind
        ));
    }
    Status::bad_request(format!(
        "{given_kind} in version {version:?} cannot be handled as a {}: no kind {given_kind:?} is registered for version {given_version:?}",
        expected.kind
    ))
}

/// Kinds that are served, and old ones that upstream still knows how to read.
fn is_known(group: &str, version: &str, kind: &str, registry: &Registry) -> bool {
    registry.snapshot().by_kind(group, version, kind).is_some()
        || LEGACY.contains(&(group, version, kind))
}

const LEGACY: &[(&str, &str, &str)] = &[
    ("extensions", "v1beta1", "Deployment"),
    ("extensions", "v1beta1", "DaemonSet"),
    ("extensions", "v1beta1", "ReplicaSet"),
    ("extensions", "v1beta1", "Ingress"),
    ("extensions", "v1beta1", "NetworkPolicy"),
    ("apps", "v1beta1", "Deployment"),
    ("apps", "v1beta1", "StatefulSet"),
    ("apps", "v1beta2", "Deployment"),
    ("apps", "v1beta2", "DaemonSet"),
    ("apps", "v1beta2", "ReplicaSet"),
    ("apps", "v1beta2", "StatefulSet"),
    ("batch", "v1beta1", "CronJob"),
    ("policy", "v1beta1", "PodDisruptionBudget"),
    ("networking.k8s.io", "v1beta1", "Ingress"),
    ("autoscaling", "v2beta1", "HorizontalPodAutoscaler"),
    ("autoscaling", "v2beta2", "HorizontalPodAutoscaler"),
];

/// Reads the options of a deletion. Clients send them under the group they delete from, too.
pub fn decode_delete_options(
    body: &Bytes,
    media: MediaType,
    served: &ServedVersion,
) -> Result<Value, Status> {
    let expected = Expected {
        group: "",
        version: "v1",
        kind: "DeleteOptions",
        of_subresource: false,
    };
    let object = match media {
        MediaType::Json => parse_json(body, &expected)?,
        MediaType::Yaml => {
            let text = yaml_to_json(body).map_err(Status::bad_request)?;
            parse_json(&text, &expected)?
        }
        MediaType::Protobuf => from_protobuf(body, &expected)?,
    };
    let kind = object
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let version = object
        .get("apiVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let own = sampan_api::resource::api_version(&served.group, &served.version);
    let known_version =
        version.is_empty() || version == "v1" || version == "meta.k8s.io/v1" || version == own;
    if object.is_null() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    if !object.is_object() {
        return Err(no_json(
            &expected,
            &"json: cannot unmarshal value into Go value of type struct",
        ));
    }
    if (kind.is_empty() || kind == "DeleteOptions") && known_version {
        return typed(object, &expected);
    }
    if kind == "DeleteOptions" {
        return Err(Status::bad_request(format!(
            "no kind \"DeleteOptions\" is registered for version {version:?}"
        )));
    }
    Err(Status::bad_request(
        "decoded object cannot be converted to DeleteOptions",
    ))
}

/// Refuses fields of a wrong type: an option that is not understood must not be taken for one that is not there.
fn typed(mut object: Value, expected: &Expected<'_>) -> Result<Value, Status> {
    let name = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
    if let Some(schema) = schema::by_name(name) {
        schema
            .decode(&mut object)
            .map_err(|error| no_json(expected, &error.text))?;
    }
    Ok(object)
}

/// Reads a patch; an apply patch is YAML, the others are JSON.
pub fn decode_patch(body: &Bytes, patch: PatchType) -> Result<Value, Status> {
    match patch {
        PatchType::Apply => {
            let text = yaml_to_json(body).map_err(|why| {
                let why = format!("error converting YAML to JSON: {why}");
                Status::bad_request(format!("error decoding YAML: {why}"))
            })?;
            serde_json::from_slice(&text)
                .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))
        }
        PatchType::Json | PatchType::Merge => serde_json::from_slice(body).map_err(|error| {
            Status::bad_request(format!("error decoding patch: {}", json_fault(&error)))
        }),
        PatchType::Strategic => {
            serde_json::from_slice(body).map_err(|error| Status::bad_request(json_fault(&error)))
        }
    }
}

/// A syntax error in the words that clients know.
fn json_fault(error: &serde_json::Error) -> String {
    if error.is_eof() {
        "unexpected end of JSON input".to_owned()
    } else {
        format!("invalid character in the text: {error}")
    }
}

/// The first document of a YAML text as JSON text.
pub fn yaml_to_json(text: &[u8]) -> Result<Bytes, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let mut options = serde_saphyr::Options::default();
    options.legacy_octal_numbers = true;
    options.duplicate_keys = serde_saphyr::DuplicateKeyPolicy::LastWins;
    let value: Value =
        serde_saphyr::from_str_with_options(first_document(text), options).map_err(|error| {
            error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        })?;
    Ok(Bytes::from(value.to_string()))
}

/// Everything before the second document; a leading marker is no document.
fn first_document(text: &str) -> &str {
    let mut seen_content = false;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let marker = line.trim_end() == "---";
        if marker && seen_content {
            return &text[..start];
        }
        let trimmed = line.trim();
        seen_content |= !(marker || trimmed.is_empty() || trimmed.starts_with('#'));
        start += line.len();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CONFIG_MAP: Expected<'static> = Expected {
        group: "",
        version: "v1",
        kind: "ConfigMap",
        of_subresource: false,
    };

    fn decode(text: &str, media: MediaType) -> Result<Decoded, Status> {
        let body = Bytes::copy_from_slice(text.as_bytes());
        decode_object(&body, media, &CONFIG_MAP, &Registry::builtin())
    }

    fn message(text: &str) -> String {
        decode(text, MediaType::Json).unwrap_err().message
    }

    #[test]
    fn types_are_filled_in_or_refused() {
        let object = decode("null", MediaType::Json).unwrap().object;
        assert_eq!(object["kind"], "ConfigMap");
        assert_eq!(object["apiVersion"], "v1");
        for broken in ["", "{", "[]", "\"\"", "{\"apiVersion\":1}", "{} x"] {
            let expected = "the object provided is unrecognized (must be of type ConfigMap): \
                            couldn't get version/kind; json parse error: ";
            assert!(message(broken).starts_with(expected), "{broken}");
        }
        assert_eq!(
            message(r#"{"kind":"Unheard","apiVersion":"v1"}"#),
            "Unheard in version \"v1\" cannot be handled as a ConfigMap: no kind \"Unheard\" is registered for version \"v1\""
        );
        assert_eq!(
            message(r#"{"kind":"Deployment","apiVersion":"apps/v1"}"#),
            "the API version in the data (apps/v1) does not match the expected API version (v1)"
        );
    }

    #[test]
    fn yaml_is_read_as_go_reads_it() {
        let text = "a: yes\nb: 010\nc: 'yes'\n---\nd: 1\n";
        let json = yaml_to_json(text.as_bytes()).unwrap();
        let value: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value, serde_json::json!({"a": true, "b": 8, "c": "yes"}));
        assert_eq!(yaml_to_json(b"").unwrap(), "null");
        assert!(yaml_to_json(b"a: b\n\tc: d\n").is_err());
    }

    #[test]
    fn what_is_no_unicode_is_replaced() {
        let text = r#"{"data":{"a":"\ud83d\ude00 \ud800 \\ud800 \udc00x"}}"#;
        let object = decode(text, MediaType::Json).unwrap().object;
        assert_eq!(object["data"]["a"], "😀 \u{fffd} \\ud800 \u{fffd}x");
    }

    #[test]
    fn strict_errors_are_found() {
        let text = r#"{"data":{"a":"1","a":"2"},"mystery":1}"#;
        let decoded = decode(text, MediaType::Json).unwrap();
        assert_eq!(
            decoded.strict_errors,
            ["duplicate field \"data.a\"", "unknown field \"mystery\""]
        );
    }
}
