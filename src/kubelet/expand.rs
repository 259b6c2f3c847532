//! `$(NAME)` references in commands, arguments, variables and sub paths.

/// The longest string that Linux passes to a process (MAX_ARG_STRLEN).
const LONGEST: usize = 128 * 1024;
/// The most that it passes in all, whatever the limits of the process are.
const MOST: usize = 6 * 1024 * 1024;

/// Replaces every reference whose name `lookup` knows; `$$` stands for one `$`, and references to
/// unknown names stay as they are. Variables that name each other double at every step, so there is an end to it.
pub fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> Result<String, String> {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(position) = rest.find('$') {
        if output.len() > LONGEST {
            break;
        }
        output.push_str(&rest[..position]);
        let tail = &rest[position + 1..];
        rest = if let Some(after) = tail.strip_prefix('$') {
            output.push('$');
            after
        } else if let Some((name, after)) = reference(tail) {
            match lookup(name) {
                Some(value) => output.push_str(value),
                None => output.push_str(&format!("$({name})")),
            }
            after
        } else {
            output.push('$');
            tail
        };
    }
    output.push_str(rest);
    if output.len() > LONGEST {
        return Err(format!(
            "a value with its variables in place is longer than {LONGEST} bytes, the most that Linux passes to a process"
        ));
    }
    Ok(output)
}

/// Adds to the size of what a process gets.
pub fn count(total: &mut usize, value: &str) -> Result<(), String> {
    *total += value.len();
    if *total > MOST {
        return Err(format!(
            "arguments or variables come to more than {MOST} bytes, the most that Linux passes to a process"
        ));
    }
    Ok(())
}

/// All words of a command.
pub fn expand_all<'a>(
    words: impl IntoIterator<Item = &'a String>,
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<Vec<String>, String> {
    let mut total = 0;
    words
        .into_iter()
        .map(|word| {
            let word = expand(word, &lookup)?;
            count(&mut total, &word)?;
            Ok(word)
        })
        .collect()
}

fn reference(tail: &str) -> Option<(&str, &str)> {
    tail.strip_prefix('(')?.split_once(')')
}

/// As [`expand`], but every name must be known: used for `subPathExpr`.
pub fn expand_strict<'a>(
    input: &str,
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, String> {
    let missing = std::cell::RefCell::new(Vec::new());
    let output = expand(input, |name| {
        let value = lookup(name);
        if value.is_none() {
            missing.borrow_mut().push(name.to_owned());
        }
        value
    })?;
    let missing = missing.into_inner();
    if missing.is_empty() {
        Ok(output)
    } else {
        Err(format!(
            "missing value for variable(s) {}",
            missing.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn references_escapes_and_leftovers() {
        let lookup = |name: &str| match name {
            "A" => Some("1"),
            "EMPTY" => Some(""),
            _ => None,
        };
        for (input, expected) in [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(NO)", "$(NO)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("[$(EMPTY)]", "[]"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("100$", "100$"),
        ] {
            assert_eq!(expand(input, lookup).unwrap(), expected, "{input}");
        }
        assert!(expand_strict("$(NO)", lookup).is_err());
    }

    #[test]
    fn variables_that_double_have_an_end() {
        let mut value = "xxxxxxxxxx".to_owned();
        let grown = (0..64).find_map(|_| {
            let now = value.clone();
            match expand("$(E)$(E)$(E)$(E)", |_| Some(&now)) {
                Ok(next) => {
                    value = next;
                    None
                }
                Err(why) => Some(why),
            }
        });
        assert!(grown.is_some_and(|why| why.contains("131072")));
        let long = "y".repeat(100_000);
        let words = vec!["$(L)".to_owned(); 100];
        assert!(expand_all(&words, |_| Some(&long)).is_err());
    }
}
