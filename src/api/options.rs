//! The options that travel in a request's query string.

/// List, watch, create, update and patch options in one struct: every verb reads those it knows.
/// Delete options travel in the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
    pub limit: Option<i64>,
    pub continue_token: Option<String>,
    pub resource_version: Option<String>,
    pub resource_version_match: Option<String>,
    pub timeout_seconds: Option<u64>,
    pub watch: bool,
    pub allow_watch_bookmarks: bool,
    pub send_initial_events: Option<bool>,
    pub dry_run: Vec<String>,
    pub field_manager: Option<String>,
    pub field_validation: Option<String>,
    pub force: Option<bool>,
    pub ignore_store_read_error_with_cluster_breaking_potential: Option<bool>,
    pub grace_period_seconds: Option<i64>,
    pub propagation_policy: Option<String>,
    pub orphan_dependents: Option<bool>,
    /// Everything else, in order: `pretty`, `includeObject`, and the options of subresources
    /// (`container`, `follow`, `command` …).
    pub other: Vec<(String, String)>,
}

impl Options {
    /// The first value of an option that has no field of its own.
    pub fn other(&self, name: &str) -> Option<&str> {
        self.other
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn is_dry_run(&self) -> bool {
        !self.dry_run.is_empty()
    }
}
