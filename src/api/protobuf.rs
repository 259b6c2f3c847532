//! The protobuf wire form: JSON trees to messages and back, driven by the schemas.
//!
//! No message types are generated: a field's number (and the nested messages it is inlined from)
//! stands in its schema, and one walk over the schema writes or reads any kind. Documents travel in
//! an envelope: four magic bytes, then `runtime.Unknown` with kind and version beside the raw message.

use serde_json::Value;

use crate::schema::Schema;

mod decode;
mod encode;
mod wire;

pub use encode::{encode, encode_list, encode_partial};

/// What every document begins with.
pub const MAGIC: &[u8] = b"k8s\0";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    NoMagic,
    #[error("proto: the message is cut off")]
    Truncated,
    #[error("proto: a number is too long")]
    Overflow,
    #[error("proto: field {0} has a wrong wire type")]
    WireType(u32),
    #[error("proto: a text is not UTF-8")]
    Text,
    #[error("proto: the message is nested too deeply")]
    Depth,
    #[error("proto: embedded JSON cannot be read: {0}")]
    Json(String),
}

/// An envelope: what kind it holds, and the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub api_version: String,
    pub kind: String,
    pub raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    pub fn parse(document: &'a [u8]) -> Result<Self, Error> {
        let body = document.strip_prefix(MAGIC).ok_or(Error::NoMagic)?;
        let mut envelope = Envelope {
            api_version: String::new(),
            kind: String::new(),
            raw: &[],
        };
        let mut reader = wire::Reader::new(body);
        while let Some((tag, value)) = reader.field()? {
            match tag {
                1 => {
                    let mut types = wire::Reader::new(value.bytes(tag)?);
                    while let Some((tag, value)) = types.field()? {
                        match tag {
                            1 => envelope.api_version = value.text(tag)?.to_owned(),
                            2 => envelope.kind = value.text(tag)?.to_owned(),
                            _ => {}
                        }
                    }
                }
                2 => envelope.raw = value.bytes(tag)?,
                _ => {}
            }
        }
        Ok(envelope)
    }
}

/// Puts a message into an envelope.
pub fn wrap(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    wire::put_bytes(&mut types, 1, api_version.as_bytes());
    wire::put_bytes(&mut types, 2, kind.as_bytes());
    let mut out = Vec::with_capacity(raw.len() + types.len() + 24);
    out.extend_from_slice(MAGIC);
    wire::put_bytes(&mut out, 1, &types);
    wire::put_bytes(&mut out, 2, raw);
    wire::put_bytes(&mut out, 3, b"");
    wire::put_bytes(&mut out, 4, b"");
    out
}

/// One event of a watch: its length, then `WatchEvent` with the document inside.
pub fn watch_frame(event: &str, document: &[u8]) -> Vec<u8> {
    let mut object = Vec::with_capacity(document.len() + 8);
    wire::put_bytes(&mut object, 1, document);
    let mut message = Vec::with_capacity(object.len() + 24);
    wire::put_bytes(&mut message, 1, event.as_bytes());
    wire::put_bytes(&mut message, 2, &object);
    let mut out = (message.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&message);
    out
}

/// The tree of a message.
pub fn decode(schema: &Schema, raw: &[u8]) -> Result<Value, Error> {
    decode::message(schema, raw)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::schema::of_kind;

    fn round(group: &str, kind: &str, object: &Value) -> Value {
        let schema = of_kind(group, "v1", kind).unwrap();
        let mut back = decode(schema, &encode(schema, object)).unwrap();
        schema.decode(&mut back).unwrap();
        back
    }

    fn normal(group: &str, kind: &str, object: &Value) -> Value {
        let mut object = object.clone();
        let schema = of_kind(group, "v1", kind).unwrap();
        schema.decode(&mut object).unwrap();
        object
    }

    #[test]
    fn a_pod_survives() {
        let pod = json!({
            "metadata": {
                "name": "p", "namespace": "a", "generation": 3,
                "labels": {"a": "b", "c": ""},
                "creationTimestamp": "2024-02-29T10:00:00Z",
                "managedFields": [{"manager": "m", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "c", "image": "i",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": {"cpu": "100m"}},
                    "readinessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 5},
                    "livenessProbe": {"tcpSocket": {"port": 80}},
                    "env": [{"name": "x", "valueFrom": {"fieldRef": {"fieldPath": "a.b"}}}],
                }],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "secret": {"secretName": "s"}}],
                "securityContext": {"runAsUser": -1},
            },
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
        });
        assert_eq!(round("", "Pod", &pod), normal("", "Pod", &pod));
    }

    #[test]
    fn odd_types_survive() {
        let secret = json!({"metadata": {"name": "s"}, "data": {"a": "AAEC/w==", "b": ""}, "type": "Opaque"});
        assert_eq!(round("", "Secret", &secret), normal("", "Secret", &secret));
        let revision = json!({"metadata": {"name": "r"}, "revision": 1, "data": {"x": [1, 2]}});
        assert_eq!(
            round("apps", "ControllerRevision", &revision),
            normal("apps", "ControllerRevision", &revision)
        );
        let definition = json!({
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {
                        "a": {"type": "array", "items": {"type": "string", "default": "x"}},
                        "b": {"type": "object", "additionalProperties": {"type": "number", "maximum": 1.5}},
                    }}}}]},
        });
        assert_eq!(
            round(
                "apiextensions.k8s.io",
                "CustomResourceDefinition",
                &definition
            ),
            normal(
                "apiextensions.k8s.io",
                "CustomResourceDefinition",
                &definition
            )
        );
        let review = json!({"spec": {"user": "u", "extra": {"k": ["a", "b"]}}});
        assert_eq!(
            round("authorization.k8s.io", "SubjectAccessReview", &review),
            normal("authorization.k8s.io", "SubjectAccessReview", &review)
        );
        let lease = json!({"metadata": {"name": "l"}, "spec": {"renewTime": "2024-02-29T08:00:00.123456Z"}});
        assert_eq!(
            round("coordination.k8s.io", "Lease", &lease),
            normal("coordination.k8s.io", "Lease", &lease)
        );
    }

    #[test]
    fn envelopes() {
        let document = wrap("v1", "Pod", b"raw");
        let envelope = Envelope::parse(&document).unwrap();
        assert_eq!((envelope.kind.as_str(), envelope.raw), ("Pod", &b"raw"[..]));
        assert_eq!(Envelope::parse(b"{}").unwrap_err(), Error::NoMagic);
    }

    #[test]
    fn a_document_of_upstream() {
        use base64::Engine as _;
        // A ConfigMap as another program wrote it.
        let bytes = base64::engine::general_purpose::STANDARD
            .decode("azhzAAoPCgJ2MRIJQ29uZmlnTWFwEhgKAwoBYxIGCgFhEgEyGgkKAWISBAABAv8=")
            .unwrap();
        let envelope = Envelope::parse(&bytes).unwrap();
        assert_eq!(
            (envelope.api_version.as_str(), envelope.kind.as_str()),
            ("v1", "ConfigMap")
        );
        let schema = of_kind("", "v1", "ConfigMap").unwrap();
        let object = decode(schema, envelope.raw).unwrap();
        assert_eq!(object["metadata"]["name"], "c");
        assert_eq!(object["data"], json!({"a": "2"}));
        assert_eq!(object["binaryData"], json!({"b": "AAEC/w=="}));
    }

    #[test]
    fn broken_messages_are_refused() {
        let schema = of_kind("", "v1", "Pod").unwrap();
        for broken in [
            &b"\x0a"[..],
            b"\x0a\x05abc",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x08\x01",
        ] {
            assert!(decode(schema, broken).is_err(), "{broken:?}");
        }
        assert!(of_kind("", "v1", "Status").is_some());
    }
}
