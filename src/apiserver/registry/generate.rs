//! What the server makes up for an object: names, uids, times.

use rand::Rng;

/// Letters of generated names: no vowels, nothing that looks like something else.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
/// What stays of a prefix so that the name is not too long.
const PREFIX_MAX: usize = 63 - SUFFIX;

/// `metav1.Time`: whole seconds, UTC.
pub fn timestamp(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The prefix, cut if need be, and a few random letters.
pub(super) fn generate_name(prefix: &str) -> String {
    let mut random = rand::rng();
    let end = prefix
        .char_indices()
        .map(|(at, character)| at + character.len_utf8())
        .take_while(|end| *end <= PREFIX_MAX)
        .last()
        .unwrap_or(0);
    let mut name = prefix[..end].to_owned();
    for _ in 0..SUFFIX {
        name.push(char::from(ALPHABET[random.random_range(0..ALPHABET.len())]));
    }
    name
}

/// A random (version 4) UUID.
pub(crate) fn new_uid() -> String {
    let mut bytes: [u8; 16] = rand::rng().random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_fit_a_label() {
        let name = generate_name(&"x".repeat(100));
        assert_eq!(name.len(), 63);
        assert!(generate_name("web-").starts_with("web-"));
        assert_ne!(generate_name("a"), generate_name("a"));
    }

    #[test]
    fn uids_are_version_four() {
        let uid = new_uid();
        assert_eq!(uid.len(), 36);
        assert_eq!(&uid[14..15], "4");
        assert!(matches!(&uid[19..20], "8" | "9" | "a" | "b"));
    }
}
