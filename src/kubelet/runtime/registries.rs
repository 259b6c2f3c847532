//! `registries.yaml`: mirrors of registries, their certificates and logins, as containerd wants them.
//!
//! The form is k3s's. Mirrors and certificates become one `hosts.toml` per registry below `certs.d`, logins go
//! into containerd's own configuration. A `hosts.toml` that somebody else has put there is left alone.

use super::Error;
use super::config::quote;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const MARK: &str = "# Written by sampan at every start.";

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Registries {
    mirrors: BTreeMap<String, Mirror>,
    configs: BTreeMap<String, Host>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Mirror {
    endpoint: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Host {
    auth: Option<Login>,
    tls: Option<Tls>,
}

/// A login to a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Login {
    pub username: String,
    pub password: String,
    pub auth: String,
    pub identity_token: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Tls {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    insecure_skip_verify: bool,
}

impl Registries {
    /// What the file says; without a file, nothing.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = match sampan_util::file::read_text(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            text => text.map_err(Error::file("read", path))?,
        };
        Self::parse(&text).map_err(|problem| Error::Registries {
            path: path.to_owned(),
            problem,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text
            .lines()
            .all(|line| line.trim().is_empty() || line.trim().starts_with('#'))
        {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(text).map_err(|error| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().to_owned()
        })
    }

    /// The logins, by registry.
    pub fn logins(&self) -> impl Iterator<Item = (&str, &Login)> {
        let all = self.configs.iter();
        all.filter_map(|(host, config)| Some((host.as_str(), config.auth.as_ref()?)))
    }

    /// `hosts.toml` by registry.
    fn hosts(&self) -> BTreeMap<String, String> {
        let secured = self.configs.iter().filter(|(_, c)| c.tls.is_some());
        let names = self.mirrors.keys().chain(secured.map(|(name, _)| name));
        names
            .map(|name| {
                let folder = if name == "*" { "_default" } else { name };
                (folder.to_owned(), self.render(name))
            })
            .collect()
    }

    fn render(&self, registry: &str) -> String {
        let mut text = format!("{MARK}\n");
        if registry != "*" {
            // What is not a mirror's is asked of the registry itself.
            let address = match registry {
                "docker.io" => "registry-1.docker.io",
                other => other,
            };
            line(&mut text, "server", &quote(&format!("https://{address}")));
            self.tls(registry, &mut text);
        }
        let endpoints = self.mirrors.get(registry).map(|m| m.endpoint.as_slice());
        for endpoint in endpoints.unwrap_or_default() {
            let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
            let rest = rest.trim_end_matches('/');
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            let url = if path.is_empty() {
                format!("{scheme}://{host}")
            } else {
                let path = path.trim_end_matches("/v2").trim_end_matches("v2");
                format!("{scheme}://{host}/{}", join(path, "v2"))
            };
            let _written = write!(text, "\n[host.{}]\n", quote(&url));
            line(&mut text, "capabilities", "[\"pull\", \"resolve\"]");
            if !path.is_empty() {
                line(&mut text, "override_path", "true");
            }
            self.tls(host, &mut text);
        }
        text
    }

    fn tls(&self, host: &str, text: &mut String) {
        let Some(tls) = self.configs.get(host).and_then(|c| c.tls.as_ref()) else {
            return;
        };
        let path = |path: &Path| quote(&path.to_string_lossy());
        if let Some(ca) = &tls.ca_file {
            line(text, "ca", &path(ca));
        }
        match (&tls.cert_file, &tls.key_file) {
            (Some(cert), Some(key)) => {
                line(
                    text,
                    "client",
                    &format!("[[{}, {}]]", path(cert), path(key)),
                );
            }
            (Some(one), None) | (None, Some(one)) => line(text, "client", &path(one)),
            (None, None) => {}
        }
        if tls.insecure_skip_verify {
            line(text, "skip_verify", "true");
        }
    }

    /// Brings `certs.d` in line.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let hosts = self.hosts();
        let entries = fs::read_dir(folder).map_err(Error::file("read", folder))?;
        for entry in entries.flatten() {
            let file = entry.path().join("hosts.toml");
            let name = entry.file_name().to_string_lossy().into_owned();
            if !hosts.contains_key(&name) && is_ours(&file) {
                fs::remove_file(&file).map_err(Error::file("remove", &file))?;
            }
        }
        for (name, text) in hosts {
            let folder = folder.join(&name);
            let file = folder.join("hosts.toml");
            if file.exists() && !is_ours(&file) {
                tracing::warn!(file = %file.display(), "is not written by sampan and stays: what registries.yaml says of this registry has no effect");
                continue;
            }
            fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
            fs::write(&file, text).map_err(Error::file("write", &file))?;
        }
        Ok(())
    }
}

fn join(path: &str, last: &str) -> String {
    match path.trim_end_matches('/') {
        "" => last.to_owned(),
        path => format!("{path}/{last}"),
    }
}

fn line(text: &mut String, key: &str, value: &str) {
    // Writing to a String cannot fail.
    let _written = writeln!(text, "{key} = {value}");
}

fn is_ours(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.starts_with(MARK))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FILE: &str = r#"
mirrors:
  docker.io:
    endpoint: ["https://mirror.test:5000", "http://cache.test/hub"]
  "*":
    endpoint: ["https://all.test"]
configs:
  mirror.test:5000:
    auth: {username: u, password: "p\"w"}
    tls: {ca_file: /ca.crt, cert_file: /c.crt, key_file: /c.key}
  own.test:
    tls: {insecure_skip_verify: true}
"#;

    #[test]
    fn mirrors_and_certificates_become_hosts() {
        let registries = Registries::parse(FILE).unwrap();
        let hosts = registries.hosts();
        let names: Vec<&str> = hosts.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["_default", "docker.io", "mirror.test:5000", "own.test"]
        );
        assert_eq!(
            hosts["docker.io"],
            format!(
                "{MARK}\nserver = \"https://registry-1.docker.io\"\n\
                 \n[host.\"https://mirror.test:5000\"]\ncapabilities = [\"pull\", \"resolve\"]\nca = \"/ca.crt\"\nclient = [[\"/c.crt\", \"/c.key\"]]\n\
                 \n[host.\"http://cache.test/hub/v2\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n"
            )
        );
        assert!(hosts["own.test"].contains("server = \"https://own.test\"\nskip_verify = true\n"));
        assert!(!hosts["_default"].contains("server"));
        let logins: Vec<(&str, &str)> = registries
            .logins()
            .map(|(host, login)| (host, login.password.as_str()))
            .collect();
        assert_eq!(logins, [("mirror.test:5000", "p\"w")]);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let problem =
            Registries::parse("mirrors: {a: {endpoint: [], rewrite: {x: y}}}").unwrap_err();
        assert!(problem.contains("rewrite"), "{problem}");
        assert_eq!(
            Registries::parse("# nothing\n").unwrap(),
            Registries::default()
        );
    }

    #[test]
    fn files_of_others_stay_and_ours_go_with_their_reason() {
        let dir = std::env::temp_dir().join(format!("sampan-certs-{}", rand::random::<u64>()));
        fs::create_dir_all(dir.join("docker.io")).unwrap();
        fs::write(dir.join("docker.io/hosts.toml"), "server = \"x\"\n").unwrap();
        Registries::parse(FILE).unwrap().write(&dir).unwrap();
        let read = |name: &str| fs::read_to_string(dir.join(name).join("hosts.toml")).ok();
        assert_eq!(read("docker.io").unwrap(), "server = \"x\"\n");
        assert!(read("own.test").unwrap().starts_with(MARK));
        Registries::default().write(&dir).unwrap();
        assert!(read("own.test").is_none() && read("docker.io").is_some());
        fs::remove_dir_all(&dir).unwrap();
    }
}
