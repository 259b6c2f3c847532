//! What extension API servers read to authenticate the requests that are passed on to them.

use sampan_api::resource::{GroupVersionResource, Target};
use sampan_api::{Options, Reason, Verb};
use sampan_client::{Body, Error, Request, Transport};
use serde_json::{Value, json};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";

/// The authorities (PEM) of clients and of the front proxy.
pub struct Authorities<'a> {
    pub clients: &'a str,
    pub request_headers: &'a str,
    /// Common names of front proxies.
    pub proxies: &'a [&'a str],
}

/// Creates the ConfigMap, or brings it up to date.
pub async fn publish(
    transport: &dyn Transport,
    authorities: &Authorities<'_>,
) -> Result<(), Error> {
    let object = config_map(authorities);
    match transport.send(request(Verb::Create, object.clone())).await {
        Err(Error::Api(status)) if status.is(Reason::AlreadyExists) => {}
        other => return other.map(drop),
    }
    let found = transport.send(request(Verb::Get, Value::Null)).await?;
    let mut found: Value =
        serde_json::from_slice(&found).map_err(|error| Error::Malformed(error.to_string()))?;
    if found["data"] == object["data"] {
        return Ok(());
    }
    found["data"] = object["data"].clone();
    transport.send(request(Verb::Update, found)).await.map(drop)
}

fn config_map(authorities: &Authorities<'_>) -> Value {
    let list = |items: &[&str]| json!(items).to_string();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {
            "client-ca-file": authorities.clients,
            "requestheader-allowed-names": list(authorities.proxies),
            "requestheader-client-ca-file": authorities.request_headers,
            "requestheader-extra-headers-prefix": list(&["X-Remote-Extra-"]),
            "requestheader-group-headers": list(&["X-Remote-Group"]),
            "requestheader-uid-headers": list(&["X-Remote-Uid"]),
            "requestheader-username-headers": list(&["X-Remote-User"]),
        },
    })
}

fn request(verb: Verb, object: Value) -> Request {
    Request {
        verb,
        target: Target {
            resource: GroupVersionResource {
                group: "".into(),
                version: "v1".into(),
                resource: "configmaps".into(),
            },
            namespace: Some(NAMESPACE.to_owned()),
            name: (verb != Verb::Create).then(|| NAME.to_owned()),
            subresource: None,
        },
        options: Options::default(),
        body: if object.is_null() {
            Body::None
        } else {
            Body::Object(object)
        },
    }
}
