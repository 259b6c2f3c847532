//! The list in `metadata.managedFields`.

use serde_json::{Value, json};

use super::set::Set;
use crate::meta::{self, get, text};

/// Who wrote, and through which door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    manager: String,
    applies: bool,
    /// Empty for appliers: they keep one entry whatever version they speak.
    api_version: String,
    subresource: String,
}

impl Identity {
    pub(super) fn update(manager: &str, api_version: &str, subresource: &str) -> Self {
        Self {
            manager: manager.to_owned(),
            applies: false,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    pub(super) fn apply(manager: &str, subresource: &str) -> Self {
        Self {
            manager: manager.to_owned(),
            applies: true,
            api_version: String::new(),
            subresource: subresource.to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) identity: Identity,
    api_version: String,
    time: String,
    pub(super) set: Set,
}

impl Entry {
    /// How conflicts name the manager.
    pub(super) fn described(&self) -> String {
        let mut words = crate::field::go_quote(&self.identity.manager);
        if !self.identity.subresource.is_empty() {
            let quoted = crate::field::go_quote(&self.identity.subresource);
            words.push_str(&format!(" with subresource {quoted}"));
        }
        if !self.identity.applies {
            words.push_str(&format!(" using {}", self.api_version));
        }
        words
    }

    fn read(entry: &Value) -> Option<Self> {
        let api_version = text(entry, &["apiVersion"]).to_owned();
        let applies = match text(entry, &["operation"]) {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        if api_version.is_empty() || text(entry, &["fieldsType"]) != "FieldsV1" {
            return None;
        }
        Some(Self {
            identity: Identity {
                manager: text(entry, &["manager"]).to_owned(),
                applies,
                api_version: if applies {
                    String::new()
                } else {
                    api_version.clone()
                },
                subresource: text(entry, &["subresource"]).to_owned(),
            },
            api_version,
            time: text(entry, &["time"]).to_owned(),
            set: match get(entry, "fieldsV1") {
                Value::Null => Set::default(),
                fields => Set::from_fields(fields)?,
            },
        })
    }

    fn write(&self) -> Value {
        let operation = if self.identity.applies {
            "Apply"
        } else {
            "Update"
        };
        let mut entry = json!({
            "manager": self.identity.manager,
            "operation": operation,
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.set.to_fields(),
        });
        if !self.time.is_empty() {
            entry["time"] = Value::from(self.time.as_str());
        }
        if !self.identity.subresource.is_empty() {
            entry["subresource"] = Value::from(self.identity.subresource.as_str());
        }
        entry
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Managers(pub(super) Vec<Entry>);

impl Managers {
    /// `None` if an entry is malformed.
    pub(super) fn read(list: &[Value]) -> Option<Self> {
        list.iter()
            .map(Entry::read)
            .collect::<Option<Vec<_>>>()
            .map(Self)
    }

    pub(super) fn find(&self, identity: &Identity) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.identity == *identity)
    }

    /// Adds fields to an entry, which is made if it is absent.
    pub(super) fn extend(&mut self, identity: Identity, set: Set, time: &str) {
        match self.0.iter_mut().find(|entry| entry.identity == identity) {
            Some(entry) => {
                entry.set = entry.set.union(&set);
                time.clone_into(&mut entry.time);
            }
            None => self.0.push(Entry {
                api_version: identity.api_version.clone(),
                identity,
                time: time.to_owned(),
                set,
            }),
        }
    }

    /// Gives an applier exactly these fields; the time of its entry stays for now.
    pub(super) fn replace(&mut self, identity: &Identity, set: Set, version: &str) {
        let before = self
            .0
            .iter()
            .position(|entry| entry.identity == *identity)
            .map(|index| self.0.remove(index));
        self.0.push(Entry {
            identity: identity.clone(),
            api_version: version.to_owned(),
            time: before.map(|entry| entry.time).unwrap_or_default(),
            set,
        });
    }

    /// The entry's last write was now.
    pub(super) fn touch(&mut self, identity: &Identity, time: &str) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.identity == *identity) {
            time.clone_into(&mut entry.time);
        }
    }

    pub(super) fn drop_empty(&mut self) {
        self.0.retain(|entry| !entry.set.is_empty());
    }

    /// Merges the oldest `Update` entries if there are too many.
    pub(super) fn cap(&mut self, max: usize) {
        let updaters = self
            .0
            .iter()
            .filter(|entry| !entry.identity.applies)
            .count();
        if updaters <= max {
            return;
        }
        self.sort();
        let mut excess = updaters - max + 1;
        let mut kept: Vec<Entry> = Vec::new();
        let mut merged: Vec<Entry> = Vec::new();
        for entry in std::mem::take(&mut self.0) {
            if entry.identity.applies || excess == 0 {
                kept.push(entry);
                continue;
            }
            excess -= 1;
            let version = entry.api_version.clone();
            match merged.iter_mut().find(|one| one.api_version == version) {
                Some(ancient) => {
                    ancient.set = ancient.set.union(&entry.set);
                    ancient.time = entry.time;
                }
                None => merged.push(Entry {
                    identity: Identity::update("ancient-changes", &version, ""),
                    ..entry
                }),
            }
        }
        kept.extend(merged);
        self.0 = kept;
    }

    /// Appliers first, then by age.
    fn sort(&mut self) {
        self.0.sort_by(|a, b| {
            let key = |entry: &Entry| {
                (
                    !entry.identity.applies,
                    entry.time.clone(),
                    entry.identity.manager.clone(),
                    entry.api_version.clone(),
                    entry.identity.subresource.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
    }

    pub(super) fn write(mut self, object: &mut Value) {
        if self.0.is_empty() {
            meta::remove(object, &["metadata", "managedFields"]);
            return;
        }
        self.sort();
        let list: Vec<Value> = self.0.iter().map(Entry::write).collect();
        meta::set(object, &["metadata", "managedFields"], list);
    }
}
