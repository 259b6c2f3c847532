//! Every parser that reads what others wrote, as a function over bytes. None may panic or take long.
//! Used by the fuzzer (`fuzz.rs` beside this file) and by the integration tests over the corpus.

use bytes::Bytes;
use sampan_api::cel::{self, Program, Scope, Type};
use sampan_api::custom::rules::Rules;
use sampan_api::custom::structural;
use sampan_api::protobuf::{self, Envelope};
use sampan_api::{FieldSelector, Quantity, Registry, Selector, managed, patch, schema};
use sampan_apiserver::auth::StaticTokens;
use sampan_apiserver::http::decode::{self, Expected};
use sampan_apiserver::http::negotiate::MediaType;
use sampan_apiserver::http::{json, negotiate, path, query};
use sampan_apiserver::registry::token::Token;
use serde_json::Value;

pub type Target = fn(&[u8]);

pub const TARGETS: &[(&str, Target)] = &[
    ("json", json_object),
    ("yaml", yaml_object),
    ("protobuf", protobuf_object),
    ("json-patch", json_patch),
    ("merge-patch", merge_patch),
    ("strategic-patch", strategic_patch),
    ("apply", apply),
    ("managed-fields", managed_fields),
    ("delete-options", delete_options),
    ("selector", selectors),
    ("quantity", quantity),
    ("cel", expression),
    ("custom", custom_object),
    ("continue-token", continue_token),
    ("query", query_string),
    ("accept", accept),
    ("json-text", json_text),
    ("dns", dns),
    ("netlink", netlink),
    ("websocket", websocket),
    ("certificate", certificates),
    ("token", tokens),
    ("token-file", token_file),
    ("config-file", config_file),
    ("cni", cni),
    ("image-archive", image_archive),
];

const KINDS: &[(&str, &str, &str)] = &[
    ("", "v1", "Pod"),
    ("apps", "v1", "Deployment"),
    ("", "v1", "Service"),
    ("", "v1", "ConfigMap"),
    ("batch", "v1", "CronJob"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler"),
    ("networking.k8s.io", "v1", "NetworkPolicy"),
];

/// The first byte chooses the kind, so that every input is about one.
fn kind_of(data: &[u8]) -> (Expected<'static>, &[u8]) {
    let (first, rest) = data.split_first().unwrap_or((&0, data));
    let (group, version, kind) = KINDS[usize::from(*first) % KINDS.len()];
    let expected = Expected {
        group,
        version,
        kind,
        of_subresource: false,
    };
    (expected, rest)
}

thread_local! {
    static REGISTRY: Registry = Registry::builtin();
}

fn object(data: &[u8], media: MediaType) {
    let (expected, body) = kind_of(data);
    let body = Bytes::copy_from_slice(body);
    let decoded =
        REGISTRY.with(|registry| decode::decode_object(&body, media, &expected, registry));
    let Ok(decoded) = decoded else { return };
    let Some(schema) = schema::of_kind(expected.group, expected.version, expected.kind) else {
        return;
    };
    let mut object = decoded.object;
    if schema.decode(&mut object).is_ok() {
        let raw = protobuf::encode(schema, &object);
        let _ = protobuf::decode(schema, &raw);
    }
}

fn json_object(data: &[u8]) {
    object(data, MediaType::Json);
}

fn yaml_object(data: &[u8]) {
    object(data, MediaType::Yaml);
}

fn protobuf_object(data: &[u8]) {
    object(data, MediaType::Protobuf);
    let (expected, body) = kind_of(data);
    let _ = Envelope::parse(body);
    if let Some(schema) = schema::of_kind(expected.group, expected.version, expected.kind) {
        let _ = protobuf::decode(schema, body);
    }
}

fn expression(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(program) = Program::compile(text, &[("self", Type::Dyn)]) {
        let scope = Scope::new("self", cel::Value::list(vec![cel::Value::Int(1)]));
        let _ = program.run(&scope, &mut 20_000);
    }
}

/// A schema and an object, one line each.
fn custom_object(data: &[u8]) {
    let Some((schema, object)) = two(data) else {
        return;
    };
    let Ok(mut object) = serde_json::from_slice::<Value>(object) else {
        return;
    };
    let before = object.clone();
    if structural::decode(&schema, &mut object).is_ok() {
        structural::default(&schema, &mut object);
        if let Some(rules) = Rules::of_root(&schema) {
            let _ = rules.check(&object, None);
            let _ = rules.check(&object, Some(&before));
        }
    }
}

/// An object and a patch, one line each.
fn two(data: &[u8]) -> Option<(Value, &[u8])> {
    let at = data.iter().position(|byte| *byte == b'\n')?;
    let object = serde_json::from_slice(&data[..at]).ok()?;
    Some((object, &data[at + 1..]))
}

fn json_patch(data: &[u8]) {
    if let Some((mut object, patch)) = two(data)
        && let Ok(patch) = serde_json::from_slice(patch)
    {
        let _ = patch::apply_json(&mut object, &patch);
    }
}

fn merge_patch(data: &[u8]) {
    if let Some((mut object, patch)) = two(data)
        && let Ok(patch) = serde_json::from_slice(patch)
    {
        let _ = patch::apply_merge(&mut object, patch);
    }
}

fn pod() -> &'static schema::Schema {
    static POD: std::sync::OnceLock<&schema::Schema> = std::sync::OnceLock::new();
    POD.get_or_init(|| match schema::of_kind("", "v1", "Pod") {
        Some(schema) => schema,
        None => unreachable!("the table has Pods"),
    })
}

fn strategic_patch(data: &[u8]) {
    if let Some((mut object, patch)) = two(data)
        && let Ok(patch) = serde_json::from_slice(patch)
    {
        let _ = patch::apply_strategic(&mut object, patch, pod());
    }
}

fn apply(data: &[u8]) {
    let Some((live, config)) = two(data) else {
        return;
    };
    let Ok(text) = decode::yaml_to_json(config) else {
        return;
    };
    let Ok(config) = serde_json::from_slice(&text) else {
        return;
    };
    let write = managed::Write {
        schema: Some(pod()),
        manager: "fuzz",
        api_version: "v1",
        subresource: "",
        reset: &["status"],
        time: "2026-01-01T00:00:00Z",
    };
    let _ = managed::apply(&live, &config, &write, data.len().is_multiple_of(2));
}

fn managed_fields(data: &[u8]) {
    let Ok(fields) = serde_json::from_slice(data) else {
        return;
    };
    if let Some(set) = managed::set::Set::from_fields(&fields) {
        let again = set.to_fields();
        let _ = managed::set::Set::from_fields(&again);
        let _ = set.paths();
    }
}

fn delete_options(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    REGISTRY.with(|registry| {
        let row = registry.snapshot().rows()[0].clone();
        for media in [MediaType::Json, MediaType::Yaml, MediaType::Protobuf] {
            let _ = decode::decode_delete_options(&body, media, row.storage_version());
        }
    });
}

fn selectors(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(selector) = Selector::parse(&text) {
        let again = Selector::parse(&selector.to_string());
        assert!(again.is_ok(), "{selector} is written but not read");
    }
    let _ = FieldSelector::parse(&text);
    if let Ok(object) = serde_json::from_slice(data) {
        let _ = Selector::from_object(&object);
    }
}

fn quantity(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(quantity) = text.parse::<Quantity>() {
        let _ = (quantity.value(), quantity.milli_value(), quantity.as_f64());
        let shown = quantity.to_string();
        assert!(
            shown.parse::<Quantity>().is_ok(),
            "{text} is written as {shown}"
        );
        let _ = quantity.times(7);
    }
    let _ = sampan_api::time::parse(&text);
}

fn continue_token(data: &[u8]) {
    use base64::Engine as _;
    let text = String::from_utf8_lossy(data);
    let _ = Token::decode(&text);
    let packed = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(data);
    let _ = Token::decode(&packed);
    let _ = sampan_apiserver::registry::verbs::list::parse_revision(&text);
}

fn query_string(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (place, query) = text.split_once('?').unwrap_or((&text, ""));
    let query = query::Query::parse(query);
    let _ = query.options();
    let _ = path::PathInfo::parse(&http::Method::GET, place, &query);
    let _ = path::PathInfo::parse(&http::Method::DELETE, place, &query);
}

fn accept(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = negotiate::parse_accept(&text);
    let mut headers = http::HeaderMap::new();
    if let Ok(value) = http::HeaderValue::from_bytes(data) {
        headers.insert(http::header::ACCEPT, value.clone());
        headers.insert(http::header::CONTENT_TYPE, value);
    }
    let offer = negotiate::Offer {
        protobuf: true,
        transforms: true,
    };
    let _ = negotiate::negotiate(&headers, &query::Query::default(), offer);
    let _ = decode::body_media(&headers);
    let _ = decode::patch_type(&headers);
}

fn json_text(data: &[u8]) {
    let _ = json::members(data);
    let _ = json::member(data, "metadata");
    let _ = json::indent(data);
    let mut out = Vec::new();
    json::Bare::new("Pod", "v1").append(&mut out, data);
    let _ = schema::strict_errors(data, Some(pod()));
}

fn dns(data: &[u8]) {
    use sampan_dns::message::{Question, Via};
    let _ = Question::parse(data, Via::Udp);
    let _ = Question::parse(data, Via::Tcp);
}

fn netlink(data: &[u8]) {
    use sampan_netlink::message::{self, Attributes, Messages};
    for message in Messages(data) {
        let _ = sampan_netlink::route::Event::of(&message);
        for header in [0, 4, 8, 12, 16] {
            walk(message.attributes(header), 0);
        }
    }
    fn walk(attributes: Attributes<'_>, depth: u32) {
        for (_, value) in attributes {
            let _ = (
                message::u32_of(value),
                message::be64_of(value),
                message::string_of(value),
            );
            if depth < 4 {
                walk(Attributes(value), depth + 1);
            }
        }
    }
}

fn websocket(data: &[u8]) {
    use futures_util::FutureExt as _;
    use tokio::io::AsyncReadExt as _;
    let stream = tokio::io::join(data, tokio::io::sink());
    let mut tunnel = sampan_net::websocket::ByteTunnel::new(stream);
    let mut out = Vec::new();
    // Everything is there already, so nothing waits.
    let _ = tunnel.read_to_end(&mut out).now_or_never();
    assert!(out.len() <= data.len());
}

fn certificates(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = sampan_pki::CertificateRequest::from_pem(&text);
    let _ = sampan_pki::CertificateRequest::from_der(data);
    let _ = sampan_pki::CertificateInfo::from_der(data);
    let _ = sampan_pki::CertificateInfo::from_pem(&text);
    let _ = sampan_pki::PrivateKey::from_pem(&text);
}

fn tokens(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = sampan_pki::JoinToken::parse(&text);
    let _ = sampan_pki::TokenVerifier::peek(&text);
    let _ = sampan_pki::TokenVerifier::default().verify(&text);
}

fn token_file(data: &[u8]) {
    let _ = StaticTokens::parse(&String::from_utf8_lossy(data));
}

fn config_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for role in [sampan_config::Role::Server, sampan_config::Role::Agent] {
        let sources = sampan_config::Sources {
            flags: &[],
            environment: &|_| None,
            file: Some(&text),
        };
        let _ = sampan_config::resolve(role, &sources);
    }
}

fn cni(data: &[u8]) {
    use sampan_network::cni::protocol::{Request, versions};
    let config = serde_json::from_slice(data).unwrap_or(Value::Null);
    let args = String::from_utf8_lossy(data).into_owned();
    let request = Request {
        config,
        args,
        ..Request::default()
    };
    let _ = versions(request.version());
    let _ = request.arg("K8S_POD_NAME");
    let _ = serde_json::from_slice::<Request>(data);
}

fn image_archive(data: &[u8]) {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("sampan-fuzz-{}.tar", std::process::id()));
    if std::fs::write(&path, data).is_ok() {
        let _ = sampan_cri::import::layout::read(&path, &folder);
        let _ = std::fs::remove_file(&path);
    }
}
