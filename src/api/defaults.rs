//! Defaults: what the server fills in where a client said nothing.
//!
//! Rules belong to types, not to kinds: a probe is completed wherever a probe stands. One walk over
//! an object, guided by its schema, applies the rule of each type it meets (outer types first) and
//! then the defaults that fields themselves state.

use serde_json::Value;

use crate::schema::{Schema, Shape};

mod admission;
mod batch;
mod core;
mod flowcontrol;
mod pod;
mod scaling;
mod service;
mod various;
mod volume;
mod workload;

pub(crate) use scaling::cpu_metric as default_metric;

/// A type's rule.
type Rule = fn(&mut Value);

/// The tables of rules by type name, without the common prefix of all names.
const TABLES: &[&[(&str, Rule)]] = &[
    core::RULES,
    pod::RULES,
    volume::RULES,
    service::RULES,
    workload::RULES,
    batch::RULES,
    scaling::RULES,
    admission::RULES,
    flowcontrol::RULES,
    various::RULES,
];

fn rule(name: &str) -> Option<Rule> {
    let name = name.strip_prefix("io.k8s.")?;
    let name = name.strip_prefix("api.").unwrap_or(name);
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .find(|(key, _)| *key == name)
        .map(|(_, rule)| *rule)
}

/// Completes `value`, which has the form of `schema`.
pub fn apply(schema: &Schema, value: &mut Value) {
    match &schema.shape {
        Shape::Struct(structure) => {
            if !value.is_object() {
                return;
            }
            if let Some(rule) = rule(&schema.name) {
                rule(value);
            }
            let Some(map) = value.as_object_mut() else {
                return;
            };
            for field in structure.fields.iter().filter(|f| !f.default.is_none()) {
                let slot = map.get(field.name.as_ref());
                if slot.is_none_or(|value| value.is_null() || value == "" || value == 0)
                    && let Some(default) = field.default.value()
                {
                    map.insert(field.name.clone().into_owned(), default);
                }
            }
            for (key, member) in map.iter_mut() {
                if let Some(field) = structure.field(key) {
                    apply(&field.schema, member);
                }
            }
        }
        Shape::List(list) if holds_structs(&list.item) => {
            for item in value.as_array_mut().into_iter().flatten() {
                apply(&list.item, item);
            }
        }
        Shape::Map(map) if holds_structs(&map.value) => {
            for (_, member) in value.as_object_mut().into_iter().flatten() {
                apply(&map.value, member);
            }
        }
        _ => {}
    }
}

fn holds_structs(schema: &Schema) -> bool {
    matches!(
        schema.shape,
        Shape::Struct(_) | Shape::List(_) | Shape::Map(_)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::schema::{by_name, of_kind};
    use serde_json::json;

    fn defaulted(group: &str, kind: &str, mut value: Value) -> Value {
        let schema = of_kind(group, "v1", kind).unwrap();
        schema.decode(&mut value).unwrap();
        apply(schema, &mut value);
        schema.decode(&mut value).unwrap();
        value
    }

    #[test]
    fn every_rule_has_a_type() {
        for (name, _) in TABLES.iter().flat_map(|table| table.iter()) {
            let found = by_name(&format!("io.k8s.api.{name}"))
                .or_else(|| by_name(&format!("io.k8s.{name}")));
            assert!(found.is_some(), "{name}");
        }
    }

    #[test]
    fn pods() {
        let pod = defaulted(
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "i:1", "ports": [{"containerPort": 80}],
                "livenessProbe": {"httpGet": {"port": 80}},
                "resources": {"limits": {"cpu": "1"}}}],
                "volumes": [{"name": "v"}, {"name": "c", "configMap": {"name": "x"}}]}}),
        );
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        assert_eq!(container["ports"][0]["protocol"], "TCP");
        assert_eq!(container["resources"]["requests"]["cpu"], "1");
        assert_eq!(container["livenessProbe"]["httpGet"]["scheme"], "HTTP");
        assert_eq!(container["livenessProbe"]["timeoutSeconds"], 1);
        assert_eq!(pod["spec"]["volumes"][0]["emptyDir"], json!({}));
        assert_eq!(pod["spec"]["volumes"][1]["configMap"]["defaultMode"], 420);
        assert_eq!(pod["spec"]["securityContext"], json!({}));
        assert_eq!(pod["spec"]["enableServiceLinks"], true);
    }

    #[test]
    fn deployments_and_services() {
        let deployment = defaulted(
            "apps",
            "Deployment",
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "i"}]}}}}),
        );
        assert_eq!(deployment["spec"]["replicas"], 1);
        assert_eq!(
            deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"],
            "25%"
        );
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["imagePullPolicy"], "Always");
        assert!(pod.get("enableServiceLinks").is_none());
        let service = defaulted("", "Service", json!({"spec": {"ports": [{"port": 80}]}}));
        assert_eq!(
            service["spec"]["ports"][0],
            json!({"port": 80, "protocol": "TCP", "targetPort": 80})
        );
        assert_eq!(service["spec"]["internalTrafficPolicy"], "Cluster");
    }
}
