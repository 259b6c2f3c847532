//! `$(NAME)` references in commands, arguments, variables and sub paths.

/// Replaces every reference whose name `lookup` knows; `$$` stands for one `$`, and references to
/// unknown names stay as they are.
pub fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(position) = rest.find('$') {
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
    output
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
    });
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
            assert_eq!(expand(input, lookup), expected, "{input}");
        }
        assert!(expand_strict("$(NO)", lookup).is_err());
    }
}
