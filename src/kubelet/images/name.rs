//! Names of images: `[registry/]path[:tag][@digest]`.

/// The image with `:latest` where neither tag nor digest is given; the rest stays as written.
pub fn with_default_tag(image: &str) -> Result<String, String> {
    let problem = validate(image);
    if let Some(problem) = problem {
        return Err(format!(
            "couldn't parse image name {image:?}: invalid reference format{problem}"
        ));
    }
    if image.contains('@') || tag(image).is_some() {
        Ok(image.to_owned())
    } else {
        Ok(format!("{image}:latest"))
    }
}

/// A colon after the last slash starts a tag; one before it belongs to the registry's port.
fn tag(image: &str) -> Option<&str> {
    let last = image.rsplit('/').next()?;
    last.split_once(':').map(|(_, tag)| tag)
}

/// The registry, or Docker's where none is named.
pub fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}

/// What is wrong with the name, as words that follow "invalid reference format".
fn validate(image: &str) -> Option<String> {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    if digest.is_some_and(|d| !is_digest(d)) {
        return Some(String::new());
    }
    let (path, tag) = match tag(name) {
        Some(tag) => (&name[..name.len() - tag.len() - 1], Some(tag)),
        None => (name, None),
    };
    if tag.is_some_and(|t| !is_tag(t)) {
        return Some(String::new());
    }
    let host = registry(path);
    let repository = path
        .strip_prefix(host)
        .map_or(path, |rest| rest.trim_start_matches('/'));
    if repository.is_empty() {
        return Some(String::new());
    }
    if repository.chars().any(|c| c.is_ascii_uppercase()) {
        let library = if host == "docker.io" && !repository.contains('/') {
            "library/"
        } else {
            ""
        };
        return Some(format!(
            ": repository name ({library}{repository}) must be lowercase"
        ));
    }
    let fine = repository.split('/').all(is_component);
    (!fine).then(String::new)
}

fn is_component(part: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_legal = |c: char| is_alphanumeric(c) || matches!(c, '.' | '_' | '-');
    part.chars().all(is_legal)
        && part.starts_with(is_alphanumeric)
        && part.ends_with(is_alphanumeric)
}

fn is_tag(tag: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (1..=128).contains(&tag.len())
        && tag.starts_with(is_word)
        && tag.chars().all(|c| is_word(c) || matches!(c, '.' | '-'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty() && hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_added_only_where_missing() {
        for (image, expected) in [
            ("busybox", "busybox:latest"),
            ("busybox:1.37", "busybox:1.37"),
            ("reg.example:5000/a/b", "reg.example:5000/a/b:latest"),
            ("reg.example:5000/a/b:v1", "reg.example:5000/a/b:v1"),
        ] {
            assert_eq!(with_default_tag(image).as_deref(), Ok(expected));
        }
        let digest = format!("a@sha256:{}", "0".repeat(64));
        assert_eq!(with_default_tag(&digest), Ok(digest.clone()));
    }

    #[test]
    fn bad_names_are_refused() {
        for image in [
            "",
            "FAILED_IMAGE",
            "a//b",
            "a:",
            "-a",
            "a:b c",
            "a@sha256:x",
        ] {
            assert!(with_default_tag(image).is_err(), "{image}");
        }
    }

    #[test]
    fn registries() {
        assert_eq!(registry("busybox"), "docker.io");
        assert_eq!(registry("library/busybox"), "docker.io");
        assert_eq!(registry("localhost/x"), "localhost");
        assert_eq!(registry("r.example:5000/x"), "r.example:5000");
    }
}
