//! The schema of a type.

/// The schemas of a custom resource's versions.
#[derive(Debug, Default)]
pub struct CustomSchema {
    /// The CustomResourceDefinition's uid.
    pub uid: String,
}
