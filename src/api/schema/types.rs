//! The static tables made by the build script from `data/types.txt`, and their lookups.

use super::{
    Field, FieldDefault, List, ListKind, Map, Or, Schema, SchemaRef, Shape, Slice, Struct, Union,
};
use crate::resource::Name;

#[allow(
    non_upper_case_globals,
    reason = "generated names mirror the types' names"
)]
mod generated {
    use super::*;
    include!(concat!(env!("OUT_DIR"), "/types.rs"));
}

/// The type of a kind; `DeleteOptions` and other kinds that live in every group are in `meta/v1`.
pub fn of_kind(group: &str, version: &str, kind: &str) -> Option<&'static Schema> {
    generated::KINDS
        .binary_search_by(|(key, _)| key.cmp(&(group, version, kind)))
        .ok()
        .map(|index| generated::KINDS[index].1)
}

/// The type with an OpenAPI name.
pub fn by_name(name: &str) -> Option<&'static Schema> {
    generated::NAMES
        .binary_search_by(|(key, _)| (*key).cmp(name))
        .ok()
        .map(|index| generated::NAMES[index].1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_row_has_a_type() {
        for row in crate::Registry::builtin().snapshot().rows() {
            for version in &row.versions {
                assert!(
                    of_kind(&version.group, &version.version, &row.kind).is_some(),
                    "{row:?}"
                );
            }
        }
    }

    #[test]
    fn fields_are_sorted() {
        for (name, schema) in generated::NAMES {
            let fields = &schema.as_struct().unwrap().fields;
            assert!(fields.is_sorted_by_key(|field| &field.name), "{name}");
            assert_eq!(*name, schema.name);
        }
        let pod = of_kind("", "v1", "Pod").unwrap();
        assert_eq!(pod.field("spec").unwrap().tag, 2);
    }
}
