//! The environment of a container. Upstream counterpart: `makeEnvironmentVariables`.

use crate::expand::{count, expand};
use crate::fields::{self, Surroundings};
use crate::pod;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvFromSource, EnvVarSource, Pod, Secret, Service,
};
use std::collections::HashMap;
use std::sync::Arc;

/// The objects that a pod refers to, already at hand.
pub trait Objects: Send + Sync {
    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>>;
    fn secret(&self, name: &str) -> Option<Arc<Secret>>;
}

/// For pods that refer to nothing.
pub struct NoObjects;

impl Objects for NoObjects {
    fn config_map(&self, _name: &str) -> Option<Arc<ConfigMap>> {
        None
    }

    fn secret(&self, _name: &str) -> Option<Arc<Secret>> {
        None
    }
}

/// Variables in the order in which they are set.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    names: Vec<String>,
    values: HashMap<String, String>,
}

impl Environment {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names
            .iter()
            .map(|name| (name.as_str(), self.values[name].as_str()))
    }

    fn set(&mut self, name: String, value: String) {
        if self.values.insert(name.clone(), value).is_none() {
            self.names.push(name);
        }
    }
}

/// What the environment is made from.
pub struct Sources<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub objects: &'a dyn Objects,
    pub services: &'a [Arc<Service>],
    pub around: &'a Surroundings,
}

/// The full environment, or why the container cannot be created.
pub fn environment(sources: &Sources<'_>) -> Result<Environment, String> {
    let links = service_variables(sources);
    let mut result = Environment::default();
    let mut total = 0;
    for source in sources.container.env_from.iter().flatten() {
        add_all(sources, source, &mut result)?;
    }
    for variable in sources.container.env.iter().flatten() {
        let literal = variable.value.as_deref().unwrap_or_default();
        let value = if !literal.is_empty() {
            let link = |name: &str| {
                links
                    .iter()
                    .find(|(n, _)| n == name)
                    .map(|(_, v)| v.as_str())
            };
            Some(expand(literal, |name| result.get(name).or(link(name)))?)
        } else if let Some(source) = &variable.value_from {
            from_source(sources, source)?
        } else {
            Some(String::new())
        };
        if let Some(value) = value {
            count(&mut total, &value)?;
            result.set(variable.name.clone(), value);
        }
    }
    for (name, value) in links {
        if result.get(&name).is_none() {
            result.set(name, value);
        }
    }
    Ok(result)
}

fn add_all(
    sources: &Sources<'_>,
    source: &EnvFromSource,
    result: &mut Environment,
) -> Result<(), String> {
    let prefix = source.prefix.as_deref().unwrap_or_default();
    if let Some(reference) = &source.config_map_ref {
        match sources.objects.config_map(&reference.name) {
            Some(map) => {
                for (key, value) in map.data.iter().flatten() {
                    result.set(format!("{prefix}{key}"), value.clone());
                }
            }
            None if reference.optional == Some(true) => {}
            None => return Err(not_found("configmap", &reference.name)),
        }
    }
    if let Some(reference) = &source.secret_ref {
        match sources.objects.secret(&reference.name) {
            Some(secret) => {
                for (key, value) in secret.data.iter().flatten() {
                    let value = String::from_utf8_lossy(&value.0).into_owned();
                    result.set(format!("{prefix}{key}"), value);
                }
            }
            None if reference.optional == Some(true) => {}
            None => return Err(not_found("secret", &reference.name)),
        }
    }
    Ok(())
}

pub fn not_found(kind: &str, name: &str) -> String {
    format!("{kind} {name:?} not found")
}

/// `Ok(None)`: the source is optional and absent, the variable is left out.
fn from_source(sources: &Sources<'_>, source: &EnvVarSource) -> Result<Option<String>, String> {
    let namespace = pod::namespace(sources.pod);
    if let Some(selector) = &source.field_ref {
        return fields::field(sources.pod, selector, sources.around).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        let value = fields::resource(sources.pod, sources.container, selector, sources.around)?;
        return Ok(Some(value));
    }
    if let Some(selector) = &source.config_map_key_ref {
        let optional = selector.optional == Some(true);
        let Some(map) = sources.objects.config_map(&selector.name) else {
            return absent(optional, not_found("configmap", &selector.name));
        };
        let value = map.data.as_ref().and_then(|d| d.get(&selector.key));
        return match value {
            Some(value) => Ok(Some(value.clone())),
            None => absent(
                optional,
                format!(
                    "couldn't find key {} in ConfigMap {namespace}/{}",
                    selector.key, selector.name
                ),
            ),
        };
    }
    if let Some(selector) = &source.secret_key_ref {
        let optional = selector.optional == Some(true);
        let Some(secret) = sources.objects.secret(&selector.name) else {
            return absent(optional, not_found("secret", &selector.name));
        };
        let value = secret.data.as_ref().and_then(|d| d.get(&selector.key));
        return match value {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None => absent(
                optional,
                format!(
                    "couldn't find key {} in Secret {namespace}/{}",
                    selector.key, selector.name
                ),
            ),
        };
    }
    if source.file_key_ref.is_some() {
        return Err("environment variables from files are not supported".to_owned());
    }
    Ok(Some(String::new()))
}

fn absent(optional: bool, message: String) -> Result<Option<String>, String> {
    if optional { Ok(None) } else { Err(message) }
}

/// Variables about the services of the namespace, and always about the API server.
fn service_variables(sources: &Sources<'_>) -> Vec<(String, String)> {
    let namespace = pod::namespace(sources.pod);
    let wants_links = pod::spec(sources.pod).enable_service_links.unwrap_or(true);
    let mut visible: Vec<&Service> = sources
        .services
        .iter()
        .map(|s| &**s)
        .filter(|service| {
            let own = service.metadata.namespace.as_deref().unwrap_or_default();
            let is_api = own == "default" && service.metadata.name.as_deref() == Some("kubernetes");
            is_api || (own == namespace && wants_links)
        })
        .collect();
    visible.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    // A service of the pod's own namespace hides the API server's of the same name.
    let hidden = |service: &Service| {
        service.metadata.namespace.as_deref() != Some(namespace)
            && visible.iter().any(|other| {
                other.metadata.name == service.metadata.name
                    && other.metadata.namespace.as_deref() == Some(namespace)
            })
    };
    visible
        .iter()
        .filter(|s| !hidden(s))
        .flat_map(|s| links_of(s))
        .collect()
}

fn links_of(service: &Service) -> Vec<(String, String)> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let ip = spec.cluster_ip.as_deref().unwrap_or_default();
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first().filter(|_| !ip.is_empty() && ip != "None") else {
        return Vec::new();
    };
    let upper = |text: &str| text.replace('-', "_").to_uppercase();
    let prefix = upper(service.metadata.name.as_deref().unwrap_or_default());
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    let mut all = vec![
        (format!("{prefix}_SERVICE_HOST"), ip.to_owned()),
        (format!("{prefix}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            let name = format!("{prefix}_SERVICE_PORT_{}", upper(name));
            all.push((name, port.port.to_string()));
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let lower = protocol.to_lowercase();
        let url = format!("{lower}://{host}:{}", port.port);
        if index == 0 {
            all.push((format!("{prefix}_PORT"), url.clone()));
        }
        let stem = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        all.push((stem.clone(), url));
        all.push((format!("{stem}_PROTO"), lower));
        all.push((format!("{stem}_PORT"), port.port.to_string()));
        all.push((format!("{stem}_ADDR"), ip.to_owned()));
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::{Value, json};

    #[derive(Default)]
    struct Fixed {
        maps: HashMap<String, Arc<ConfigMap>>,
        secrets: HashMap<String, Arc<Secret>>,
    }

    impl Objects for Fixed {
        fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>> {
            self.maps.get(name).cloned()
        }

        fn secret(&self, name: &str) -> Option<Arc<Secret>> {
            self.secrets.get(name).cloned()
        }
    }

    fn objects() -> Fixed {
        let map = json!({"metadata": {"name": "cm"}, "data": {"color": "red", "size": "xl"}});
        let secret = json!({"metadata": {"name": "sec"}, "data": {"pw": "aHVudGVy"}});
        let mut fixed = Fixed::default();
        fixed
            .maps
            .insert("cm".into(), Arc::new(serde_json::from_value(map).unwrap()));
        fixed.secrets.insert(
            "sec".into(),
            Arc::new(serde_json::from_value(secret).unwrap()),
        );
        fixed
    }

    fn build(container: Value, services: Value) -> Result<Vec<String>, String> {
        let pod = pod_of(json!({"containers": [container], "nodeName": "n1"}));
        let services: Vec<Service> = serde_json::from_value(services).unwrap();
        let services: Vec<Arc<Service>> = services.into_iter().map(Arc::new).collect();
        let sources = Sources {
            pod: &pod,
            container: &pod::spec(&pod).containers[0],
            objects: &objects(),
            services: &services,
            around: &Surroundings::default(),
        };
        let result = environment(&sources)?;
        Ok(result.iter().map(|(k, v)| format!("{k}={v}")).collect())
    }

    #[test]
    fn later_sources_override_and_references_see_earlier_values() {
        let container = json!({"name": "a",
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "none", "optional": true}}],
            "env": [{"name": "P_color", "value": "blue"},
                {"name": "X", "value": "$(P_color)-$(LATER)"},
                {"name": "LATER", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "pw"}}},
                {"name": "SKIP", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "no", "optional": true}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]});
        assert_eq!(
            build(container, json!([])).unwrap(),
            [
                "P_color=blue",
                "P_size=xl",
                "X=blue-$(LATER)",
                "LATER=hunter",
                "NODE=n1"
            ]
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let reference = |source: Value| {
            build(
                json!({"name": "a", "env": [{"name": "X", "valueFrom": source}]}),
                json!([]),
            )
            .unwrap_err()
        };
        assert_eq!(
            reference(json!({"configMapKeyRef": {"name": "zz", "key": "k"}})),
            "configmap \"zz\" not found"
        );
        assert_eq!(
            reference(json!({"secretKeyRef": {"name": "sec", "key": "k"}})),
            "couldn't find key k in Secret default/sec"
        );
    }

    #[test]
    fn services_become_variables() {
        let services = json!([
            {"metadata": {"name": "my-db", "namespace": "default"},
             "spec": {"clusterIP": "10.43.0.9", "ports": [{"name": "sql", "port": 5432}]}},
            {"metadata": {"name": "headless", "namespace": "default"},
             "spec": {"clusterIP": "None", "ports": [{"port": 1}]}},
            {"metadata": {"name": "other", "namespace": "elsewhere"},
             "spec": {"clusterIP": "10.43.0.8", "ports": [{"port": 1}]}}]);
        let all = build(json!({"name": "a"}), services).unwrap();
        assert_eq!(
            all,
            [
                "MY_DB_SERVICE_HOST=10.43.0.9",
                "MY_DB_SERVICE_PORT=5432",
                "MY_DB_SERVICE_PORT_SQL=5432",
                "MY_DB_PORT=tcp://10.43.0.9:5432",
                "MY_DB_PORT_5432_TCP=tcp://10.43.0.9:5432",
                "MY_DB_PORT_5432_TCP_PROTO=tcp",
                "MY_DB_PORT_5432_TCP_PORT=5432",
                "MY_DB_PORT_5432_TCP_ADDR=10.43.0.9"
            ]
        );
    }
}
