//! The syntax of names, labels and similar texts. Each check returns upstream's messages, none if
//! the text is good. Matchers are written out by hand: no regular expressions are needed.

pub const DNS1123_LABEL_MAX: usize = 63;
pub const DNS1123_SUBDOMAIN_MAX: usize = 253;
pub const LABEL_VALUE_MAX: usize = 63;

const DNS1123_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035_LABEL: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_TEXT: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

pub fn max_len(length: usize) -> String {
    format!("must be no more than {length} characters")
}

/// Label keys and values are measured in bytes, and say so.
fn max_bytes(length: usize) -> String {
    format!("must be no more than {length} bytes")
}

pub fn inclusive_range(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// The message for a text that does not match `pattern`.
pub fn pattern_error(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let mut text = format!("{message} (e.g. ");
    for (index, example) in examples.iter().enumerate() {
        if index > 0 {
            text.push_str(" or ");
        }
        text.push_str(&format!("'{example}', "));
    }
    text.push_str(&format!("regex used for validation is '{pattern}')"));
    text
}

fn lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn starts_and_ends(text: &str, good: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => good(first) && good(last),
        _ => false,
    }
}

fn matches_dns1123_label(text: &str) -> bool {
    starts_and_ends(text, lower_or_digit)
        && text
            .bytes()
            .all(|byte| lower_or_digit(byte) || byte == b'-')
}

fn matches_dns1123_subdomain(text: &str) -> bool {
    text.split('.').all(matches_dns1123_label)
}

fn matches_label_key(text: &str) -> bool {
    starts_and_ends(text, |byte| byte.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > DNS1123_LABEL_MAX {
        messages.push(max_len(DNS1123_LABEL_MAX));
    }
    if !matches_dns1123_label(text) {
        if matches_dns1123_subdomain(text) {
            messages.push("must not contain dots".to_owned());
        } else {
            messages.push(pattern_error(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                DNS1123_LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    messages
}

pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX {
        messages.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    if !matches_dns1123_subdomain(text) {
        messages.push(pattern_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            DNS1123_SUBDOMAIN,
            &["example.com"],
        ));
    }
    messages
}

pub fn wildcard_dns1123_subdomain(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX {
        messages.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    if !text
        .strip_prefix("*.")
        .is_some_and(matches_dns1123_subdomain)
    {
        messages.push(pattern_error(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!(r"\*\.{DNS1123_SUBDOMAIN}"),
            &["*.example.com"],
        ));
    }
    messages
}

pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > DNS1123_LABEL_MAX {
        messages.push(max_len(DNS1123_LABEL_MAX));
    }
    let starts = text.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    if !(starts && matches_dns1123_label(text)) {
        messages.push(pattern_error(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            DNS1035_LABEL,
            &["my-name", "abc-123"],
        ));
    }
    messages
}

/// A label's key, which is also what is called a qualified name.
pub fn label_key(text: &str) -> Vec<String> {
    let pattern = || pattern_error(LABEL_KEY_TEXT, LABEL_KEY, &["MyName", "my.name", "123-abc"]);
    let mut messages = Vec::new();
    let mut parts = text.split('/');
    let (first, second, third) = (parts.next().unwrap_or(""), parts.next(), parts.next());
    let name = match (second, third) {
        (None, _) => first,
        (Some(name), None) => {
            if first.is_empty() {
                messages.push("prefix part must be non-empty".to_owned());
            } else {
                let errors = dns1123_subdomain(first);
                messages.extend(errors.iter().map(|text| format!("prefix part {text}")));
            }
            name
        }
        (Some(_), Some(_)) => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                pattern()
            )];
        }
    };
    if name.is_empty() {
        messages.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        messages.push(format!("name part {}", max_bytes(63)));
    }
    if !matches_label_key(name) {
        messages.push(format!("name part {}", pattern()));
    }
    messages
}

pub fn label_value(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > LABEL_VALUE_MAX {
        messages.push(max_bytes(LABEL_VALUE_MAX));
    }
    if !text.is_empty() && !matches_label_key(text) {
        messages.push(pattern_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            &format!("({LABEL_KEY})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    messages
}

/// A name that is one segment of a URL's path.
pub fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"]
        .into_iter()
        .filter(|illegal| text.contains(illegal))
        .map(|illegal| format!("may not contain '{illegal}'"))
        .collect()
}

pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec![inclusive_range(1, 65535)]
    }
}

pub fn port_name(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    let mut check = |bad: bool, message: &str| {
        if bad {
            messages.push(message.to_owned());
        }
    };
    check(text.len() > 15, &max_len(15));
    check(
        text.is_empty()
            || !text
                .bytes()
                .all(|byte| lower_or_digit(byte) || byte == b'-'),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    );
    check(
        !text.bytes().any(|byte| byte.is_ascii_lowercase()),
        "must contain at least one letter (a-z)",
    );
    check(text.contains("--"), "must not contain consecutive hyphens");
    check(
        text.starts_with('-') || text.ends_with('-'),
        "must not begin or end with a hyphen",
    );
    messages
}

pub fn percent(text: &str) -> Vec<String> {
    let good = text
        .strip_suffix('%')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    if good {
        return Vec::new();
    }
    vec![pattern_error(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

pub fn http_header_name(text: &str) -> Vec<String> {
    let good = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if good {
        return Vec::new();
    }
    vec![pattern_error(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// A variable's name: any printable ASCII but `=`.
pub fn env_var_name(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.is_empty() {
        messages.push("environment variable name must be non-empty".to_owned());
    }
    let good = |c: char| (' '..='~').contains(&c) && c != '=';
    if !text.chars().all(good) {
        messages.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        );
    }
    messages
}

/// The key of a ConfigMap or Secret.
pub fn config_map_key(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX {
        messages.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    let good = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if !good {
        messages.push(pattern_error(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match text {
        "." => messages.push("must not be '.'".to_owned()),
        ".." => messages.push("must not be '..'".to_owned()),
        _ if text.starts_with("..") => messages.push("must not start with '..'".to_owned()),
        _ => {}
    }
    messages
}

/// A DNS-1123 subdomain whose labels may have underscores.
pub fn dns1123_subdomain_with_underscore(text: &str) -> Vec<String> {
    const LABEL: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let label = |label: &str| {
        let inner = label.strip_prefix('_').unwrap_or(label);
        starts_and_ends(inner, lower_or_digit)
            && inner
                .bytes()
                .all(|byte| lower_or_digit(byte) || b"-_".contains(&byte))
    };
    let mut messages = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX {
        messages.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    if !text.split('.').all(label) {
        messages.push(pattern_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character",
            &format!(r"{LABEL}(\.{LABEL})*"),
            &["example.com"],
        ));
    }
    messages
}

/// A domain of at least three labels.
pub fn fully_qualified(text: &str) -> Vec<String> {
    let messages = dns1123_subdomain(text);
    if !messages.is_empty() {
        return vec![messages.join(",")];
    }
    if text.split('.').count() < 3 {
        return vec![
            "should be a domain with at least three segments separated by dots".to_owned(),
        ];
    }
    Vec::new()
}

/// An address; leading zeros and IPv4-mapped IPv6 are let through, as old fields did.
pub fn parse_legacy_ip(text: &str) -> Option<std::net::IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let parts: Vec<&str> = text.split('.').collect();
    let all_numbers = parts
        .iter()
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    if parts.len() != 4 || !all_numbers {
        return None;
    }
    let mut octets = [0_u8; 4];
    for (octet, part) in octets.iter_mut().zip(&parts) {
        *octet = part.parse().ok()?;
    }
    Some(std::net::IpAddr::from(octets))
}

/// The tag of an image's name: `latest` if there is neither tag nor digest, `None` if there is only
/// a digest or the name is no image's.
pub fn image_tag(image: &str) -> Option<&str> {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let well_formed = !name.is_empty()
        && !name.starts_with(['/', ':', '.', '-', '_'])
        && !name.ends_with(['/', ':'])
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._/:[]".contains(&byte));
    if !well_formed {
        return None;
    }
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    match name[last..].split_once(':') {
        Some((repository, tag)) => {
            let lower = !repository.bytes().any(|byte| byte.is_ascii_uppercase());
            lower.then_some(tag)
        }
        None if digest.is_some() || name[last..].bytes().any(|byte| byte.is_ascii_uppercase()) => {
            None
        }
        None => Some("latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_and_bad() {
        assert!(dns1123_label("my-name").is_empty());
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns1123_label("-a").len(), 1);
        assert!(dns1123_subdomain("a.b-c.1").is_empty());
        assert!(!dns1123_subdomain("a..b").is_empty());
        assert!(label_key("example.com/My.Name").is_empty());
        assert_eq!(label_key("a/b/c").len(), 1);
        assert_eq!(label_key("").len(), 2);
        assert!(label_value("").is_empty());
        assert!(port_name("http").is_empty());
        assert_eq!(port_name("80").len(), 1);
        assert!(config_map_key("..data").len() == 1);
        assert!(path_segment("a:b").is_empty());
        assert_eq!(image_tag("localhost:5000/a/b"), Some("latest"));
        assert_eq!(image_tag("a/b:1"), Some("1"));
        assert_eq!(image_tag("a@sha256:00"), None);
    }
}
