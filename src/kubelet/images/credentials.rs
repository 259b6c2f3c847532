//! Logins for registries out of pull secrets.

use super::name;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use sampan_cri::runtime::v1::AuthConfig;
use serde_json::{Map, Value};

/// The logins in the secrets that are meant for the image's registry, the most specific first.
pub fn for_image(secrets: &[Secret], image: &str) -> Vec<AuthConfig> {
    let entries = secrets.iter().flat_map(entries);
    let mut matching: Vec<(usize, AuthConfig)> = entries
        .filter_map(|(place, entry)| Some((fits(&place, image)?, login(&entry)?)))
        .collect();
    matching.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    matching.into_iter().map(|(_, login)| login).collect()
}

/// Places with what stands there, of either type of secret.
fn entries(secret: &Secret) -> Map<String, Value> {
    let data = secret.data.as_ref();
    let parse = |key: &str| -> Option<Value> {
        serde_json::from_slice(&data.and_then(|d| d.get(key))?.0).ok()
    };
    let entries = parse(".dockerconfigjson")
        .and_then(|config| config.get("auths").cloned())
        .or_else(|| parse(".dockercfg"));
    match entries {
        Some(Value::Object(entries)) => entries,
        _ => Map::new(),
    }
}

/// How much of the image's name the place covers; `None` if it is for another registry.
fn fits(place: &str, image: &str) -> Option<usize> {
    let place = place
        .trim_start_matches("https://")
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .trim_end_matches("/v1")
        .trim_end_matches("/v2");
    let registry = name::registry(image);
    let is_docker = |host: &str| matches!(host, "docker.io" | "index.docker.io");
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    let same = host_matches(host, registry) || (is_docker(host) && is_docker(registry));
    let rest = image
        .strip_prefix(registry)
        .map_or(image, |rest| rest.trim_start_matches('/'));
    (same && rest.starts_with(path)).then_some(place.len())
}

/// `*` stands for one label of a host name.
fn host_matches(pattern: &str, host: &str) -> bool {
    if !pattern.contains('*') {
        return pattern == host;
    }
    let (wanted, given): (Vec<&str>, Vec<&str>) =
        (pattern.split('.').collect(), host.split('.').collect());
    wanted.len() == given.len() && wanted.iter().zip(&given).all(|(w, g)| *w == "*" || w == g)
}

/// Without the address: the runtime would compare it with the host, which it is more than, or less.
fn login(entry: &Value) -> Option<AuthConfig> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    let (mut username, mut password) = (text("username"), text("password"));
    if let Some(auth) = text("auth") {
        let decoded = String::from_utf8(STANDARD.decode(auth.trim()).ok()?).ok()?;
        let (user, word) = decoded.split_once(':')?;
        username = Some(user.to_owned());
        password = Some(word.to_owned());
    }
    Some(AuthConfig {
        username: username.unwrap_or_default(),
        password: password.unwrap_or_default(),
        identity_token: text("identitytoken").unwrap_or_default(),
        registry_token: text("registrytoken").unwrap_or_default(),
        ..AuthConfig::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn the_most_specific_login_of_the_registry_comes_first() {
        let auths = json!({"auths": {
            "r.example": {"auth": STANDARD.encode("u:p")},
            "r.example/team": {"username": "t", "password": "q"},
            "*.other.example": {"username": "o", "password": "o"},
            "https://index.docker.io/v1/": {"username": "d", "password": "d"}}});
        let data = json!({".dockerconfigjson": STANDARD.encode(auths.to_string())});
        let secret: Secret = serde_json::from_value(json!({"metadata": {}, "data": data})).unwrap();
        let users = |image: &str| -> Vec<String> {
            let logins = for_image(std::slice::from_ref(&secret), image);
            logins.into_iter().map(|l| l.username).collect()
        };
        assert_eq!(users("r.example/team/x:1"), ["t", "u"]);
        assert_eq!(users("r.example/x"), ["u"]);
        assert_eq!(users("a.other.example/x"), ["o"]);
        assert_eq!(users("busybox"), ["d"]);
        assert!(users("elsewhere.example/x").is_empty());
        // Over several secrets as well.
        let general = json!({".dockercfg": STANDARD.encode(json!({"r.example": {"auth": STANDARD.encode("g:p")}}).to_string())});
        let general: Secret =
            serde_json::from_value(json!({"metadata": {}, "data": general})).unwrap();
        let logins = for_image(&[general, secret.clone()], "r.example/team/x:1");
        let users: Vec<String> = logins.into_iter().map(|l| l.username).collect();
        assert_eq!(users, ["t", "g", "u"]);
    }
}
