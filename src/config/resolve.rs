//! From what the user said (flags, environment, file) to what it means: done once, without I/O.

use std::collections::BTreeMap;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::conflicts::{self, Conflict};
use crate::foreign;
use crate::options::{Arity, OPTIONS, OptionRow, Role};
use crate::settings::Settings;

/// Where values come from, strongest first. The first source that mentions an option wins whole.
pub struct Sources<'a> {
    /// In the order given; a switch has the value `true`.
    pub flags: &'a [(String, String)],
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Text of the configuration file, if there is one.
    pub file: Option<&'a str>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("unknown option --{name} ({origin}){}", advice.map(|text| format!(": {text}")).unwrap_or_default())]
    Unknown {
        name: String,
        origin: &'static str,
        advice: Option<&'static str>,
    },
    #[error("option --{name} is for `sampan {}`, not for this subcommand ({origin})", role_name(*owner))]
    WrongRole {
        name: String,
        owner: Role,
        origin: &'static str,
    },
    #[error("option --{name} ({origin}): {value:?}: {expected}")]
    Value {
        name: &'static str,
        origin: &'static str,
        value: String,
        expected: String,
    },
    #[error("option --{name} ({origin}) takes one value, got {count}")]
    TooMany {
        name: &'static str,
        origin: &'static str,
        count: usize,
    },
    #[error(transparent)]
    Conflict(#[from] Conflict),
    #[error("the configuration file is not a YAML mapping of options to values: {0}")]
    File(String),
}

impl ConfigError {
    /// Whether it was said to this very command, not in a file or in the environment.
    pub fn is_of_flag(&self) -> bool {
        match self {
            Self::Unknown { origin, .. }
            | Self::WrongRole { origin, .. }
            | Self::Value { origin, .. }
            | Self::TooMany { origin, .. } => *origin == "flag",
            Self::Conflict(_) | Self::File(_) => false,
        }
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Agent => "agent",
        Role::Server | Role::Both => "server",
    }
}

/// All settings, or everything that is wrong with them.
pub fn resolve(role: Role, sources: &Sources<'_>) -> Result<Settings, Vec<ConfigError>> {
    let (settings, mut errors) = read(role, sources);
    if errors.is_empty() && role == Role::Server {
        let found = conflicts::of_settings(&settings).into_iter();
        errors.extend(found.map(ConfigError::from));
    }
    if errors.is_empty() {
        Ok(settings)
    } else {
        Err(errors)
    }
}

/// For who only looks at what runs: what is wrong keeps its default, and is told. Options of the other subcommand are not
/// wrong then: the file is theirs.
pub fn resolve_leniently(role: Role, sources: &Sources<'_>) -> (Settings, Vec<ConfigError>) {
    let (settings, mut errors) = read(role, sources);
    errors.retain(|error| !matches!(error, ConfigError::WrongRole { .. }));
    (settings, errors)
}

/// What can be understood, and what cannot.
fn read(role: Role, sources: &Sources<'_>) -> (Settings, Vec<ConfigError>) {
    let mut errors = Vec::new();
    let file = sources
        .file
        .map(parse_file)
        .unwrap_or_else(|| Ok(BTreeMap::new()));
    let file = file.unwrap_or_else(|error| {
        errors.push(error);
        BTreeMap::new()
    });
    let flags = sources.flags.iter().map(|(name, _)| name);
    check_names(role, flags, "flag", &mut errors);
    check_names(role, file.keys(), "configuration file", &mut errors);
    let mut settings = Settings::default();
    for row in OPTIONS
        .iter()
        .filter(|row| row.role.covers(role) || row.default.is_some())
    {
        let (values, origin) = values_of(row, sources, &file);
        let before = errors.len();
        let mut changed = settings.clone();
        apply_row(row, values, origin, &mut changed, &mut errors);
        if errors.len() == before {
            settings = changed;
        } else if let Some(default) = row.default {
            let values = vec![default.to_owned()];
            apply_row(row, values, "default", &mut settings, &mut errors);
        }
    }
    (settings, errors)
}

/// The name's row must exist and belong to the subcommand. A server accepts the agent's options too:
/// it runs an agent.
fn check_names<'a>(
    role: Role,
    names: impl Iterator<Item = &'a String>,
    origin: &'static str,
    errors: &mut Vec<ConfigError>,
) {
    for name in names {
        match OPTIONS.iter().find(|row| row.name == name) {
            None => errors.push(ConfigError::Unknown {
                name: name.clone(),
                origin,
                advice: foreign::advice(name),
            }),
            Some(row) if !row.role.covers(role) => errors.push(ConfigError::WrongRole {
                name: name.clone(),
                owner: row.role,
                origin,
            }),
            Some(_) => {}
        }
    }
}

fn values_of(
    row: &OptionRow,
    sources: &Sources<'_>,
    file: &BTreeMap<String, Vec<String>>,
) -> (Vec<String>, &'static str) {
    let flags: Vec<String> = sources
        .flags
        .iter()
        .filter(|(name, _)| name == row.name)
        .map(|(_, value)| value.clone())
        .collect();
    if !flags.is_empty() {
        return (flags, "flag");
    }
    if let Some(value) = (sources.environment)(&row.environment()) {
        // An empty variable is how some hand on that there is none.
        let none = value.is_empty() && row.arity == Arity::List;
        let values = if none { Vec::new() } else { vec![value] };
        return (values, "environment");
    }
    if let Some(values) = file.get(row.name) {
        return (values.clone(), "configuration file");
    }
    (
        row.default.map(str::to_owned).into_iter().collect(),
        "default",
    )
}

fn apply_row(
    row: &'static OptionRow,
    values: Vec<String>,
    origin: &'static str,
    settings: &mut Settings,
    errors: &mut Vec<ConfigError>,
) {
    if matches!(row.arity, Arity::One) && origin == "configuration file" && values.len() > 1 {
        errors.push(ConfigError::TooMany {
            name: row.name,
            origin,
            count: values.len(),
        });
        return;
    }
    let values = match row.arity {
        // As everywhere, the last flag wins.
        Arity::Switch | Arity::One => values.into_iter().next_back().into_iter().collect(),
        Arity::Many => values,
        Arity::List => values
            .iter()
            .flat_map(|value| value.split(','))
            .map(|value| value.trim().to_owned())
            .collect::<Vec<_>>(),
    };
    for value in values {
        if let Err(expected) = (row.apply)(settings, &value) {
            // A token is a secret: the message must not repeat it.
            let value = if row.name == "token" {
                "(hidden)".to_owned()
            } else {
                value
            };
            errors.push(ConfigError::Value {
                name: row.name,
                origin,
                value,
                expected,
            });
        }
    }
}

fn parse_file(text: &str) -> Result<BTreeMap<String, Vec<String>>, ConfigError> {
    if text
        .lines()
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    {
        return Ok(BTreeMap::new());
    }
    let options = || serde_saphyr::options! { legacy_octal_numbers: false };
    let refused = |error: serde_saphyr::Error| ConfigError::File(without_hints(&error.to_string()));
    let document: Value = serde_saphyr::from_str_with_options(text, options()).map_err(refused)?;
    let Value::Object(map) = &document else {
        return Err(ConfigError::File("it holds something else".to_owned()));
    };
    if let Some((name, _)) = map.iter().find(|(_, value)| !is_plain(value)) {
        return Err(ConfigError::File(format!(
            "{name} holds neither a value nor a list of values"
        )));
    }
    // Read again, as text: what YAML takes for a number (0644, 1.10) means here what was written.
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |yaml| {
        yaml.deserialize_map(Texts(map))
    });
    read.map_err(refused)
}

/// The library also says what its callers could change in their programs.
fn without_hints(text: &str) -> String {
    let hints = [
        ", set DuplicateKeyPolicy in Options if acceptable",
        "; use Option<String>",
    ];
    hints
        .iter()
        .fold(text.to_owned(), |text, hint| text.replace(hint, ""))
}

/// A value, a list of values, or nothing.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Object(_) => false,
        Value::Array(items) => items
            .iter()
            .all(|item| !item.is_array() && !item.is_object() && !item.is_null()),
        _ => true,
    }
}

/// Reads every value as the text that stands in the file; what kind of value it is has been seen before.
struct Texts<'a>(&'a serde_json::Map<String, Value>);

impl<'de> Visitor<'de> for Texts<'_> {
    type Value = BTreeMap<String, Vec<String>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("options and their values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut all = BTreeMap::new();
        while let Some(name) = entries.next_key::<String>()? {
            let values = match self.0.get(&name) {
                Some(Value::Array(_)) => entries.next_value()?,
                Some(Value::Null) => {
                    entries.next_value::<IgnoredAny>()?;
                    Vec::new()
                }
                _ => vec![entries.next_value::<String>()?],
            };
            all.insert(name, values);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::settings::nth_address;

    fn run(
        role: Role,
        flags: &[(&str, &str)],
        env: &[(&str, &str)],
        file: Option<&str>,
    ) -> Result<Settings, Vec<ConfigError>> {
        let flags: Vec<(String, String)> = flags
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let env: BTreeMap<String, String> = env
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        resolve(
            role,
            &Sources {
                flags: &flags,
                environment: &|name| env.get(name).cloned(),
                file,
            },
        )
    }

    #[test]
    fn defaults() {
        let settings = run(Role::Server, &[], &[], None).unwrap();
        assert_eq!(settings.https_listen_port, 6443);
        assert_eq!(
            settings.cluster_dns_address().unwrap().to_string(),
            "10.43.0.10"
        );
        assert_eq!(
            settings.kubernetes_service_address().unwrap().to_string(),
            "10.43.0.1"
        );
        assert_eq!(settings.write_kubeconfig_mode, 0o600);
    }

    #[test]
    fn flag_beats_environment_beats_file() {
        let file = "node-name: from-file\ntls-san:\n  - a\n  - b\nhttps-listen-port: 7443\n";
        let env = [("SAMPAN_NODE_NAME", "from-env"), ("SAMPAN_TLS_SAN", "c, d")];
        let settings = run(
            Role::Server,
            &[("node-name", "from-flag")],
            &env,
            Some(file),
        )
        .unwrap();
        assert_eq!(settings.node_name.as_deref(), Some("from-flag"));
        assert_eq!(settings.tls_sans, ["c", "d"]);
        assert_eq!(settings.https_listen_port, 7443);
    }

    #[test]
    fn every_error_is_reported() {
        let errors = run(
            Role::Agent,
            &[
                ("flannel-backend", "none"),
                ("cluster-cidr", "1.2.3.0/24"),
                ("node-ip", "x"),
            ],
            &[],
            None,
        )
        .unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert!(texts[0].contains("unknown option --flannel-backend (flag): the pod network"));
        assert!(texts[1].contains("is for `sampan server`"));
        assert!(texts[2].contains("expected an IP address"));
    }

    /// YAML has an opinion on what is a number; the file means what stands in it.
    #[test]
    fn values_of_the_file_are_taken_as_they_are_written() {
        for mode in ["644", "0644", "\"0644\"", "0o644", "'644'"] {
            let text = format!("write-kubeconfig-mode: {mode}\nnode-label:\n");
            let settings = run(Role::Server, &[], &[], Some(&text)).unwrap();
            assert_eq!(settings.write_kubeconfig_mode, 0o644, "{mode}");
        }
        let text =
            "cluster-domain: 1.10\nnode-name: 007\ntls-san: [1e3, 0x10, true]\ndebug: true\n";
        let settings = run(Role::Server, &[], &[], Some(text)).unwrap();
        assert_eq!(settings.cluster_domain, "1.10");
        assert_eq!(settings.node_name.as_deref(), Some("007"));
        assert_eq!(settings.tls_sans, ["1e3", "0x10", "true"]);
        assert!(settings.debug);
        for refused in [
            "tls-san: {a: b}",
            "tls-san: [[a]]",
            "write-kubeconfig-mode: 0.5",
        ] {
            assert!(
                run(Role::Server, &[], &[], Some(refused)).is_err(),
                "{refused}"
            );
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        let flags = [("cluster-cidr", "10.0.0.0/8"), ("cluster-dns", "10.1.0.1")];
        let told = run(Role::Server, &flags, &[], None).unwrap_err();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].to_string().contains("--service-cidr=10.43.0.0/16"));
    }

    #[test]
    fn an_empty_element_of_a_list_is_one() {
        for (name, value) in [("tls-san", ""), ("tls-san", "a,,b"), ("node-ip", " ")] {
            let told = run(Role::Server, &[(name, value)], &[], None).unwrap_err();
            assert_eq!(told.len(), 1, "{told:?}");
        }
        let empty = [("SAMPAN_TLS_SAN", "")];
        let settings = run(Role::Server, &[], &empty, Some("tls-san: a\nnode-ip:\n")).unwrap();
        assert!(settings.tls_sans.is_empty() && settings.node_ips.is_empty());
    }

    /// Each value that cannot be is told with its option, where it stands, and what is allowed.
    #[test]
    fn values_that_cannot_work_are_refused() {
        for (name, value) in [
            ("certificate-lifetime", "3000000d"),
            ("advertise-address", "0.0.0.0"),
            ("advertise-address", "::"),
            ("advertise-address", "255.255.255.255"),
            ("node-ip", "224.0.0.1"),
            ("node-ip", "127.0.0.1"),
            ("https-listen-port", "0"),
            ("https-listen-port", "10250"),
            ("data-dir", "/"),
            ("service-cidr", "127.0.0.0/8"),
            ("cluster-cidr", "::/0"),
            ("cluster-domain", "a..b"),
            ("tls-san", "a b"),
        ] {
            let told = run(
                Role::Server,
                &[],
                &[],
                Some(&format!("{name}: \"{value}\"")),
            );
            let told = told.unwrap_err();
            let text = told[0].to_string();
            let start = format!("option --{name} (configuration file): {value:?}: ");
            assert!(text.starts_with(&start), "{text}");
            assert!(text.contains("expected"), "{text}");
            assert_eq!(told.len(), 1, "{told:?}");
        }
    }

    #[test]
    fn who_only_looks_gets_what_can_be_understood() {
        let lenient = |file: &str| {
            let environment = |_: &str| None;
            let sources = Sources {
                flags: &[],
                environment: &environment,
                file: Some(file),
            };
            resolve_leniently(Role::Server, &sources)
        };
        let (settings, told) =
            lenient("https-listen-port: 7443\nnode-ip: x\ndata-dir: /\nbogus: 1\n");
        assert_eq!(settings.https_listen_port, 7443);
        assert_eq!(settings.data_dir.to_str(), Some("/var/lib/sampan"));
        assert_eq!(told.len(), 3, "{told:?}");
        let (settings, told) = lenient("{ not yaml");
        assert_eq!((settings.https_listen_port, told.len()), (6443, 1));
        let (_, told) = lenient("server: https://10.0.0.1:6443\n");
        assert!(told.is_empty(), "an agent's file: {told:?}");
    }

    #[test]
    fn a_file_that_is_no_mapping_is_refused() {
        assert!(matches!(
            run(Role::Server, &[], &[], Some("- a\n")).unwrap_err()[0],
            ConfigError::File(_)
        ));
        assert!(run(Role::Server, &[], &[], Some("# nothing\n\n")).is_ok());
    }

    #[test]
    fn addresses_outside_a_range_are_not_made_up() {
        assert_eq!(nth_address(&"10.0.0.0/30".parse().unwrap(), 10), None);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_to_its_reader() {
        for text in ["data-dir: /a\ndata-dir: /b\n", ": :\n"] {
            let said = parse_file(text).unwrap_err().to_string();
            for word in ["Option", "Policy"] {
                assert!(!said.contains(word), "{said}");
            }
        }
    }
}
