//! Sets of completion indexes in their compact text form: `0-3,5,7,8`.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;

pub(crate) const ANNOTATION: &str = "batch.kubernetes.io/job-completion-index";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Indexes(BTreeSet<i32>);

impl Indexes {
    /// Reads the text; parts that cannot be read and indexes beyond `completions` are left out.
    pub(crate) fn parse(text: &str, completions: i32) -> Self {
        let mut indexes = BTreeSet::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
                indexes.extend(first.max(0)..=last.min(completions - 1));
            }
        }
        Self(indexes)
    }

    pub(crate) fn insert(&mut self, index: i32) {
        self.0.insert(index);
    }

    pub(crate) fn has(&self, index: i32) -> bool {
        self.0.contains(&index)
    }

    pub(crate) fn count(&self) -> i32 {
        i32::try_from(self.0.len()).unwrap_or(i32::MAX)
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    pub(crate) fn common(&self, other: &Self) -> i32 {
        i32::try_from(self.0.intersection(&other.0).count()).unwrap_or(i32::MAX)
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        Self(indexes.into_iter().collect())
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(i32, i32)> = Vec::new();
        for index in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *index => *last = *index,
                _ => runs.push((*index, *index)),
            }
        }
        let text = |(first, last): (i32, i32)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        };
        let parts: Vec<String> = runs.into_iter().map(text).collect();
        f.write_str(&parts.join(","))
    }
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// The index of a pod of an indexed Job.
pub(crate) fn index_of(pod: &Pod) -> Option<i32> {
    annotation(pod, ANNOTATION)?
        .parse()
        .ok()
        .filter(|index| *index >= 0)
}

/// A count that a pod inherited from those it replaced.
pub(crate) fn inherited(pod: &Pod, key: &str) -> i32 {
    let count = annotation(pod, key).and_then(|text| text.parse().ok());
    count.filter(|count| *count >= 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_shortened() {
        let indexes: Indexes = [0, 1, 2, 3, 5, 7, 8].into_iter().collect();
        assert_eq!(indexes.to_string(), "0-3,5,7,8");
        assert_eq!(Indexes::parse("0-3,5,7,8", 100), indexes);
        assert_eq!(Indexes::parse("0-3,5,x,9", 3).to_string(), "0-2");
        assert_eq!(Indexes::default().to_string(), "");
    }
}
