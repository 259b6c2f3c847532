//! Image names in full: `busybox` is `docker.io/library/busybox:latest`.

/// Completes a name the way every client of a registry does.
pub fn normalize(name: &str) -> String {
    let (registry, rest) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest.to_owned()),
        Some(_) => ("docker.io", name.to_owned()),
        None => ("docker.io", format!("library/{name}")),
    };
    let registry = if registry == "index.docker.io" {
        "docker.io"
    } else {
        registry
    };
    let rest = if registry == "docker.io" && !rest.contains('/') {
        format!("library/{rest}")
    } else {
        rest
    };
    let last = rest.rsplit('/').next().unwrap_or(&rest);
    if last.contains(':') || last.contains('@') {
        format!("{registry}/{rest}")
    } else {
        format!("{registry}/{rest}:latest")
    }
}

fn is_registry(first: &str) -> bool {
    first.contains('.') || first.contains(':') || first == "localhost"
}

/// Whether an annotation holds a whole name and not just a tag.
pub fn is_full_name(text: &str) -> bool {
    text.contains('/') || text.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_completed_and_full_names_kept() {
        for (given, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.37", "docker.io/library/busybox:1.37"),
            ("me/app", "docker.io/me/app:latest"),
            ("docker.io/nginx:1", "docker.io/library/nginx:1"),
            ("localhost/a:b", "localhost/a:b"),
            ("reg:5000/a", "reg:5000/a:latest"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("quay.io/a/b@sha256:00", "quay.io/a/b@sha256:00"),
        ] {
            assert_eq!(normalize(given), full);
        }
    }
}
