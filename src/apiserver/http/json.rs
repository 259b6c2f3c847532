//! Work on JSON text without building a tree: members of an object, stripping, indenting.

use std::ops::Range;

/// One member of an object: where its key (with quotes) and its value stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub key: Range<usize>,
    pub value: Range<usize>,
}

/// The members of the object that `text` is; `None` if it is no (complete) object.
/// The text is trusted to be valid JSON otherwise.
pub fn members(text: &[u8]) -> Option<Vec<Member>> {
    let mut at = skip_space(text, 0);
    if text.get(at) != Some(&b'{') {
        return None;
    }
    at = skip_space(text, at + 1);
    let mut all = Vec::with_capacity(8);
    if text.get(at) == Some(&b'}') {
        return Some(all);
    }
    loop {
        let key_end = skip_string(text, at)?;
        let key = at..key_end;
        at = skip_space(text, key_end);
        if text.get(at) != Some(&b':') {
            return None;
        }
        at = skip_space(text, at + 1);
        let end = skip_value(text, at)?;
        all.push(Member {
            key,
            value: at..end,
        });
        at = skip_space(text, end);
        match text.get(at)? {
            b',' => at = skip_space(text, at + 1),
            b'}' => return Some(all),
            _ => return None,
        }
    }
}

/// The value of one member of the object that `text` is.
pub fn member<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    members(text)?
        .into_iter()
        .find(|member| is_key(text, &member.key, name))
        .map(|member| &text[member.value])
}

fn is_key(text: &[u8], key: &Range<usize>, name: &str) -> bool {
    text[key.start + 1..key.end - 1] == *name.as_bytes()
}

/// Writes objects without their `kind` and `apiVersion`, as items of typed lists are sent.
pub struct Bare {
    /// How the objects begin as they are stored: found, nothing has to be searched.
    prefix: Vec<u8>,
}

impl Bare {
    pub fn new(kind: &str, api_version: &str) -> Self {
        let prefix = format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#);
        Self {
            prefix: prefix.into_bytes(),
        }
    }

    pub fn append(&self, out: &mut Vec<u8>, object: &[u8]) {
        if let Some(rest) = object.strip_prefix(self.prefix.as_slice()) {
            out.push(b'{');
            out.extend_from_slice(rest);
            return;
        }
        let Some(members) = members(object) else {
            out.extend_from_slice(object);
            return;
        };
        out.push(b'{');
        let mut first = true;
        for member in members {
            if is_key(object, &member.key, "kind") || is_key(object, &member.key, "apiVersion") {
                continue;
            }
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            out.extend_from_slice(&object[member.key.start..member.value.end]);
        }
        out.push(b'}');
    }
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

fn skip_string(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn skip_value(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at)? {
        b'"' => skip_string(text, at),
        b'{' | b'[' => skip_nested(text, at),
        _ => {
            let length = text[at..]
                .iter()
                .position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'))
                .unwrap_or(text.len() - at);
            (length > 0).then_some(at + length)
        }
    }
}

fn skip_nested(text: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match text.get(at)? {
            b'"' => {
                at = skip_string(text, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// The same JSON, indented by two spaces, for people.
pub fn indent(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() * 2);
    let mut depth = 0_usize;
    let mut at = 0;
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.resize(out.len() + depth * 2, b' ');
    };
    while at < text.len() {
        match text[at] {
            b'"' => {
                let end = skip_string(text, at).unwrap_or(text.len()).min(text.len());
                out.extend_from_slice(&text[at..end]);
                at = end;
                continue;
            }
            open @ (b'{' | b'[') => {
                let next = skip_space(text, at + 1);
                if matches!(text.get(next), Some(b'}' | b']')) {
                    out.push(open);
                    out.push(text[next]);
                    at = next;
                } else {
                    depth += 1;
                    out.push(open);
                    line(&mut out, depth);
                }
            }
            close @ (b'}' | b']') => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(close);
            }
            b',' => {
                out.push(b',');
                line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            b' ' | b'\n' | b'\r' | b'\t' => {}
            other => out.push(other),
        }
        at += 1;
    }
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn members_and_types() {
        let text = br#"{"a":{"kind":"x}"},"kind":"Pod","apiVersion":"v1","b":[1,2],"c":-1e3}"#;
        assert_eq!(member(text, "a").unwrap(), br#"{"kind":"x}"}"#);
        assert_eq!(member(text, "c").unwrap(), b"-1e3");
        assert_eq!(member(text, "d"), None);
        let stripped = |text: &[u8]| {
            let mut out = Vec::new();
            Bare::new("Pod", "v1").append(&mut out, text);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(stripped(text), r#"{"a":{"kind":"x}"},"b":[1,2],"c":-1e3}"#);
        let ordered = br#"{"kind":"Pod","apiVersion":"v1","metadata":{}}"#;
        assert_eq!(stripped(ordered), r#"{"metadata":{}}"#);
        assert_eq!(members(b"{}").unwrap(), []);
        for broken in [&b"[]"[..], b"{", b"{\"a\"", b"{\"a\":", b"{\"a\":\"\\"] {
            assert_eq!(members(broken), None);
        }
    }

    #[test]
    fn indentation() {
        let text = br#"{"a":"x:,{","b":[],"c":[1,{"d":null}]}"#;
        let expected = "{\n  \"a\": \"x:,{\",\n  \"b\": [],\n  \"c\": [\n    1,\n    {\n      \"d\": null\n    }\n  ]\n}\n";
        assert_eq!(String::from_utf8(indent(text)).unwrap(), expected);
    }
}
