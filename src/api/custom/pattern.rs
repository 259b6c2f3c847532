//! Regular expressions of schemas. Matching takes time linear in the text, whatever the pattern.

use std::collections::HashMap;
use std::sync::{LazyLock, PoisonError, RwLock};

use regex_automata::meta::Regex;

/// More patterns than this are not kept: they are compiled again.
const KEPT: usize = 1_000;
/// A pattern may not take more memory than this.
const SIZE: usize = 1 << 20;

static COMPILED: LazyLock<RwLock<HashMap<String, Option<Regex>>>> = LazyLock::new(RwLock::default);

fn compile(pattern: &str) -> Option<Regex> {
    let config = Regex::config().nfa_size_limit(Some(SIZE));
    Regex::builder().configure(config).build(pattern).ok()
}

/// Whether the pattern is found in the text; `None` if it is no pattern.
pub fn matches(pattern: &str, text: &str) -> Option<bool> {
    with(pattern, |regex| regex.is_match(text))
}

/// The first places where the pattern is found; `None` if it is no pattern.
pub fn find<'t>(pattern: &str, text: &'t str, limit: usize) -> Option<Vec<&'t str>> {
    with(pattern, |regex| {
        let found = regex.find_iter(text).take(limit);
        found.map(|place| &text[place.range()]).collect()
    })
}

fn with<T>(pattern: &str, work: impl Fn(&Regex) -> T) -> Option<T> {
    if let Some(known) = COMPILED
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(pattern)
    {
        return known.as_ref().map(work);
    }
    let compiled = compile(pattern);
    let answer = compiled.as_ref().map(work);
    let mut kept = COMPILED.write().unwrap_or_else(PoisonError::into_inner);
    if kept.len() < KEPT {
        kept.insert(pattern.to_owned(), compiled);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert_eq!(matches("^[a-z]+$", "abc"), Some(true));
        assert_eq!(matches("^[a-z]+$", "aBc"), Some(false));
        assert_eq!(matches("(", "x"), None);
    }
}
