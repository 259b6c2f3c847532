//! Arguments of the kubelet under upstream's names: one row each, for what has an effect here.

use crate::qos::Amounts;
use crate::settings::{Floor, Settings};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use sampan_api::kinds::node;
use sampan_api::names;
use sampan_api::quantity::Quantity;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("--kubelet-arg={name}={value}: {problem}")]
    Value {
        name: String,
        value: String,
        problem: String,
    },
    #[error(
        "--kubelet-arg={name}: this kubelet has no such argument{hint}; it knows {}",
        names().join(", ")
    )]
    Unknown { name: String, hint: String },
}

struct Row {
    name: &'static str,
    apply: fn(&mut Settings, &str) -> Result<(), String>,
}

const fn row(name: &'static str, apply: fn(&mut Settings, &str) -> Result<(), String>) -> Row {
    Row { name, apply }
}

const ROWS: &[Row] = &[
    row("allowed-unsafe-sysctls", |s, v| {
        s.unsafe_sysctls.extend(words(v));
        Ok(())
    }),
    row("cluster-dns", |s, v| {
        let all: Result<Vec<_>, _> = words(v).map(|w| w.parse()).collect();
        s.cluster_dns = all.map_err(|_| "not a list of addresses".to_owned())?;
        Ok(())
    }),
    row("cluster-domain", |s, v| {
        let domain = v.trim_end_matches('.');
        first(names::dns1123_subdomain(domain))?;
        domain.clone_into(&mut s.cluster_domain);
        Ok(())
    }),
    row("container-log-max-files", |s, v| {
        s.log_max_files = at_least(v, 2)?;
        Ok(())
    }),
    row("container-log-max-size", |s, v| {
        s.log_max_bytes = u64::try_from(quantity(v)?.value()).unwrap_or_default();
        if s.log_max_bytes == 0 {
            return Err("must be above zero".to_owned());
        }
        Ok(())
    }),
    row("eviction-hard", |s, v| {
        for word in words(v) {
            let (signal, value) = word.split_once('<').ok_or("must be SIGNAL<QUANTITY,…")?;
            let floor = floor(value)?;
            match signal {
                "memory.available" => s.floors.memory = floor,
                "nodefs.available" => s.floors.disk = floor,
                "nodefs.inodesFree" => s.floors.inodes = floor,
                // Images lie on the node's file system here.
                "imagefs.available" | "imagefs.inodesFree" => {}
                other => {
                    return Err(format!(
                        "{other:?} is none of memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree"
                    ));
                }
            }
        }
        Ok(())
    }),
    row("image-gc-high-threshold", |s, v| {
        s.image_gc.high_percent = percent(v)?;
        Ok(())
    }),
    row("image-gc-low-threshold", |s, v| {
        s.image_gc.low_percent = percent(v)?;
        Ok(())
    }),
    row("kube-reserved", |s, v| reserve(&mut s.reserved, v)),
    row("max-pods", |s, v| {
        s.max_pods = u32::try_from(at_least(v, 1)?).map_err(|_| "too large".to_owned())?;
        Ok(())
    }),
    row("minimum-image-ttl-duration", |s, v| {
        s.image_gc.minimum_age = duration(v)?;
        Ok(())
    }),
    row("node-labels", |s, v| {
        for word in words(v) {
            let (key, value) = word.split_once('=').unwrap_or((&word, ""));
            check_label(key, value)?;
            s.labels.insert(key.to_owned(), value.to_owned());
        }
        Ok(())
    }),
    row("node-status-update-frequency", |s, v| {
        s.look_interval = duration(v)?;
        Ok(())
    }),
    row("pod-manifest-path", |s, v| {
        s.static_pods = PathBuf::from(v);
        Ok(())
    }),
    row("register-with-taints", |s, v| {
        let all: Result<Vec<Taint>, String> = words(v).map(|w| taint(&w)).collect();
        s.taints.extend(all?);
        Ok(())
    }),
    row("resolv-conf", |s, v| {
        s.resolv_conf = (!v.is_empty()).then(|| PathBuf::from(v));
        Ok(())
    }),
    row("serialize-image-pulls", |s, v| {
        let one = v
            .parse::<bool>()
            .map_err(|_| "must be true or false".to_owned())?;
        if one {
            s.parallel_pulls = 1;
        }
        Ok(())
    }),
    row("max-parallel-image-pulls", |s, v| {
        s.parallel_pulls = at_least(v, 1)?;
        Ok(())
    }),
    row("system-reserved", |s, v| reserve(&mut s.reserved, v)),
];

/// Arguments of upstream's that are asked for elsewhere here, or that need no asking.
const ELSEWHERE: &[(&str, &str)] = &[
    ("address", "the kubelet listens on every address"),
    ("config", "give the arguments one by one"),
    (
        "container-runtime-endpoint",
        "use --container-runtime-endpoint",
    ),
    ("hostname-override", "use --node-name"),
    (
        "image-pull-progress-deadline",
        "a pull goes on as long as bytes arrive",
    ),
    ("image-service-endpoint", "use --container-runtime-endpoint"),
    ("kubeconfig", "use --server and --token"),
    ("node-ip", "use --node-ip"),
    ("pod-infra-container-image", "use --pause-image"),
    ("root-dir", "use --data-dir"),
    ("sync-frequency", "changes are acted upon when they happen"),
    (
        "file-check-frequency",
        "changes are acted upon when they happen",
    ),
    ("v", "use --debug"),
];

/// Every name in the table, sorted.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
    names.sort_unstable();
    names
}

/// Applies the arguments in the order they were given.
pub fn apply(settings: &mut Settings, arguments: &[(String, String)]) -> Result<(), Error> {
    for (name, value) in arguments {
        let name = name.trim_start_matches('-');
        let Some(row) = ROWS.iter().find(|row| row.name == name) else {
            let hint = ELSEWHERE.iter().find(|(other, _)| *other == name);
            return Err(Error::Unknown {
                name: name.to_owned(),
                hint: hint.map_or(String::new(), |(_, hint)| format!(" ({hint})")),
            });
        };
        (row.apply)(settings, value.trim()).map_err(|problem| Error::Value {
            name: name.to_owned(),
            value: value.clone(),
            problem,
        })?;
    }
    if settings.image_gc.low_percent >= settings.image_gc.high_percent {
        return Err(Error::Value {
            name: "image-gc-low-threshold".to_owned(),
            value: settings.image_gc.low_percent.to_string(),
            problem: format!(
                "must be below image-gc-high-threshold ({})",
                settings.image_gc.high_percent
            ),
        });
    }
    Ok(())
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(',').map(str::trim);
    words.filter(|w| !w.is_empty()).map(str::to_owned)
}

fn at_least(text: &str, least: usize) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(format!("must be a number of at least {least}")),
    }
}

fn percent(text: &str) -> Result<u8, String> {
    match text.parse::<u8>() {
        Ok(number) if number <= 100 => Ok(number),
        _ => Err("must be a number from 0 to 100".to_owned()),
    }
}

fn quantity(text: &str) -> Result<Quantity, String> {
    text.parse::<Quantity>()
        .map_err(|_| "not a quantity such as 10Mi".to_owned())
}

/// `10%` or `100Mi`.
fn floor(text: &str) -> Result<Floor, String> {
    let Some(percent) = text.strip_suffix('%') else {
        let bytes = u64::try_from(quantity(text)?.value());
        return bytes
            .map(Floor::Bytes)
            .map_err(|_| "must not be negative".to_owned());
    };
    match percent.parse::<f64>() {
        Ok(number) if (0.0..=100.0).contains(&number) => Ok(Floor::Percent(number)),
        _ => Err("must be a percentage from 0% to 100%".to_owned()),
    }
}

/// `cpu=100m,memory=200Mi`, added to what is reserved already.
fn reserve(reserved: &mut Amounts, text: &str) -> Result<(), String> {
    const KNOWN: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
    for word in words(text) {
        let (name, value) = word.split_once('=').ok_or("must be NAME=QUANTITY,…")?;
        if !KNOWN.contains(&name) {
            return Err(format!("{name:?} is none of {}", KNOWN.join(", ")));
        }
        let value = quantity(value)?;
        if value.milli_value() < 0 {
            return Err(format!("{name} must not be negative"));
        }
        let before = crate::qos::amount(Some(reserved), name);
        let sum = before.milli_value().saturating_add(value.milli_value());
        reserved.insert(name.to_owned(), Text(format!("{sum}m")));
    }
    Ok(())
}

/// `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
fn taint(text: &str) -> Result<Taint, String> {
    let (pair, effect) = text
        .rsplit_once(':')
        .ok_or("must be KEY=VALUE:EFFECT".to_owned())?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    check_taint(key, value, effect)?;
    Ok(Taint {
        key: key.to_owned(),
        value: (!value.is_empty()).then(|| value.to_owned()),
        effect: effect.to_owned(),
        time_added: None,
    })
}

/// What is wrong with a label that this kubelet is to give its node.
pub fn check_label(key: &str, value: &str) -> Result<(), String> {
    first(names::label_key(key))?;
    first(names::label_value(value))?;
    if node::kubelet_may_label(key) {
        return Ok(());
    }
    Err(format!(
        "a node may not give itself the label {key}; set it with `kubectl label node`"
    ))
}

/// What is wrong with a taint.
pub fn check_taint(key: &str, value: &str, effect: &str) -> Result<(), String> {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    first(names::label_key(key))?;
    first(names::label_value(value))?;
    if EFFECTS.contains(&effect) {
        return Ok(());
    }
    Err(format!("{effect:?} is none of {}", EFFECTS.join(", ")))
}

fn first(messages: Vec<String>) -> Result<(), String> {
    messages.into_iter().next().map_or(Ok(()), Err)
}

/// Times that are added to others must not leave the calendar.
const LONGEST: Duration = Duration::from_secs(8760 * 3600);

/// A duration in Go's form: `10s`, `1m30s`, `500ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let bad = || "not a duration such as 1m30s".to_owned();
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(bad)?;
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        let part = Duration::try_from_secs_f64(number * unit).map_err(|_| bad())?;
        total = total.checked_add(part).ok_or_else(bad)?;
        rest = &rest[letters..];
    }
    if total.is_zero() || total > LONGEST {
        return Err("must be above zero and at most 8760h".to_owned());
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn applied(arguments: &[(&str, &str)]) -> Result<Settings, Error> {
        let mut settings = Settings::for_test();
        let owned: Vec<(String, String)> = arguments
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        apply(&mut settings, &owned).map(|()| settings)
    }

    #[test]
    fn arguments_reach_the_settings() {
        let settings = applied(&[
            ("max-pods", "20"),
            ("container-log-max-size", "64Ki"),
            ("system-reserved", "cpu=100m,memory=1Gi"),
            ("kube-reserved", "cpu=1"),
            ("allowed-unsafe-sysctls", "net.*,kernel.msgmax"),
            ("node-status-update-frequency", "1m30s"),
            ("register-with-taints", "a=b:NoSchedule,c:NoExecute"),
            ("serialize-image-pulls", "true"),
            (
                "eviction-hard",
                "memory.available<1Gi,nodefs.available<2.5%",
            ),
        ])
        .unwrap();
        assert_eq!(settings.max_pods, 20);
        assert_eq!(settings.log_max_bytes, 65_536);
        assert_eq!(settings.reserved["cpu"].0, "1100m");
        assert_eq!(settings.unsafe_sysctls, ["net.*", "kernel.msgmax"]);
        assert_eq!(settings.look_interval, Duration::from_secs(90));
        assert_eq!(settings.taints[1].effect, "NoExecute");
        assert_eq!(settings.parallel_pulls, 1);
        assert_eq!(settings.floors.memory, Floor::Bytes(1 << 30));
        assert_eq!(settings.floors.disk.of(1000), 25);
    }

    #[test]
    fn what_is_not_known_is_named_with_what_is() {
        let error = applied(&[("cgroups-per-qos", "false")]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("cgroups-per-qos") && text.contains("max-pods"),
            "{text}"
        );
        let text = applied(&[("hostname-override", "x")])
            .unwrap_err()
            .to_string();
        assert!(text.contains("use --node-name"), "{text}");
    }

    #[test]
    fn bad_values_are_refused() {
        for (name, value) in [
            ("max-pods", "0"),
            ("container-log-max-size", "ten"),
            ("container-log-max-files", "1"),
            ("system-reserved", "gpu=1"),
            ("system-reserved", "cpu"),
            ("node-status-update-frequency", "10"),
            ("image-gc-high-threshold", "101"),
            ("eviction-hard", "pid.available<5"),
            ("eviction-hard", "memory.available<x%"),
            ("image-gc-low-threshold", "90"),
            ("cluster-dns", "x"),
            ("register-with-taints", "a"),
            ("register-with-taints", "a b:NoSchedule"),
            ("register-with-taints", "a=b:Never"),
            ("node-labels", "a b=c"),
            ("node-labels", "a=b c"),
            ("node-labels", "node-role.kubernetes.io/worker=true"),
            ("cluster-domain", "a..b"),
            ("cluster-domain", "Upper"),
            ("system-reserved", "cpu=-1"),
            ("kube-reserved", "memory=-1Gi"),
            ("kube-reserved", "memory=much"),
            ("container-log-max-size", "-1"),
            ("eviction-hard", "memory.available<-1"),
            ("eviction-hard", "nodefs.available<-5%"),
            ("node-status-update-frequency", "-10s"),
            ("node-status-update-frequency", "0s"),
            ("minimum-image-ttl-duration", "8761h"),
            (
                "minimum-image-ttl-duration",
                "18446744073709551615s18446744073709551615s",
            ),
            ("max-pods", "-1"),
        ] {
            let error = applied(&[(name, value)]).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("--kubelet-arg={name}=")),
                "{error}"
            );
        }
    }

    #[test]
    fn the_readme_names_all() {
        let readme = include_str!("../../README.md");
        for name in names() {
            assert!(readme.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn the_lists_do_not_overlap() {
        for (name, _) in ELSEWHERE {
            assert!(ROWS.iter().all(|row| row.name != *name), "{name}");
        }
    }
}
