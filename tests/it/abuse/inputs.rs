//! Bad requests by the thousand, and some that are heavy.

use http::Method;
use rand::Rng as _;
use rand::rngs::SmallRng;
use sampan_api::{ResourceDef, protobuf, schema};
use serde_json::json;

use super::{Caller, mutate};
use crate::rows;

/// Method, path, media type, body.
pub type Call = (Method, String, &'static str, Vec<u8>);

pub const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

fn path_of(row: &ResourceDef) -> String {
    let version = row.storage_version();
    let gvr = row.gvr(version);
    let base = match gvr.group.is_empty() {
        true => format!("/api/{}", gvr.version),
        false => format!("/apis/{}/{}", gvr.group, gvr.version),
    };
    match row.is_namespaced() {
        true => format!("{base}/namespaces/{}/{}", rows::NAMESPACE, gvr.resource),
        false => format!("{base}/{}", gvr.resource),
    }
}

/// Wrong types at every field of an object of every row, by create and by every patch; scrambled bytes in every encoding.
pub fn mutated_objects(random: &mut SmallRng, share: f64) -> Vec<Call> {
    let objects = rows::objects();
    let strangers = mutate::strangers();
    let mut calls = Vec::new();
    for row in rows::stored_rows() {
        let sample = rows::sample(&objects, &row);
        let path = path_of(&row);
        for place in mutate::places(&sample) {
            for stranger in &strangers {
                if !random.random_bool(share) {
                    continue;
                }
                let wrong = mutate::replaced(&sample, &place, stranger.clone());
                let create = format!("{path}?dryRun=All&fieldValidation=Strict");
                calls.push((
                    Method::POST,
                    create,
                    "application/json",
                    wrong.to_string().into_bytes(),
                ));
            }
        }
        let gvk = row.storage_gvk();
        let schema = schema::of_kind(&gvk.group, &gvk.version, &gvk.kind);
        let wire = schema.map(|schema| {
            let raw = protobuf::encode(schema, &sample);
            protobuf::wrap(&gvk.api_version(), &gvk.kind, &raw)
        });
        let text = sample.to_string().into_bytes();
        for _ in 0..(200.0 * share) as usize {
            let create = format!("{path}?dryRun=All");
            for (media, valid) in [
                ("application/json", Some(&text)),
                ("application/yaml", Some(&text)),
                ("application/vnd.kubernetes.protobuf", wire.as_ref()),
            ] {
                if let Some(valid) = valid {
                    let body = mutate::scrambled(valid, random);
                    calls.push((Method::POST, create.clone(), media, body));
                }
            }
        }
    }
    calls
}

/// Bad patches on one Pod and one Deployment that exist.
pub fn bad_patches(random: &mut SmallRng, count: usize) -> Vec<Call> {
    let operations = json!([
        {"op": "add", "path": "/metadata/labels/a~1b", "value": "c"},
        {"op": "copy", "from": "/spec", "path": "/metadata/annotations/x"},
        {"op": "move", "from": "/metadata/labels", "path": "/metadata/labels/x"},
        {"op": "test", "path": "/spec/containers/-/name", "value": 1},
        {"op": "replace", "path": "/spec/containers/99999999999999999999/image", "value": "x"},
        {"op": "remove", "path": ""},
    ]);
    let merge = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "one", "image": "x",
        "ports": [{"containerPort": 80, "protocol": "TCP"}]}], "$setElementOrder/containers": [{"name": "one"}]}});
    let strangers = mutate::strangers();
    let mut calls = Vec::new();
    let target = format!("/api/v1/namespaces/{}/pods/one", rows::NAMESPACE);
    for _ in 0..count {
        for media in PATCHES {
            let base = if media == PATCHES[0] {
                &operations
            } else {
                &merge
            };
            let places = mutate::places(base);
            let place = &places[random.random_range(0..places.len())];
            let stranger = strangers[random.random_range(0..strangers.len())].clone();
            let text = mutate::replaced(base, place, stranger)
                .to_string()
                .into_bytes();
            let body = match random.random_bool(0.3) {
                true => mutate::scrambled(&text, random),
                false => text,
            };
            let path = format!("{target}?dryRun=All&fieldManager=abuse&force=true");
            calls.push((Method::PATCH, path, media, body));
        }
    }
    calls
}

/// Every parameter of a list, watch, create and delete with values that are none.
pub fn bad_queries() -> Vec<Call> {
    let values = [
        "",
        "x",
        "-1",
        "0",
        "99999999999999999999",
        "%00",
        "%ff%fe",
        "%",
        "%zz",
        "a,,b",
        "a in (",
        "a in (b",
        "!",
        "a=b=c",
        "((((",
        "a%20notin%20()",
        "a>b",
        "metadata.name=a,metadata.name!=a",
        "spec.nothing=1",
        "true",
        "None",
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vLi4ifQ",
        "e30",
        "bnVsbA",
        "All",
        "Sometimes",
        "18446744073709551615",
        "1.5",
        "+1",
        "%F0%9F%92%A5",
        "NotOlderThan",
        "Exact",
        "Background",
    ];
    let names = [
        "labelSelector",
        "fieldSelector",
        "limit",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "timeoutSeconds",
        "dryRun",
        "fieldManager",
        "fieldValidation",
        "gracePeriodSeconds",
        "propagationPolicy",
        "orphanDependents",
        "sendInitialEvents",
        "allowWatchBookmarks",
        "pretty",
        "includeObject",
        "force",
    ];
    let path = format!("/api/v1/namespaces/{}/configmaps", rows::NAMESPACE);
    let mut calls = Vec::new();
    for name in names {
        for value in values {
            let pair = format!("{name}={value}");
            calls.push((Method::GET, format!("{path}?{pair}"), "", Vec::new()));
            calls.push((
                Method::GET,
                format!("{path}?watch=1&timeoutSeconds=1&{pair}&resourceVersion=0"),
                "",
                Vec::new(),
            ));
            calls.push((
                Method::DELETE,
                format!("{path}/nothing?{pair}"),
                "",
                Vec::new(),
            ));
            let body = json!({"metadata": {"name": "x"}}).to_string().into_bytes();
            calls.push((
                Method::POST,
                format!("{path}?dryRun=All&{pair}"),
                "application/json",
                body,
            ));
        }
    }
    let long = "a=b,".repeat(20_000);
    calls.push((
        Method::GET,
        format!("{path}?labelSelector={long}"),
        "",
        Vec::new(),
    ));
    calls.push((
        Method::GET,
        format!("{path}?{}", "x=y&".repeat(10_000)),
        "",
        Vec::new(),
    ));
    calls
}

pub fn unknown_paths() -> Vec<Call> {
    let paths = [
        "/",
        "//",
        "/api",
        "/api/",
        "/api/v2",
        "/api/v1/nothing",
        "/api/v1/namespaces/x/y/z/a/b/c",
        "/apis/none/v1/x",
        "/apis/apps/v9/deployments",
        "/apis//v1",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/a/pods/%2e%2e",
        "/api/v1/namespaces/a/pods/..",
        "/api/v1/namespaces/%00/pods",
        "/api/v1/namespaces/a%2fb/pods/c",
        "/api/v1/namespaces/a/pods/%ff",
        "/api/v1/pods/x",
        "/api/v1/namespaces/default/pods/x/nothing",
        "/api/v1/namespaces/default/pods/x/exec",
        "/api/v1/namespaces/default/pods/x/log",
        "/api/v1/namespaces/default/pods/x/proxy/",
        "/api/v1/namespaces/default/services/https:x:y/proxy/",
        "/api/v1/nodes/x/proxy/metrics",
        "/api/v1/proxy/nodes/x",
        "/api/v1/watch/pods/x/y",
        "/openapi/v2/x",
        "/openapi/v3/apis/none",
        "/openapi/v3/api/v1?hash=x",
        "/healthz/none",
        "/metrics/x",
        "/version/x",
        "/.well-known/none",
        "/logs/../../etc/passwd",
        "/debug/pprof/heap",
        "/api/v1/namespaces/default/finalize",
        "/api/v1/namespaces/none/status",
        "/api/v1/componentstatuses/x",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews/x",
    ];
    let mut calls = Vec::new();
    for path in paths {
        for method in [
            "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW",
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let media = if method == Method::PATCH {
                PATCHES[1]
            } else {
                "application/json"
            };
            calls.push((method, path.to_owned(), media, b"{}".to_vec()));
        }
    }
    calls.push((
        Method::GET,
        format!("/api/v1/namespaces/{}/pods", "a".repeat(50_000)),
        "",
        Vec::new(),
    ));
    calls.push((
        Method::GET,
        format!("/{}", "a/".repeat(20_000)),
        "",
        Vec::new(),
    ));
    calls
}

/// Bodies that are too large or too deep, or grow when they are read.
pub async fn heavy_bodies(caller: &Caller) -> Vec<String> {
    let path = format!(
        "/api/v1/namespaces/{}/configmaps?dryRun=All",
        rows::NAMESPACE
    );
    let deep = |open: &str, close: &str, depth: usize| {
        format!(
            "{{\"metadata\":{{\"name\":\"x\"}},\"data\":{}{}}}",
            open.repeat(depth),
            close.repeat(depth)
        )
    };
    let mut laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (from, to) in "abcdefgh".chars().zip("bcdefghi".chars()) {
        laughs.push_str(&format!(
            "{to}: &{to} [{}]\n",
            vec![format!("*{from}"); 9].join(",")
        ));
    }
    let nested_wire = (0..20_000).fold(Vec::new(), |inner: Vec<u8>, _| match inner.len() {
        0..=100_000 => [&[0x0a][..], &length(inner.len()), &inner].concat(),
        _ => inner,
    });
    let crd = json!({"metadata": {"name": "x"}, "data": {"k": "x".repeat(2 << 20)}}).to_string();
    let cases = [
        (
            "3 MiB and more",
            "application/json",
            vec![b' '; (3 << 20) + 1],
            413,
        ),
        ("64 MiB", "application/json", vec![b'['; 64 << 20], 413),
        (
            "deep arrays",
            "application/json",
            deep("[", "]", 1_000_000).into_bytes(),
            400,
        ),
        (
            "deep objects",
            "application/json",
            deep("{\"a\":", "}", 400_000).into_bytes(),
            400,
        ),
        (
            "deep but small",
            "application/json",
            deep("[", "]", 5_000).into_bytes(),
            400,
        ),
        (
            "deep YAML",
            "application/yaml",
            deep("[", "]", 100_000).into_bytes(),
            400,
        ),
        (
            "YAML that laughs",
            "application/yaml",
            laughs.into_bytes(),
            400,
        ),
        (
            "deep protobuf",
            "application/vnd.kubernetes.protobuf",
            protobuf::wrap("v1", "ConfigMap", &nested_wire),
            400,
        ),
        ("2 MiB of text", "application/json", crd.into_bytes(), 422),
        ("an unknown media type", "text/plain", b"{}".to_vec(), 415),
    ];
    let mut wrong = Vec::new();
    for (what, media, body, expected) in cases {
        let code = caller.call(Method::POST, &path, media, body).await;
        if code != expected {
            wrong.push(format!("{what}: {code}, expected {expected}"));
        }
    }
    for media in PATCHES {
        let target = format!("/api/v1/namespaces/{}/pods/one", rows::NAMESPACE);
        let code = caller
            .call(
                Method::PATCH,
                &target,
                media,
                deep("[", "]", 100_000).into_bytes(),
            )
            .await;
        if code != 400 {
            wrong.push(format!("a deep {media}: {code}"));
        }
    }
    wrong
}

/// A protobuf length.
fn length(mut number: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while number > 0x7f {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}
