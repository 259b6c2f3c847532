//! What a request's path and method say: the resource, the object, the verb. Pure.
//!
//! Authorization decides on the outcome, so it follows upstream's request-info rules to the letter,
//! also for paths that lead nowhere.

use std::borrow::Cow;

use http::Method;

use super::query::Query;

/// A request as authorization sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathInfo {
    pub is_resource: bool,
    /// The decoded path.
    pub path: String,
    /// An API verb, or the lower-case method for a path that is no resource; may be empty.
    pub verb: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// What stands behind the subresource (`proxy/PATH`), or too many parts.
    pub rest: Vec<String>,
    /// A `/watch/` or `/proxy/` in front of the resource.
    pub verb_in_path: bool,
    /// The name came from a field selector, not from the path.
    pub name_from_selector: bool,
}

impl PathInfo {
    pub fn parse(method: &Method, raw_path: &str, query: &Query) -> Self {
        let path = percent_decode(raw_path).into_owned();
        let parts = split(&path);
        let mut info = Self {
            verb: method.as_str().to_ascii_lowercase(),
            ..Self::default()
        };
        info.parse_resource(method, &parts);
        if info.is_resource && info.name.is_empty() {
            info.refine_collection_verb(query);
        }
        info.path = path;
        info
    }

    fn parse_resource(&mut self, method: &Method, parts: &[&str]) {
        let rest = match parts {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                self.version = (*version).to_owned();
                rest
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                self.group = (*group).to_owned();
                self.version = (*version).to_owned();
                rest
            }
            _ => return,
        };
        self.is_resource = true;
        let mut rest = rest;
        if matches!(rest[0], "watch" | "proxy") && rest.len() > 1 {
            self.verb = rest[0].to_owned();
            self.verb_in_path = true;
            rest = &rest[1..];
        } else {
            self.verb = verb_of(method).to_owned();
        }
        if let ["namespaces", namespace, tail @ ..] = rest {
            self.namespace = (*namespace).to_owned();
            if !tail.is_empty() && !matches!(tail[0], "status" | "finalize") {
                rest = tail;
            }
        }
        self.resource = rest.first().copied().unwrap_or_default().to_owned();
        self.name = rest.get(1).copied().unwrap_or_default().to_owned();
        if !self.verb_in_path {
            self.subresource = rest.get(2).copied().unwrap_or_default().to_owned();
            self.rest = rest.iter().skip(3).map(|&part| part.to_owned()).collect();
        } else {
            self.rest = rest.iter().skip(2).map(|&part| part.to_owned()).collect();
        }
    }

    /// Without a name a get is a list or a watch, a delete one of the collection.
    fn refine_collection_verb(&mut self, query: &Query) {
        match self.verb.as_str() {
            "get" => {
                let watch = query.first("watch").is_some_and(as_bool);
                self.verb = if watch { "watch" } else { "list" }.to_owned();
            }
            "delete" => self.verb = "deletecollection".to_owned(),
            "watch" => {}
            _ => return,
        }
        // A selection of one name is authorized like that one object.
        let selector = query.first("fieldSelector").unwrap_or_default();
        if let Ok(selector) = sampan_api::FieldSelector::parse(selector)
            && let Some(name) = selector.exact("metadata.name")
            && is_path_segment(name)
        {
            self.name = name.to_owned();
            self.name_from_selector = true;
        }
    }
}

fn is_path_segment(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%'])
}

fn verb_of(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// As upstream reads booleans in a query: everything but `false` and `0` is true.
pub fn as_bool(value: &str) -> bool {
    !(value.eq_ignore_ascii_case("false") || value == "0")
}

fn split(path: &str) -> Vec<&str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Vec::new();
    }
    path.split('/').collect()
}

/// `%41` becomes `A`; what is no valid escape stays.
pub fn percent_decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let escaped = (bytes[index] == b'%')
            .then(|| bytes.get(index + 1..index + 3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(byte) => {
                out.push(byte);
                index += 3;
            }
            None => {
                out.push(bytes[index]);
                index += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &Method, path: &str, query: &str) -> PathInfo {
        PathInfo::parse(method, path, &Query::parse(query))
    }

    fn check(method: &Method, path: &str, expected: &str) {
        let info = parse(method, path, "");
        let found = format!(
            "{} {}/{} ns={} {}/{} name={}",
            info.verb,
            info.group,
            info.version,
            info.namespace,
            info.resource,
            info.subresource,
            info.name
        );
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn resources() {
        let get = &Method::GET;
        check(get, "/api/v1/pods", "list /v1 ns= pods/ name=");
        check(get, "/api/v1/namespaces", "list /v1 ns= namespaces/ name=");
        check(
            get,
            "/api/v1/namespaces/a",
            "get /v1 ns=a namespaces/ name=a",
        );
        check(
            get,
            "/api/v1/namespaces/a/status",
            "get /v1 ns=a namespaces/status name=a",
        );
        check(
            get,
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            "get apps/v1 ns=a deployments/scale name=d",
        );
        check(
            get,
            "/api/v1/watch/namespaces/a/pods/p",
            "watch /v1 ns=a pods/ name=p",
        );
        check(
            &Method::DELETE,
            "/api/v1/namespaces/a/pods",
            "deletecollection /v1 ns=a pods/ name=",
        );
        check(
            &Method::POST,
            "/api/v1/nodes/n/proxy/x/y",
            "create /v1 ns= nodes/proxy name=n",
        );
    }

    #[test]
    fn other_paths() {
        for path in ["/api", "/apis/apps/v1", "/healthz", "/", "//api/v1"] {
            let info = parse(&Method::GET, path, "");
            assert!(!info.is_resource, "{path}");
            assert_eq!(info.verb, "get");
        }
    }

    #[test]
    fn query_refines() {
        let path = "/api/v1/pods";
        assert_eq!(parse(&Method::GET, path, "watch=1").verb, "watch");
        assert_eq!(parse(&Method::GET, path, "watch=false").verb, "list");
        let one = parse(&Method::GET, path, "fieldSelector=metadata.name%3Da");
        assert_eq!((one.name.as_str(), one.name_from_selector), ("a", true));
        assert_eq!(percent_decode("a%2Fb%zz%4"), "a/b%zz%4");
    }
}
