//! Variables of the environment that look like options and are none: most likely a slip of the pen.

use crate::options::OPTIONS;

/// Variables that are read beside the options, by the executable or by the scripts around it.
const OTHERS: &[&str] = &[
    "SAMPAN_CONFIG",
    "SAMPAN_LOG",
    "SAMPAN_BINARY",
    "SAMPAN_BIN_DIR",
    "SAMPAN_SKIP_START",
    // Tests make parts of a process fail by it; `parts` says so in the log.
    "SAMPAN_FAULTS",
];
/// Beginnings of the names that tests use.
const FOREIGN: &[&str] = &["SAMPAN_TEST_", "SAMPAN_FUZZ_"];

/// One line for each variable that begins like ours and means nothing.
pub fn unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = OPTIONS
        .iter()
        .map(|row| row.environment())
        .chain(OTHERS.iter().map(|&name| name.to_owned()))
        .collect();
    let is_unknown = |name: &String| {
        name.starts_with("SAMPAN_")
            && !known.contains(name)
            && !FOREIGN.iter().any(|start| name.starts_with(start))
    };
    let mut told: Vec<String> = names
        .filter(is_unknown)
        .map(|name| {
            let near = known.iter().min_by_key(|other| distance(&name, other));
            let near = near.map(String::as_str).unwrap_or_default();
            format!("the environment variable {name} means nothing to sampan; the nearest option is {near}")
        })
        .collect();
    told.sort();
    told
}

/// How many characters must be added, removed or changed.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, a) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, b) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_told_with_the_nearest_option() {
        let names = [
            "SAMPAN_DATADIR",
            "SAMPAN_DATA_DIR",
            "SAMPAN_LOG",
            "SAMPAN_TEST_LONG",
            "SAMPAN_CLUSTER_CIDRS",
            "HOME",
        ];
        let told = unknown(names.iter().map(|&name| name.to_owned()));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].ends_with("SAMPAN_CLUSTER_CIDRS means nothing to sampan; the nearest option is SAMPAN_CLUSTER_CIDR"), "{told:?}");
        assert!(
            told[1].ends_with("the nearest option is SAMPAN_DATA_DIR"),
            "{told:?}"
        );
    }

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
