//! Columns and cells of tables: how lists look to people.
//!
//! A kind is a row of [`KINDS`]: its columns behind the name, and a function that fills their cells. Kinds
//! without a row show when they were made. Pure: the time is an argument.

use jiff::Timestamp;
use serde_json::Value;

use crate::{Selector, meta, time};

mod cluster;
mod core;
mod event;
mod pod;
mod policy;
mod scaling;
mod service;
mod storage;
mod workload;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub kind: &'static str,
    pub format: &'static str,
    /// Only shown when more is asked for.
    pub wide: bool,
}

impl Column {
    const NAME: Self = Self {
        name: "Name",
        kind: "string",
        format: "name",
        wide: false,
    };

    const fn wide(mut self) -> Self {
        self.wide = true;
        self
    }
}

const fn text(name: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        format: "",
        wide: false,
    }
}

const fn wide(name: &'static str) -> Column {
    text(name).wide()
}

const fn number(name: &'static str) -> Column {
    Column {
        kind: "integer",
        ..text(name)
    }
}

const fn boolean(name: &'static str) -> Column {
    Column {
        kind: "boolean",
        ..text(name)
    }
}

const AGE: Column = text("Age");

/// How one kind is shown.
pub struct Printer {
    columns: &'static [Column],
    /// The cells of `columns`.
    cells: fn(&Item<'_>) -> Vec<Value>,
    /// The name comes last and only when more is asked for (events).
    name_last: bool,
    /// The name as it is shown.
    name: fn(&Value) -> String,
}

/// An object to be shown, at a time.
pub struct Item<'a> {
    object: &'a Value,
    now: Timestamp,
}

const fn printer_of(columns: &'static [Column], cells: fn(&Item<'_>) -> Vec<Value>) -> Printer {
    Printer {
        columns,
        cells,
        name_last: false,
        name: plain_name,
    }
}

fn plain_name(object: &Value) -> String {
    meta::text(object, &["metadata", "name"]).to_owned()
}

/// For kinds that nothing is known of.
static CREATED: Printer = printer_of(
    &[Column {
        kind: "date",
        ..text("Created At")
    }],
    |item| vec![meta::at(item.object, &["metadata", "creationTimestamp"]).clone()],
);

/// For custom resources that do not say how they want to be shown.
static CUSTOM: Printer = printer_of(
    &[Column {
        kind: "date",
        ..AGE
    }],
    |item| vec![item.age()],
);

/// For kinds of which only the age is shown.
static AGED: Printer = printer_of(&[AGE], |item| vec![item.age()]);

type Row = (&'static str, &'static str, &'static Printer);

/// All kinds with columns of their own, by group and kind.
static KINDS: &[&[Row]] = &[
    core::KINDS,
    pod::KINDS,
    event::KINDS,
    service::KINDS,
    workload::KINDS,
    scaling::KINDS,
    storage::KINDS,
    policy::KINDS,
    cluster::KINDS,
];

/// The printer of a kind.
pub fn printer(group: &str, kind: &str, custom: bool) -> &'static Printer {
    if custom {
        return &CUSTOM;
    }
    KINDS
        .iter()
        .flat_map(|rows| rows.iter())
        .find(|row| row.0 == group && row.1 == kind)
        .map_or(&CREATED, |row| row.2)
}

impl Printer {
    /// All columns, the name among them.
    pub fn columns(&self) -> Vec<Column> {
        if self.name_last {
            let mut all = self.columns.to_vec();
            all.push(Column::NAME.wide());
            return all;
        }
        let mut name = Column::NAME;
        if std::ptr::eq(self, &core::SCALE) {
            name.format = "";
        }
        let mut all = vec![name];
        all.extend_from_slice(self.columns);
        all
    }

    /// The cells of one object.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = Value::from((self.name)(object));
        let mut cells = (self.cells)(&Item { object, now });
        if self.name_last {
            cells.push(name);
        } else {
            cells.insert(0, name);
        }
        cells
    }

    /// What clients may watch for in a row (whether a pod is done).
    pub fn conditions(&self, object: &Value) -> Option<Value> {
        if std::ptr::eq(self, &pod::POD) {
            pod::conditions(object)
        } else {
            None
        }
    }
}

impl Item<'_> {
    fn text(&self, path: &[&str]) -> Value {
        meta::text(self.object, path).into()
    }

    fn text_or(&self, path: &[&str], absent: &str) -> Value {
        match meta::text(self.object, path) {
            "" => absent.into(),
            found => found.into(),
        }
    }

    fn integer(&self, path: &[&str]) -> i64 {
        meta::integer(self.object, path).unwrap_or_default()
    }

    fn number(&self, path: &[&str]) -> Value {
        self.integer(path).into()
    }

    fn boolean_or(&self, path: &[&str], absent: bool) -> Value {
        meta::at(self.object, path)
            .as_bool()
            .unwrap_or(absent)
            .into()
    }

    fn items(&self, path: &[&str]) -> &[Value] {
        meta::items(self.object, path)
    }

    fn count(&self, path: &[&str]) -> Value {
        match meta::at(self.object, path) {
            Value::Array(items) => items.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        }
        .into()
    }

    fn is_deleting(&self) -> bool {
        !meta::at(self.object, &["metadata", "deletionTimestamp"]).is_null()
    }

    fn age(&self) -> Value {
        self.since(&["metadata", "creationTimestamp"])
    }

    /// How long ago the time at `path` was.
    fn since(&self, path: &[&str]) -> Value {
        self.since_text(meta::text(self.object, path)).into()
    }

    fn since_text(&self, at: &str) -> String {
        match time::parse(at) {
            Some(at) => human_duration(self.now.as_second() - at.as_second()),
            None => "<unknown>".to_owned(),
        }
    }

    /// Names and images of a pod template's containers.
    fn containers(&self, path: &[&str]) -> [Value; 2] {
        let join = |key: &str| {
            let all: Vec<&str> = self
                .items(path)
                .iter()
                .map(|container| meta::text(container, &[key]))
                .collect();
            Value::from(all.join(","))
        };
        [join("name"), join("image")]
    }

    fn selector(&self, path: &[&str]) -> Value {
        selector_text(meta::at(self.object, path)).into()
    }

    fn labels(&self, path: &[&str]) -> Value {
        label_text(meta::at(self.object, path)).into()
    }

    fn has_condition(&self, kind: &str) -> bool {
        self.items(&["status", "conditions"])
            .iter()
            .any(|one| meta::text(one, &["type"]) == kind && meta::text(one, &["status"]) == "True")
    }
}

/// A label selector as text, `<none>` if it selects everything or is not there.
fn selector_text(selector: &Value) -> String {
    if selector.is_null() {
        return "<none>".to_owned();
    }
    match Selector::from_object(selector) {
        Ok(selector) => match selector.to_string() {
            text if text.is_empty() => "<none>".to_owned(),
            text => text,
        },
        Err(_) => "<error>".to_owned(),
    }
}

/// `a=b,c=d`, or `<none>`.
fn label_text(labels: &Value) -> String {
    let pairs: Vec<String> = meta::entries(labels, &[])
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        pairs.join(",")
    }
}

/// A text or a number, as it is written.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `12 + 3 more...` behind the first `max` entries.
fn shortened(mut list: Vec<String>, max: usize, separator: &str) -> String {
    let count = list.len();
    if count <= max {
        return list.join(separator);
    }
    list.truncate(max);
    format!("{} + {} more...", list.join(separator), count - max)
}

/// A duration in at most two units.
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let pair = |large: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{small_unit}")
        }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => pair(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => pair(seconds / HOUR, "h", seconds / MINUTE % 60, "m"),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => pair(seconds / DAY, "d", seconds / HOUR % 24, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => pair(seconds / YEAR, "y", seconds / DAY % 365, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn durations() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (3600, "60m"),
            (4 * 3600 + 60, "4h1m"),
            (30 * 3600, "30h"),
            (3 * 86_400 + 3600, "3d1h"),
            (400 * 86_400, "400d"),
            (3 * 365 * 86_400, "3y"),
        ] {
            assert_eq!(human_duration(seconds), text);
        }
    }

    #[test]
    fn every_printer_fills_its_columns() {
        let object = json!({"metadata": {"name": "x"}});
        for row in KINDS.iter().flat_map(|rows| rows.iter()) {
            let cells = row.2.cells(&object, Timestamp::UNIX_EPOCH);
            // Upstream shows an age of addresses without a column for it.
            let extra = usize::from(row.1 == "IPAddress");
            assert_eq!(cells.len(), row.2.columns().len() + extra, "{}", row.1);
            assert!(
                crate::Registry::builtin()
                    .snapshot()
                    .rows()
                    .iter()
                    .any(|def| def.kind == row.1)
                    || row.1 == "Scale",
                "{} is no kind",
                row.1
            );
        }
    }

    #[test]
    fn deployments() {
        let object = json!({
            "metadata": {"name": "d", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [{"name": "x", "image": "i"}, {"name": "y", "image": "j"}]}}},
            "status": {"readyReplicas": 1, "updatedReplicas": 2},
        });
        let now = Timestamp::from_second(90).unwrap();
        assert_eq!(
            printer("apps", "Deployment", false).cells(&object, now),
            [
                json!("d"),
                json!("1/3"),
                json!(2),
                json!(0),
                json!("90s"),
                json!("x,y"),
                json!("i,j"),
                json!("a=b")
            ]
        );
    }
}
