//! Regular expressions of schemas and rules. Matching takes time linear in the text, whatever the pattern.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use regex_automata::meta::Regex;

/// Patterns that take more memory than this together are not kept: they are compiled again.
const KEPT: usize = 8 << 20;
/// What a pattern takes beside itself.
const EACH: usize = 16 << 10;
/// A pattern of a schema may not take more memory than this.
const SIZE: usize = 1 << 20;
/// One that a rule calls may be made from what a user wrote.
const CALLED: usize = 256 << 10;
/// What matching may note down for later.
const NOTES: usize = 256 << 10;

static COMPILED: LazyLock<Mutex<Cache>> = LazyLock::new(|| Mutex::new(Cache::new(KEPT)));

/// Compiled patterns, those used last; under their text and the size they are allowed.
struct Cache {
    most: usize,
    size: usize,
    clock: u64,
    kept: HashMap<(usize, String), Kept>,
}

struct Kept {
    regex: Option<Arc<Regex>>,
    size: usize,
    used: u64,
}

impl Cache {
    fn new(most: usize) -> Self {
        Self {
            most,
            size: 0,
            clock: 0,
            kept: HashMap::new(),
        }
    }

    fn get(&mut self, key: &(usize, String)) -> Option<Option<Arc<Regex>>> {
        self.clock += 1;
        let found = self.kept.get_mut(key)?;
        found.used = self.clock;
        Some(found.regex.clone())
    }

    fn put(&mut self, key: (usize, String), regex: Option<Arc<Regex>>) {
        let own = regex.as_ref().map_or(0, |regex| regex.memory_usage());
        let size = EACH + key.1.len() + own;
        if size > self.most {
            return;
        }
        self.remove(&key);
        while self.size + size > self.most {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.remove(&oldest);
        }
        self.size += size;
        let used = self.clock;
        self.kept.insert(key, Kept { regex, size, used });
    }

    fn remove(&mut self, key: &(usize, String)) {
        if let Some(gone) = self.kept.remove(key) {
            self.size -= gone.size;
        }
    }
}

fn compile(pattern: &str, size: usize) -> Option<Arc<Regex>> {
    let config = Regex::config()
        .nfa_size_limit(Some(size))
        .onepass_size_limit(Some(NOTES))
        .hybrid_cache_capacity(NOTES);
    let regex = Regex::builder().configure(config).build(&ascii(pattern));
    regex.ok().map(Arc::new)
}

/// The pattern with the classes of letters, digits and spaces as ASCII has them, and `[` within a class as a letter.
fn ascii(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars().peekable();
    let mut class = false;
    while let Some(one) = rest.next() {
        match one {
            '\\' => {
                let Some(escaped) = rest.next() else {
                    out.push('\\');
                    break;
                };
                escape(&mut out, escaped, class);
            }
            '[' if !class => {
                class = true;
                out.push('[');
                if let Some(not) = rest.next_if_eq(&'^') {
                    out.push(not);
                }
                if rest.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            '[' if rest.peek() == Some(&':') => {
                out.push('[');
                for inner in rest.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' if class => out.extend(['\\', one]),
            ']' if class => {
                class = false;
                out.push(']');
            }
            other => out.push(other),
        }
    }
    out
}

fn escape(out: &mut String, escaped: char, class: bool) {
    let members = match escaped.to_ascii_lowercase() {
        'd' => "0-9",
        'w' => "0-9A-Za-z_",
        's' => "\\t\\n\\f\\r\\x20",
        'b' if escaped == 'b' && !class => return out.push_str("(?-u:\\b)"),
        _ => return out.extend(['\\', escaped]),
    };
    let not = if escaped.is_ascii_uppercase() {
        "^"
    } else {
        ""
    };
    if class && not.is_empty() {
        out.push_str(members);
    } else {
        out.push_str(&format!("[{not}{members}]"));
    }
}

/// Whether the pattern is found in the text; `None` if it is no pattern.
pub fn matches(pattern: &str, text: &str) -> Option<bool> {
    Some(regex(pattern, SIZE)?.is_match(text))
}

/// The same for a pattern that a rule calls.
pub fn matches_called(pattern: &str, text: &str) -> Option<bool> {
    Some(regex(pattern, CALLED)?.is_match(text))
}

/// The first places where a pattern that a rule calls is found; `None` if it is no pattern.
pub fn find<'t>(pattern: &str, text: &'t str, limit: usize) -> Option<Vec<&'t str>> {
    let regex = regex(pattern, CALLED)?;
    let found = regex.find_iter(text).take(limit);
    Some(found.map(|place| &text[place.range()]).collect())
}

/// Nothing is locked while it is compiled or matches.
fn regex(pattern: &str, size: usize) -> Option<Arc<Regex>> {
    let cache = || COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (size, pattern.to_owned());
    if let Some(known) = cache().get(&key) {
        return known;
    }
    let compiled = compile(pattern, size);
    cache().put(key, compiled.clone());
    compiled
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn patterns() {
        assert_eq!(matches("^[a-z]+$", "abc"), Some(true));
        assert_eq!(matches("^[a-z]+$", "aBc"), Some(false));
        assert_eq!(matches("(", "x"), None);
    }

    #[test]
    fn classes_are_those_of_ascii() {
        for (pattern, text, found) in [
            ("^\\d$", "٣", false),
            ("^\\d$", "3", true),
            ("^[\\w-]+$", "a_-9", true),
            ("^\\w$", "é", false),
            ("^\\W$", "é", true),
            ("^[^\\s]$", "\u{a0}", true),
            ("^[\\D]$", "é", true),
            ("a\\b", "aé", true),
            ("^[[a]$", "[", true),
            ("^[[:alpha:]&&b]+$", "x&b", true),
            ("^[]a]+$", "]a", true),
            ("^\\\\d$", "\\d", true),
            ("^.$", "é", true),
        ] {
            assert_eq!(matches(pattern, text), Some(found), "{pattern} {text}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut cache = Cache::new(1 << 20);
        for number in 0..200 {
            let pattern = format!("^[a-z]{{{number}}}$");
            let regex = compile(&pattern, SIZE);
            assert!(regex.is_some());
            cache.get(&(SIZE, "^[a-z]{0}$".to_owned()));
            cache.put((SIZE, pattern), regex);
            assert!(cache.size <= 1 << 20);
        }
        assert!(cache.kept.len() < 100);
        let sum: usize = cache.kept.values().map(|kept| kept.size).sum();
        assert_eq!(sum, cache.size);
        assert!(
            cache.get(&(SIZE, "^[a-z]{0}$".to_owned())).is_some(),
            "what is used stays"
        );
        assert!(compile("\\pL{400}", CALLED).is_none());
    }
}
