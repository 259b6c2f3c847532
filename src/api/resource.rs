//! Names of kinds and resources, and what one request aims at.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// A name that is usually a constant of the table and sometimes comes from a CRD or a URL.
pub type Name = Cow<'static, str>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    pub group: Name,
    pub version: Name,
    pub kind: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    pub group: Name,
    pub version: Name,
    /// The plural, as in the URL.
    pub resource: Name,
}

impl GroupVersionKind {
    /// `v1` for the core group, else `group/version`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

impl GroupVersionResource {
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Resource={}", self.api_version(), self.resource)
    }
}

/// What is done to a resource; the words RBAC rules use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    pub fn is_read_only(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// The resource, and within it the object, that a request aims at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub resource: GroupVersionResource,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<Name>,
}

/// How the body of a patch is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

/// Best first: stable before beta before alpha, newer before older, then whatever is no version.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// `(stability, major, minor)` of `v1`, `v1beta2` …
fn rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let major = rest[..digits].parse().ok()?;
    match &rest[digits..] {
        "" => Some((2, major, 0)),
        rest => {
            let (stability, minor) = match rest.strip_prefix("beta") {
                Some(minor) => (1, minor),
                None => (0, rest.strip_prefix("alpha")?),
            };
            Some((stability, major, minor.parse().ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_versions() {
        let mut versions = ["v1alpha1", "v2", "foo", "v1beta10", "v1", "v1beta2", "v10"];
        versions.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]
        );
    }
}
