//! Which form of an answer the client wants: the `Accept` header.

use http::HeaderMap;
use http::header::{ACCEPT, USER_AGENT};
use sampan_api::status::Details;
use sampan_api::{Reason, Status};

use super::query::Query;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaType {
    Json,
    Yaml,
    Protobuf,
}

impl MediaType {
    /// What is served, most preferred first.
    const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Protobuf];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// Another shape than the object's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    Table,
    PartialObjectMetadata,
    PartialObjectMetadataList,
}

impl Transform {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "Table" => Some(Self::Table),
            "PartialObjectMetadata" => Some(Self::PartialObjectMetadata),
            "PartialObjectMetadataList" => Some(Self::PartialObjectMetadataList),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    pub media: MediaType,
    pub pretty: bool,
    pub transform: Option<Transform>,
    /// The version of `meta.k8s.io` in which a transform was asked for is `v1beta1`.
    pub beta_transform: bool,
}

impl Negotiated {
    pub const JSON: Self = Self {
        media: MediaType::Json,
        pretty: false,
        transform: None,
        beta_transform: false,
    };
}

/// One entry of an `Accept` header.
#[derive(Debug, Clone, PartialEq)]
pub struct Clause<'a> {
    pub kind: &'a str,
    pub subkind: &'a str,
    pub quality: f32,
    pub params: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    pub fn param(&self, name: &str) -> Option<&'a str> {
        self.params
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    }

    pub fn matches(&self, media: &str) -> bool {
        let Some((kind, subkind)) = media.split_once('/') else {
            return false;
        };
        (self.kind == "*" || self.kind == kind) && (self.subkind == "*" || self.subkind == subkind)
    }
}

/// The clauses, best first; clauses of equal quality keep their order.
pub fn parse_accept(header: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = header.split(',').filter_map(parse_clause).collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

fn parse_clause(text: &str) -> Option<Clause<'_>> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().filter(|media| !media.is_empty())?;
    let (kind, subkind) = match media.split_once('/') {
        Some((kind, subkind)) => (kind.trim(), subkind.trim()),
        None if media == "*" => ("*", "*"),
        None => return None,
    };
    let mut clause = Clause {
        kind,
        subkind,
        quality: 1.0,
        params: Vec::new(),
    };
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        if key == "q" {
            clause.quality = value.parse().unwrap_or(1.0);
        } else {
            clause.params.push((key, value.trim_matches('"')));
        }
    }
    Some(clause)
}

/// The text of all `Accept` headers.
pub fn accept_header(headers: &HeaderMap) -> String {
    let all: Vec<&str> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    all.join(",")
}

/// Which media types and transforms an endpoint can make.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    pub protobuf: bool,
    pub transforms: bool,
}

/// The best form that both sides know.
pub fn negotiate(headers: &HeaderMap, query: &Query, offer: Offer) -> Result<Negotiated, Status> {
    let header = accept_header(headers);
    let pretty = wants_pretty(headers, query);
    if header.trim().is_empty() {
        return Ok(Negotiated {
            pretty,
            ..Negotiated::JSON
        });
    }
    for clause in parse_accept(&header) {
        for media in MediaType::ALL {
            if (media == MediaType::Protobuf && !offer.protobuf) || !clause.matches(media.as_str())
            {
                continue;
            }
            if let Some(transform) = transform_of(&clause, media, offer) {
                return Ok(Negotiated {
                    media,
                    pretty: pretty || clause.param("pretty") == Some("1"),
                    transform,
                    beta_transform: clause.param("v") == Some("v1beta1"),
                });
            }
        }
    }
    Err(not_acceptable())
}

/// `None` if the clause asks for something that cannot be made.
fn transform_of(clause: &Clause<'_>, media: MediaType, offer: Offer) -> Option<Option<Transform>> {
    let Some(name) = clause.param("as") else {
        return Some(None);
    };
    if !offer.transforms {
        return None;
    }
    let transform = Transform::from_name(name)?;
    let group = clause.param("g").unwrap_or_default();
    let version = clause.param("v").unwrap_or_default();
    let known = group == "meta.k8s.io" && matches!(version, "v1" | "v1beta1");
    let possible = media != MediaType::Protobuf || transform != Transform::Table;
    (known && possible).then_some(Some(transform))
}

/// Browsers and curl get indented JSON.
fn wants_pretty(headers: &HeaderMap, query: &Query) -> bool {
    if let Some(value) = query.first("pretty") {
        return super::path::as_bool(value);
    }
    headers
        .get(USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|agent| {
            ["curl", "Wget", "Mozilla/5.0"]
                .iter()
                .any(|prefix| agent.starts_with(prefix))
        })
}

pub fn not_acceptable() -> Status {
    let all: Vec<&str> = MediaType::ALL.iter().map(|media| media.as_str()).collect();
    let message = format!(
        "406: Not Acceptable\n\nAvailable representations: {}",
        all.join(", ")
    );
    Status::new(Reason::NotAcceptable, message).with_details(Details::default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::HeaderValue;

    use super::*;

    fn check(accept: &str, expected: Option<(MediaType, Option<Transform>)>) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        let offer = Offer {
            protobuf: true,
            transforms: true,
        };
        let found = negotiate(&headers, &Query::default(), offer)
            .ok()
            .map(|found| (found.media, found.transform));
        assert_eq!(found, expected, "{accept}");
    }

    #[test]
    fn clauses() {
        use MediaType::{Json, Protobuf, Yaml};
        check("", Some((Json, None)));
        check("*/*", Some((Json, None)));
        check("text/html", None);
        check("text/html, application/*;q=0.2", Some((Json, None)));
        check(
            "application/json;q=0.1,application/yaml",
            Some((Yaml, None)),
        );
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            Some((Json, Some(Transform::Table))),
        );
        check(
            "application/json;as=Table;v=v9;g=meta.k8s.io,application/json",
            Some((Json, None)),
        );
        check(
            "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json",
            Some((Json, None)),
        );
        check(
            "application/vnd.kubernetes.protobuf,application/json",
            Some((Protobuf, None)),
        );
        check("application/json;as=Other;v=v1;g=meta.k8s.io", None);
    }
}
