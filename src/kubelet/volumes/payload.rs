//! The files that volumes show: pure functions from objects to paths and bytes.

use crate::env::not_found;
use crate::fields::{self, Surroundings};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, Secret,
};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    pub uid: Option<u32>,
}

impl File {
    pub fn new(data: Vec<u8>, mode: u32) -> Self {
        Self {
            data,
            mode,
            uid: None,
        }
    }
}

/// Files by their path within the volume.
pub type Payload = BTreeMap<String, File>;

pub const DEFAULT_MODE: i32 = 0o644;

pub fn mode(asked: Option<i32>) -> u32 {
    u32::try_from(asked.unwrap_or(DEFAULT_MODE)).unwrap_or(0o644) & 0o7777
}

/// How a source of keys is shown.
pub struct Selection<'a> {
    pub name: &'a str,
    pub items: Option<&'a [KeyToPath]>,
    pub mode: u32,
    pub optional: bool,
}

type Keys = BTreeMap<String, Vec<u8>>;

pub fn config_map(map: Option<&ConfigMap>, selection: &Selection<'_>) -> Result<Payload, String> {
    let keys = map.map(|map| {
        let text = map.data.iter().flatten();
        let binary = map.binary_data.iter().flatten();
        text.map(|(k, v)| (k.clone(), v.clone().into_bytes()))
            .chain(binary.map(|(k, v)| (k.clone(), v.0.clone())))
            .collect()
    });
    select(keys, "configmap", "config", selection)
}

pub fn secret(secret: Option<&Secret>, selection: &Selection<'_>) -> Result<Payload, String> {
    let keys = secret.map(|secret| {
        let data = secret.data.iter().flatten();
        data.map(|(k, v)| (k.clone(), v.0.clone())).collect()
    });
    select(keys, "secret", "secret", selection)
}

fn select(
    keys: Option<Keys>,
    kind: &str,
    adjective: &str,
    selection: &Selection<'_>,
) -> Result<Payload, String> {
    let Some(keys) = keys else {
        return if selection.optional {
            Ok(Payload::new())
        } else {
            Err(not_found(kind, selection.name))
        };
    };
    let Some(items) = selection.items.filter(|items| !items.is_empty()) else {
        let files = keys.into_iter();
        return Ok(files
            .map(|(key, data)| (key, File::new(data, selection.mode)))
            .collect());
    };
    let mut payload = Payload::new();
    for item in items {
        match keys.get(&item.key) {
            Some(data) => {
                let mode = item.mode.map_or(selection.mode, |m| mode(Some(m)));
                payload.insert(item.path.clone(), File::new(data.clone(), mode));
            }
            None if selection.optional => {}
            None => {
                return Err(format!(
                    "references non-existent {adjective} key: {}",
                    item.key
                ));
            }
        }
    }
    Ok(payload)
}

pub fn downward(
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: u32,
    around: &Surroundings,
) -> Result<Payload, String> {
    let nobody = Container::default();
    let mut payload = Payload::new();
    for item in items {
        let text = if let Some(selector) = &item.field_ref {
            fields::field(pod, selector, around)?
        } else if let Some(selector) = &item.resource_field_ref {
            fields::resource(pod, &nobody, selector, around)?
        } else {
            continue;
        };
        let mode = item.mode.map_or(default_mode, |m| mode(Some(m)));
        payload.insert(item.path.clone(), File::new(text.into_bytes(), mode));
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn selection<'a>(items: Option<&'a [KeyToPath]>, optional: bool) -> Selection<'a> {
        Selection {
            name: "cm",
            items,
            mode: 0o644,
            optional,
        }
    }

    #[test]
    fn all_keys_or_those_chosen() {
        let map: ConfigMap = serde_json::from_value(
            json!({"metadata": {}, "data": {"a": "1", "b": "2"}, "binaryData": {"c": "AA=="}}),
        )
        .unwrap();
        let all = config_map(Some(&map), &selection(None, false)).unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(all["c"].data, [0]);
        let items: Vec<KeyToPath> =
            serde_json::from_value(json!([{"key": "b", "path": "x/y", "mode": 0o400}])).unwrap();
        let chosen = config_map(Some(&map), &selection(Some(&items), false)).unwrap();
        assert_eq!(chosen["x/y"], File::new(b"2".to_vec(), 0o400));
    }

    #[test]
    fn absence_is_an_error_unless_optional() {
        let error = config_map(None, &selection(None, false)).unwrap_err();
        assert_eq!(error, "configmap \"cm\" not found");
        assert!(config_map(None, &selection(None, true)).unwrap().is_empty());
        let items: Vec<KeyToPath> =
            serde_json::from_value(json!([{"key": "zz", "path": "p"}])).unwrap();
        let map = ConfigMap::default();
        let error = config_map(Some(&map), &selection(Some(&items), false)).unwrap_err();
        assert_eq!(error, "references non-existent config key: zz");
    }
}
