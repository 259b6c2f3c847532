//! A small image registry: what containerd asks one for when it pulls, with logins for parts of it.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::http::{self as server, Body};
use super::netns::Namespace;
use super::{Scratch, run};

/// Repositories that begin with `prefix` want this user.
pub struct Login {
    pub prefix: &'static str,
    pub user: &'static str,
    pub password: &'static str,
}

pub struct Registry {
    pub address: String,
    manifests_asked: Arc<Mutex<HashMap<String, u32>>>,
    _server: server::Server,
    _scratch: Scratch,
}

struct Content {
    manifest: Vec<u8>,
    manifest_digest: String,
    /// By digest.
    blobs: HashMap<String, Vec<u8>>,
    logins: Vec<Login>,
    asked: Arc<Mutex<HashMap<String, u32>>>,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

impl Registry {
    /// Serves the image of a `docker save` archive under every name that does not begin with `missing`.
    pub fn start(namespace: &Namespace, port: u16, archive: &Path, logins: Vec<Login>) -> Self {
        let scratch = Scratch::new("reg");
        let asked: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
        let content = content(scratch.path(), archive, logins, Arc::clone(&asked));
        let address = format!("{}:{port}", namespace.address);
        let server = server::serve(namespace, &address, move |request| content.answer(&request));
        Self {
            address,
            manifests_asked: asked,
            _server: server,
            _scratch: scratch,
        }
    }

    /// How often a manifest of the repository was asked for.
    pub fn asked(&self, repository: &str) -> u32 {
        let asked = self.manifests_asked.lock().unwrap();
        asked.get(repository).copied().unwrap_or_default()
    }
}

fn digest(file: &Path) -> String {
    let text = run(Command::new("sha256sum").arg(file));
    format!("sha256:{}", text.split_whitespace().next().unwrap())
}

fn content(
    folder: &Path,
    archive: &Path,
    logins: Vec<Login>,
    asked: Arc<Mutex<HashMap<String, u32>>>,
) -> Content {
    run(Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .arg("-C")
        .arg(folder));
    let index = std::fs::read(folder.join("manifest.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let mut blobs = HashMap::new();
    let mut blob = |name: &serde_json::Value, kind: &str| {
        let path = folder.join(name.as_str().unwrap());
        let (digest, bytes) = (digest(&path), std::fs::read(&path).unwrap());
        let row = serde_json::json!({"mediaType": kind, "digest": digest, "size": bytes.len()});
        blobs.insert(digest, bytes);
        row
    };
    let config = blob(
        &index[0]["Config"],
        "application/vnd.oci.image.config.v1+json",
    );
    let layer = blob(
        &index[0]["Layers"][0],
        "application/vnd.oci.image.layer.v1.tar",
    );
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
    });
    let manifest = manifest.to_string().into_bytes();
    let path = folder.join("oci-manifest.json");
    std::fs::write(&path, &manifest).unwrap();
    Content {
        manifest,
        manifest_digest: digest(&path),
        blobs,
        logins,
        asked,
    }
}

impl Content {
    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if path == "/v2/" {
            return plain(StatusCode::OK, "{}");
        }
        let Some(rest) = path.strip_prefix("/v2/") else {
            return plain(StatusCode::NOT_FOUND, "");
        };
        let split = |middle: &str| {
            let (repository, reference) = rest.split_once(middle)?;
            Some((repository.to_owned(), reference.to_owned()))
        };
        let (repository, reference, is_manifest) = match (split("/manifests/"), split("/blobs/")) {
            (Some((repository, reference)), _) => (repository, reference, true),
            (_, Some((repository, reference))) => (repository, reference, false),
            _ => return plain(StatusCode::NOT_FOUND, ""),
        };
        if !self.is_let_in(&repository, request) {
            let mut refused = plain(
                StatusCode::UNAUTHORIZED,
                "{\"errors\":[{\"code\":\"UNAUTHORIZED\"}]}",
            );
            let scheme = "Basic realm=\"test\"".parse().unwrap();
            refused.headers_mut().insert("www-authenticate", scheme);
            return refused;
        }
        if repository.starts_with("missing") {
            return plain(
                StatusCode::NOT_FOUND,
                "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}",
            );
        }
        if is_manifest && reference.starts_with("sha256:") && reference != self.manifest_digest {
            return plain(StatusCode::NOT_FOUND, "");
        }
        let is_head = request.method() == Method::HEAD;
        if is_manifest {
            *self.asked.lock().unwrap().entry(repository).or_default() += 1;
            return self.bytes(&self.manifest, MANIFEST, &self.manifest_digest, is_head);
        }
        match self.blobs.get(&reference) {
            Some(bytes) => self.bytes(bytes, "application/octet-stream", &reference, is_head),
            None => plain(StatusCode::NOT_FOUND, ""),
        }
    }

    fn bytes(&self, bytes: &[u8], kind: &str, digest: &str, is_head: bool) -> Response<Body> {
        let body = if is_head { Vec::new() } else { bytes.to_vec() };
        Response::builder()
            .header("content-type", kind)
            .header("content-length", bytes.len())
            .header("docker-content-digest", digest)
            .body(server::body(body))
            .unwrap()
    }

    /// The longest prefix that fits decides.
    fn is_let_in(&self, repository: &str, request: &Request<Incoming>) -> bool {
        let fitting = self
            .logins
            .iter()
            .filter(|l| repository.starts_with(l.prefix));
        let Some(login) = fitting.max_by_key(|l| l.prefix.len()) else {
            return true;
        };
        let wanted = STANDARD.encode(format!("{}:{}", login.user, login.password));
        let given = request.headers().get("authorization");
        given.is_some_and(|given| given.as_bytes() == format!("Basic {wanted}").as_bytes())
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    Response::builder()
        .status(status)
        .body(server::body(text))
        .unwrap()
}
