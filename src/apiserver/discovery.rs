//! Discovery documents, derived from the registry's rows: which groups, versions and resources there are.
//! Pure; the front keeps what was made for a state of the rows.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sampan_api::ResourceDef;
use sampan_api::registry::{ServedVersion, Snapshot, SubresourceDef};
use sampan_api::resource::{Verb, api_version, compare_versions};
use serde_json::{Map, Value, json};

mod priority;
pub mod services;

pub use priority::{group_priority, version_priority};

/// A group with its versions, most preferred first.
struct Group {
    name: String,
    versions: Vec<String>,
}

fn groups(rows: &Snapshot) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows.rows() {
        for served in row.versions.iter().filter(|version| version.served) {
            let index = groups
                .iter()
                .position(|group| group.name == served.group)
                .unwrap_or_else(|| {
                    groups.push(Group {
                        name: served.group.to_string(),
                        versions: Vec::new(),
                    });
                    groups.len() - 1
                });
            let version = served.version.to_string();
            if !groups[index].versions.contains(&version) {
                groups[index].versions.push(version);
            }
        }
    }
    for group in &mut groups {
        group.versions.sort_by(|a, b| compare_versions(a, b));
    }
    groups.sort_by(|a, b| {
        group_priority(&b.name)
            .cmp(&group_priority(&a.name))
            .then_with(|| a.name.cmp(&b.name))
    });
    groups
}

/// `/api`
pub fn legacy_versions(public_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [
            {"clientCIDR": "0.0.0.0/0", "serverAddress": public_address},
        ],
    })
}

/// `/apis`
pub fn group_list(rows: &Snapshot) -> Value {
    let all: Vec<Value> = groups(rows)
        .iter()
        .filter(|group| !group.name.is_empty())
        .map(group_document)
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": all})
}

/// `/apis/GROUP`
pub fn group(rows: &Snapshot, name: &str) -> Option<Value> {
    let group = groups(rows)
        .into_iter()
        .find(|group| group.name == name && !name.is_empty())?;
    let mut document = group_document(&group);
    document["kind"] = "APIGroup".into();
    document["apiVersion"] = "v1".into();
    Some(document)
}

fn group_document(group: &Group) -> Value {
    let version = |version: &String| {
        json!({
            "groupVersion": api_version(&group.name, version),
            "version": version,
        })
    };
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({
        "name": group.name,
        "preferredVersion": versions.first(),
        "versions": versions,
    })
}

/// Rows with the version they are served under, by name.
fn served_rows<'a>(
    rows: &'a Snapshot,
    group: &str,
    version: &str,
) -> Vec<(&'a ResourceDef, &'a ServedVersion)> {
    let mut found: Vec<_> = rows
        .rows()
        .iter()
        .filter_map(|row| {
            let served = row.version(group, version)?;
            served.served.then_some((&**row, served))
        })
        .collect();
    found.sort_by(|a, b| a.0.plural.cmp(&b.0.plural));
    found
}

fn verbs(verbs: &[Verb]) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = verbs.iter().map(|verb| verb.as_str()).collect();
    names.sort_unstable();
    names
}

/// `/api/v1`, `/apis/GROUP/VERSION`
pub fn resource_list(rows: &Snapshot, group: &str, version: &str) -> Option<Value> {
    let found = served_rows(rows, group, version);
    if found.is_empty() {
        return None;
    }
    let mut resources = Vec::new();
    for (row, served) in found {
        resources.push(resource_document(row));
        for subresource in subresources(row) {
            resources.push(subresource_document(row, served, subresource));
        }
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version(group, version),
        "resources": resources,
    }))
}

/// By name; those of custom resources in their own order.
fn subresources(row: &ResourceDef) -> Vec<&SubresourceDef> {
    let mut all: Vec<&SubresourceDef> = row.subresources.iter().collect();
    if !row.is_custom() {
        all.sort_by(|a, b| a.name.cmp(&b.name));
    }
    all
}

/// By name; those of custom resources in their own order.
fn verbs_of(row: &ResourceDef) -> Vec<&'static str> {
    if row.is_custom() {
        return row.verbs.iter().map(|verb| verb.as_str()).collect();
    }
    verbs(&row.verbs)
}

fn resource_document(row: &ResourceDef) -> Value {
    let mut document = json!({
        "name": row.plural,
        "singularName": row.singular,
        "namespaced": row.is_namespaced(),
        "kind": row.kind,
        "verbs": verbs_of(row),
    });
    if !row.short_names.is_empty() {
        document["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        document["categories"] = json!(row.categories);
    }
    if row.is_stored() {
        document["storageVersionHash"] = storage_version_hash(row).into();
    }
    document
}

fn subresource_document(
    row: &ResourceDef,
    served: &ServedVersion,
    subresource: &SubresourceDef,
) -> Value {
    let mut document = json!({
        "name": format!("{}/{}", row.plural, subresource.name),
        "singularName": "",
        "namespaced": row.is_namespaced(),
        "kind": subresource.kind.as_ref().map_or(&row.kind, |kind| &kind.kind),
        "verbs": verbs(&subresource.verbs),
    });
    if let Some(kind) = &subresource.kind
        && (kind.group != served.group || kind.version != served.version)
    {
        if !kind.group.is_empty() {
            document["group"] = json!(kind.group);
        }
        document["version"] = json!(kind.version);
    }
    document
}

/// Changes when the stored form does: clients that migrate storage compare it.
fn storage_version_hash(row: &ResourceDef) -> String {
    let stored = row.storage_version();
    let version = match &*row.kind {
        // Upstream stores these in an older form.
        "CustomResourceDefinition"
        | "MutatingAdmissionPolicy"
        | "MutatingAdmissionPolicyBinding"
            if !row.is_custom() =>
        {
            "v1beta1"
        }
        _ => &*stored.version,
    };
    let text = format!("{}/{version}/{}", stored.group, row.kind);
    let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    STANDARD.encode(&hash.as_ref()[..8])
}

/// Aggregated discovery: of the core group (`/api`) or of all others (`/apis`).
pub fn aggregated(rows: &Snapshot, core: bool) -> Value {
    let items: Vec<Value> = groups(rows)
        .iter()
        .filter(|group| group.name.is_empty() == core)
        .map(|group| aggregated_group(rows, group))
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_group(rows: &Snapshot, group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| {
            let resources: Vec<Value> = served_rows(rows, &group.name, version)
                .into_iter()
                .map(|(row, served)| aggregated_resource(row, served))
                .collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let mut metadata = Map::new();
    if !group.name.is_empty() {
        metadata.insert("name".to_owned(), group.name.as_str().into());
    }
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(row: &ResourceDef, served: &ServedVersion) -> Value {
    let own_kind = if row.is_custom() {
        json!({"group": served.group, "version": served.version, "kind": row.kind})
    } else {
        json!({"group": "", "version": "", "kind": row.kind})
    };
    let mut document = json!({
        "resource": row.plural,
        "responseKind": own_kind,
        "scope": if row.is_namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": row.singular,
        "verbs": verbs_of(row),
    });
    if !row.short_names.is_empty() {
        document["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        document["categories"] = json!(row.categories);
    }
    let subresources: Vec<Value> = subresources(row)
        .into_iter()
        .map(|subresource| {
            let kind = match &subresource.kind {
                Some(kind) if kind.group != served.group || kind.version != served.version => {
                    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
                }
                Some(kind) => json!({"group": "", "version": "", "kind": kind.kind}),
                None => own_kind.clone(),
            };
            json!({
                "subresource": subresource.name,
                "responseKind": kind,
                "verbs": verbs(&subresource.verbs),
            })
        })
        .collect();
    if !subresources.is_empty() {
        document["subresources"] = subresources.into();
    }
    document
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use sampan_api::Registry;

    use super::*;

    #[test]
    fn documents_of_the_builtin_rows() {
        let registry = Registry::builtin();
        let rows = registry.snapshot();
        let list = resource_list(&rows, "", "v1").unwrap();
        let names: Vec<&str> = list["resources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        for name in ["pods", "pods/exec", "nodes/proxy", "namespaces/finalize"] {
            assert!(names.contains(&name), "{name}");
        }
        let pods = list["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["name"] == "pods")
            .unwrap();
        assert_eq!(pods["storageVersionHash"], "xPOwRZ+Yhw8=");
        let autoscaling = group(&rows, "autoscaling").unwrap();
        assert_eq!(autoscaling["preferredVersion"]["version"], "v2");
        assert!(resource_list(&rows, "apps", "v9").is_none());
        let all = aggregated(&rows, false);
        assert_eq!(
            all["items"][0]["metadata"]["name"],
            "apiregistration.k8s.io"
        );
        let core = aggregated(&rows, true);
        assert_eq!(core["items"].as_array().unwrap().len(), 1);
    }
}
