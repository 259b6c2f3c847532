//! The query string, and the options in it.

use sampan_api::{Options, Status};

use super::path::{as_bool, percent_decode};

/// The longest timeout that is told apart, in seconds: a hundred years.
const MAX_TIMEOUT: u64 = 100 * 366 * 86_400;

/// The pairs of a query string, decoded, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Self {
        let decode = |part: &str| percent_decode(&part.replace('+', " ")).into_owned();
        Self(
            text.split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    pub fn first(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    /// A boolean option, `false` if absent.
    pub fn flag(&self, name: &str) -> bool {
        self.first(name).is_some_and(as_bool)
    }

    pub fn integer(&self, name: &str) -> Result<Option<i64>, Status> {
        self.first(name)
            .filter(|value| !value.is_empty())
            .map(integer)
            .transpose()
    }

    /// Text that is there and not empty.
    pub fn text(&self, name: &str) -> Option<String> {
        self.first(name)
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
    }

    /// All options that any verb knows; each verb reads its own.
    pub fn options(&self) -> Result<Options, Status> {
        let mut options = Options::default();
        for (key, value) in &self.0 {
            set(&mut options, key, value)?;
        }
        Ok(options)
    }
}

fn set(options: &mut Options, key: &str, value: &str) -> Result<(), Status> {
    let text = || (!value.is_empty()).then(|| value.to_owned());
    match key {
        "labelSelector" => put(&mut options.label_selector, text()),
        "fieldSelector" => put(&mut options.field_selector, text()),
        "limit" => put(&mut options.limit, optional_integer(value)?),
        "continue" => put(&mut options.continue_token, text()),
        "resourceVersion" => put(&mut options.resource_version, text()),
        "resourceVersionMatch" => put(&mut options.resource_version_match, text()),
        "timeoutSeconds" => {
            // Any number is allowed, but no clock counts that far.
            let seconds = optional_integer(value)?
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map(|seconds| seconds.min(MAX_TIMEOUT));
            put(&mut options.timeout_seconds, seconds);
        }
        "watch" => options.watch |= as_bool(value),
        "allowWatchBookmarks" => options.allow_watch_bookmarks |= as_bool(value),
        "sendInitialEvents" => put(&mut options.send_initial_events, Some(as_bool(value))),
        "dryRun" => options.dry_run.push(value.to_owned()),
        "fieldManager" => put(&mut options.field_manager, Some(value.to_owned())),
        "fieldValidation" => put(&mut options.field_validation, text()),
        "force" => put(&mut options.force, Some(as_bool(value))),
        "ignoreStoreReadErrorWithClusterBreakingPotential" => put(
            &mut options.ignore_store_read_error_with_cluster_breaking_potential,
            Some(as_bool(value)),
        ),
        "gracePeriodSeconds" => put(&mut options.grace_period_seconds, optional_integer(value)?),
        "propagationPolicy" => put(&mut options.propagation_policy, text()),
        "orphanDependents" => put(&mut options.orphan_dependents, Some(as_bool(value))),
        _ => options.other.push((key.to_owned(), value.to_owned())),
    }
    Ok(())
}

/// The first of several values counts.
fn put<T>(slot: &mut Option<T>, value: Option<T>) {
    if slot.is_none() {
        *slot = value;
    }
}

fn optional_integer(value: &str) -> Result<Option<i64>, Status> {
    if value.is_empty() {
        return Ok(None);
    }
    integer(value).map(Some)
}

fn integer(value: &str) -> Result<i64, Status> {
    value.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => {
                "value out of range"
            }
            _ => "invalid syntax",
        };
        Status::bad_request(format!("strconv.ParseInt: parsing {value:?}: {why}"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_are_read() {
        let query = Query::parse(
            "limit=5&watch=1&labelSelector=a%3Db%2Cc+in+(d)&dryRun=All&sendInitialEvents=false&x=y&limit=7",
        );
        let options = query.options().unwrap();
        assert_eq!(options.limit, Some(5));
        assert!(options.watch);
        assert_eq!(options.label_selector.as_deref(), Some("a=b,c in (d)"));
        assert_eq!(options.dry_run, ["All"]);
        assert_eq!(options.send_initial_events, Some(false));
        assert_eq!(options.other("x"), Some("y"));
        let long = Query::parse("timeoutSeconds=9223372036854775807");
        let seconds = long.options().unwrap().timeout_seconds.unwrap();
        let deadline =
            std::time::Instant::now().checked_add(std::time::Duration::from_secs(seconds));
        assert!(deadline.is_some(), "a deadline can be told");
        let wrong = Query::parse("limit=x").options().unwrap_err();
        assert_eq!(
            (wrong.code, wrong.message.as_str()),
            (400, "strconv.ParseInt: parsing \"x\": invalid syntax")
        );
    }
}
