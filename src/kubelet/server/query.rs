//! Query strings.

/// Decoded pairs in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    pub fn first(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        let (_, value) = pairs.find(|(key, _)| key == name)?;
        Some(value)
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        let pairs = self.0.iter().filter(|(key, _)| key == name);
        pairs.map(|(_, value)| value.clone()).collect()
    }

    /// As the streaming options are read: only `1` is true.
    pub fn is_set(&self, name: &str) -> bool {
        self.first(name) == Some("1")
    }

    /// As API options are read: absent, empty and `0` or `false` are false.
    pub fn is_true(&self, name: &str) -> bool {
        !matches!(self.first(name), None | Some("0" | "false" | "False"))
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => match tail.get(..2).and_then(hex) {
                Some(byte) => {
                    bytes.push(byte);
                    rest = &tail[2..];
                }
                None => bytes.push(b'%'),
            },
            other => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(text, 16).ok()
}

/// One part of a path.
pub(crate) fn decode_part(text: &str) -> String {
    decode(&text.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_in_order() {
        let query = Query::parse("command=sh&command=-c&command=echo+a%26b&tty=1&x&broken=%zz");
        assert_eq!(query.all("command"), ["sh", "-c", "echo a&b"]);
        assert!(query.is_set("tty") && !query.is_set("stdin"));
        assert!(query.is_true("x") && !query.is_true("y"));
        assert_eq!(query.first("broken"), Some("%zz"));
    }
}
