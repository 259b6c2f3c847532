//! Every route of the server refuses those without rights, except those of one table.
//!
//! The routes are not written down here: they derive from the rows, which must be what discovery shows, and from what
//! the server itself says it has (`/`, the lists of checks). Every path is asked with every method.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use http::{Method, Request};
use sampan_api::Verb;
use sampan_net::{ClientConfig, ClientTls, HttpClient, TcpDialer, Trust, empty};
use serde_json::Value;

use super::{Api, NAME, NAMESPACE, create_namespace, rows};
use crate::support::process::ControlPlane;

/// Who asks, by the header they send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Anonymous,
    /// Somebody whom the server knows and nobody has given a right.
    Alice,
    BadToken,
}

impl Who {
    const ALL: [Self; 3] = [Self::Anonymous, Self::Alice, Self::BadToken];

    fn authorization(self) -> Option<&'static str> {
        match self {
            Self::Anonymous => None,
            Self::Alice => Some("Bearer alice-token"),
            Self::BadToken => Some("Bearer wrong"),
        }
    }

    /// The refusal.
    fn code(self) -> u16 {
        match self {
            Self::Anonymous | Self::Alice => 403,
            Self::BadToken => 401,
        }
    }
}

/// Doors that stand open: for whom, by which method, and where. A path that ends in `/*` stands for everything below
/// it that is no resource.
const OPEN: &[(&[Who], &str, &[&str])] = &[
    // What newcomers check the authority of the cluster by, before they trust it with any credentials.
    (&Who::ALL, "GET", &["/cacerts"]),
    // system:public-info-viewer
    (
        &[Who::Anonymous, Who::Alice],
        "GET",
        &["/healthz", "/livez", "/readyz", "/version", "/version/"],
    ),
    // system:discovery
    (
        &[Who::Alice],
        "GET",
        &[
            "/api",
            "/api/*",
            "/apis",
            "/apis/*",
            "/openapi",
            "/openapi/*",
        ],
    ),
    // system:basic-user
    (
        &[Who::Alice],
        "POST",
        &[
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        ],
    ),
    // The same right; these answer that nothing is created under a name.
    (
        &[Who::Alice],
        "POST",
        &[
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews/one",
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews/one",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews/one",
        ],
    ),
];

fn is_open(who: Who, route: &Route) -> bool {
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => !route.resource && route.path.starts_with(prefix),
        None => route.path == pattern,
    };
    OPEN.iter().any(|(whom, method, paths)| {
        whom.contains(&who) && *method == route.method && paths.iter().any(|path| matches(path))
    })
}

/// One request that a client can make.
#[derive(Debug, Clone)]
struct Route {
    method: Method,
    path: String,
    /// With a leading `?`, or empty.
    query: &'static str,
    resource: bool,
    /// Asks to speak another protocol.
    upgrade: bool,
}

const METHODS: &[Method] = &[
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];

fn each_method(routes: &mut Vec<Route>, path: &str, resource: bool) {
    routes.extend(METHODS.iter().map(|method| Route {
        method: method.clone(),
        path: path.to_owned(),
        query: "",
        resource,
        upgrade: false,
    }));
}

fn get(path: &str, query: &'static str, upgrade: bool) -> Route {
    Route {
        method: Method::GET,
        path: path.to_owned(),
        query,
        resource: true,
        upgrade,
    }
}

/// All routes of all rows.
fn resource_routes() -> Vec<Route> {
    let mut routes = Vec::new();
    for row in rows() {
        for version in &row.versions {
            let root = match &*version.group {
                "" => format!("/api/{}", version.version),
                group => format!("/apis/{group}/{}", version.version),
            };
            let plural = &row.plural;
            let mut collections = vec![format!("{root}/{plural}")];
            let mut watches = vec![format!("{root}/watch/{plural}")];
            if row.is_namespaced() {
                collections.push(format!("{root}/namespaces/{NAMESPACE}/{plural}"));
                watches.push(format!("{root}/watch/namespaces/{NAMESPACE}/{plural}"));
            }
            for path in &collections {
                each_method(&mut routes, path, true);
                routes.push(get(path, "?watch=1", false));
                routes.push(get(path, "?fieldSelector=metadata.name%3Done", false));
            }
            let one =
                |collections: &[String]| format!("{}/{NAME}", collections[collections.len() - 1]);
            watches.push(one(&watches));
            for path in &watches {
                each_method(&mut routes, path, true);
            }
            let one = one(&collections);
            each_method(&mut routes, &one, true);
            for subresource in &row.subresources {
                let path = format!("{one}/{}", subresource.name);
                each_method(&mut routes, &path, true);
                each_method(&mut routes, &format!("{path}/below/it"), true);
                if subresource.verbs.contains(&Verb::Get) {
                    routes.push(get(&path, "", true));
                }
            }
            each_method(&mut routes, &format!("{one}/nothing"), true);
        }
    }
    for path in [
        "/api/v1/nothing",
        "/apis/example.com/v1/things",
        "/apis/apps/v9/deployments",
        "/api//v1/secrets",
    ] {
        each_method(&mut routes, path, true);
    }
    routes
}

/// Paths that are no resources: those the server names, and some that other servers have.
fn other_routes(admin: &Api) -> Vec<Route> {
    let text = |path: &str| {
        let bytes = admin.runtime.block_on(admin.transport.get_path(path));
        String::from_utf8(bytes.unwrap().to_vec()).unwrap()
    };
    let index: Value = serde_json::from_str(&text("/")).unwrap();
    let mut paths: BTreeSet<String> = index["paths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| path.as_str().unwrap().to_owned())
        .collect();
    assert!(paths.len() > 30, "{paths:?}");
    for endpoint in ["/healthz", "/livez", "/readyz"] {
        let list = text(&format!("{endpoint}?verbose"));
        let checks = list
            .lines()
            .filter_map(|line| line.strip_prefix("[+]")?.split(' ').next());
        paths.extend(checks.map(|check| format!("{endpoint}/{check}")));
    }
    let openapi: Value = serde_json::from_str(&text("/openapi/v3")).unwrap();
    let documents = openapi["paths"].as_object().unwrap().keys();
    paths.extend(documents.map(|path| format!("/openapi/v3/{path}")));
    paths.extend(ELSEWHERE.iter().map(|path| (*path).to_owned()));
    let mut routes = Vec::new();
    for path in &paths {
        each_method(&mut routes, path, false);
    }
    routes
}

/// What the server does not name: paths of other servers, and ways around the names of this one.
const ELSEWHERE: &[&str] = &[
    "/",
    "//",
    "/api/",
    "/apis/",
    "/apis/apps",
    "/apis/nothing",
    "/cacerts",
    "/cacerts/",
    "/cacerts/client",
    "/cacerts/..",
    "/configz",
    "/debug/api_priority_and_fairness/dump_queues",
    "/debug/flags/v",
    "/debug/pprof/",
    "/debug/pprof/heap",
    "/flagz",
    "/healthz/",
    "/healthz/../metrics",
    "/logs",
    "/logs/",
    "/metrics/cadvisor",
    "/metrics/slis",
    "/nothing",
    "/openapi",
    "/openapi/v2/x",
    "/.well-known/openid-configuration",
    "/readyz/nothing",
    "/static/",
    "/statusz",
    "/swagger.json",
    "/swaggerapi",
    "/ui",
    "/version/",
    "/version/x",
    "//api/v1/secrets",
    "/API/v1/secrets",
    "/./api/v1/secrets",
    "/healthz/../api/v1/secrets",
    "/healthz/%2e%2e/api/v1/secrets",
    "/cacerts/../api/v1/secrets",
    "/cacerts%2f..%2fapi%2fv1%2fsecrets",
];

/// Discovery shows what the rows say, so that routes made of rows are all there are.
fn check_discovery(admin: &Api) -> usize {
    let mut shown = BTreeMap::new();
    let mut read = |path: String| {
        let bytes = admin
            .runtime
            .block_on(admin.transport.get_path(&path))
            .unwrap();
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        for resource in list["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap().to_owned();
            let verbs: BTreeSet<String> =
                serde_json::from_value(resource["verbs"].clone()).unwrap();
            shown.insert((path.clone(), name), verbs);
        }
    };
    read("/api/v1".to_owned());
    let bytes = admin
        .runtime
        .block_on(admin.transport.get_path("/apis"))
        .unwrap();
    let groups: Value = serde_json::from_slice(&bytes).unwrap();
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            read(format!(
                "/apis/{}",
                version["groupVersion"].as_str().unwrap()
            ));
        }
    }
    let verbs = |verbs: &[Verb]| verbs.iter().map(|verb| verb.as_str().to_owned()).collect();
    let mut stated = BTreeMap::new();
    for row in rows() {
        for version in &row.versions {
            let path = match &*version.group {
                "" => format!("/api/{}", version.version),
                _ => format!("/apis/{}", version.api_version()),
            };
            stated.insert((path.clone(), row.plural.to_string()), verbs(&row.verbs));
            for sub in &row.subresources {
                let name = format!("{}/{}", row.plural, sub.name);
                stated.insert((path.clone(), name), verbs(&sub.verbs));
            }
        }
    }
    assert_eq!(shown, stated, "discovery and the rows differ");
    stated.len()
}

struct Client {
    http: HttpClient,
    url: String,
}

impl Client {
    fn new(plane: &ControlPlane) -> Self {
        let authority = String::from_utf8(plane.ca()).unwrap();
        let config = ClientConfig {
            tls: ClientTls {
                trust: Trust::Authorities(authority),
                identity: None,
            },
            dialer: Arc::new(TcpDialer),
            http2: false,
        };
        Self {
            http: HttpClient::new(&config).unwrap(),
            url: plane.url.clone(),
        }
    }

    async fn code(&self, who: Who, route: &Route) -> Result<u16, String> {
        let mut request = Request::builder()
            .method(route.method.clone())
            .uri(format!("{}{}{}", self.url, route.path, route.query));
        if let Some(value) = who.authorization() {
            request = request.header("authorization", value);
        }
        if route.upgrade {
            request = request
                .header("connection", "Upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
                .header("sec-websocket-protocol", "v4.channel.k8s.io");
        }
        let request = request.body(empty()).map_err(|error| error.to_string())?;
        let answer = self
            .http
            .send(request)
            .await
            .map_err(|error| error.to_string())?;
        Ok(answer.status().as_u16())
    }
}

#[test]
fn every_route_refuses_those_without_rights() {
    let plane = ControlPlane::start(&["--disable-scheduler", "--disable-controller-manager"]);
    let admin = Api::admin(&plane);
    create_namespace(&admin);
    let resources = check_discovery(&admin);
    let mut routes = resource_routes();
    let of_resources = routes.len();
    routes.extend(other_routes(&admin));
    let client = Client::new(&plane);
    let asked = Who::ALL
        .iter()
        .flat_map(|who| routes.iter().map(move |route| (*who, route)));
    let answers = stream::iter(asked)
        .map(|(who, route)| {
            let client = &client;
            async move { (who, route, client.code(who, route).await) }
        })
        .buffer_unordered(8)
        .collect::<Vec<_>>();
    let answers = admin.runtime.block_on(answers);
    let (mut refused, mut open) = (0, 0);
    let mut wrong = Vec::new();
    for (who, route, answer) in &answers {
        let expect_open = is_open(*who, route);
        let right = match answer {
            Ok(code) if expect_open => !matches!(*code, 401 | 403),
            Ok(code) => *code == who.code(),
            Err(_) => false,
        };
        match (right, expect_open) {
            (false, _) => wrong.push(format!(
                "{who:?} {} {}{}: {answer:?}",
                route.method, route.path, route.query
            )),
            (true, true) => open += 1,
            (true, false) => refused += 1,
        }
    }
    println!(
        "routes without rights: {refused} requests refused and {open} answered as the table says, of {} ({} on {resources} resources and subresources, {} on other paths, for {} kinds of users)",
        answers.len(),
        of_resources * Who::ALL.len(),
        (routes.len() - of_resources) * Who::ALL.len(),
        Who::ALL.len(),
    );
    assert!(
        wrong.is_empty(),
        "{} wrong, for example {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(40)]
    );
}
