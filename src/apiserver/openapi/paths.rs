//! The paths of a row: which operations there are, and their options.

use sampan_api::ResourceDef;
use sampan_api::registry::{ServedVersion, SubresourceDef};
use sampan_api::resource::Verb;
use serde_json::{Map, Value, json};

use super::Flavor;
use super::definitions::Definitions;

type Paths = Map<String, Value>;

/// `(name, type)` of query parameters.
type Parameters = &'static [(&'static str, &'static str)];

const LIST: Parameters = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITE: Parameters = &[
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
];
const PATCH: Parameters = &[
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
    ("force", "boolean"),
];
const DELETE: Parameters = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
    ),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const NONE: Parameters = &[];

/// How a verb looks in a document.
struct Operation {
    verb: Verb,
    method: &'static str,
    action: &'static str,
    parameters: Parameters,
    /// Takes an object (or a patch, or options of a deletion).
    body: Option<Body>,
}

#[derive(Clone, Copy)]
enum Body {
    Object,
    Patch,
    DeleteOptions,
}

const ON_COLLECTION: &[Operation] = &[
    Operation {
        verb: Verb::List,
        method: "get",
        action: "list",
        parameters: LIST,
        body: None,
    },
    Operation {
        verb: Verb::Create,
        method: "post",
        action: "post",
        parameters: WRITE,
        body: Some(Body::Object),
    },
    Operation {
        verb: Verb::DeleteCollection,
        method: "delete",
        action: "deletecollection",
        parameters: DELETE,
        body: Some(Body::DeleteOptions),
    },
];

const ON_OBJECT: &[Operation] = &[
    Operation {
        verb: Verb::Get,
        method: "get",
        action: "get",
        parameters: NONE,
        body: None,
    },
    Operation {
        verb: Verb::Update,
        method: "put",
        action: "put",
        parameters: WRITE,
        body: Some(Body::Object),
    },
    Operation {
        verb: Verb::Patch,
        method: "patch",
        action: "patch",
        parameters: PATCH,
        body: Some(Body::Patch),
    },
    Operation {
        verb: Verb::Delete,
        method: "delete",
        action: "delete",
        parameters: DELETE,
        body: Some(Body::DeleteOptions),
    },
];

const ON_SUBRESOURCE: &[Operation] = &[Operation {
    verb: Verb::Create,
    method: "post",
    action: "post",
    parameters: WRITE,
    body: Some(Body::Object),
}];

/// What all operations of a row have in common.
struct Row<'a> {
    def: &'a ResourceDef,
    served: &'a ServedVersion,
    kind_name: String,
}

pub(super) fn add(
    paths: &mut Paths,
    def: &ResourceDef,
    served: &ServedVersion,
    definitions: &mut Definitions,
) {
    let Some(kind_name) = definitions.kind_name(def, served) else {
        return;
    };
    let row = Row {
        def,
        served,
        kind_name,
    };
    let root = if served.group.is_empty() {
        format!("/api/{}", served.version)
    } else {
        format!("/apis/{}/{}", served.group, served.version)
    };
    let (base, own) = if def.is_namespaced() {
        let all = format!("{root}/{}", def.plural);
        if def.allows(Verb::List) {
            let lists = &ON_COLLECTION[..1];
            insert(
                paths,
                all,
                row.operations(lists, "ForAllNamespaces", definitions),
                &[],
            );
        }
        (
            format!("{root}/namespaces/{{namespace}}/{}", def.plural),
            &["namespace"][..],
        )
    } else {
        (format!("{root}/{}", def.plural), &[][..])
    };
    insert(
        paths,
        base.clone(),
        row.operations(ON_COLLECTION, "", definitions),
        own,
    );
    let mut named = own.to_vec();
    named.push("name");
    insert(
        paths,
        format!("{base}/{{name}}"),
        row.operations(ON_OBJECT, "", definitions),
        &named,
    );
    for subresource in &def.subresources {
        let item = row.subresource(subresource, definitions);
        let path = format!("{base}/{{name}}/{}", subresource.name);
        insert(paths, path, item, &named);
    }
}

fn insert(paths: &mut Paths, path: String, mut item: Paths, in_path: &[&str]) {
    if item.is_empty() {
        return;
    }
    if !in_path.is_empty() {
        let parameters: Vec<Value> = in_path
            .iter()
            .map(|name| {
                json!({
                    "name": name,
                    "in": "path",
                    "required": true,
                    "schema": {"type": "string", "uniqueItems": true},
                })
            })
            .collect();
        item.insert("parameters".to_owned(), parameters.into());
    }
    paths.insert(path, item.into());
}

impl Row<'_> {
    fn operations(
        &self,
        operations: &[Operation],
        suffix: &str,
        definitions: &mut Definitions,
    ) -> Paths {
        let mut item = Map::new();
        for operation in operations.iter().filter(|one| self.def.allows(one.verb)) {
            let answer = match operation.verb {
                Verb::List => format!("{}List", self.kind_name),
                _ => self.kind_name.clone(),
            };
            let rendered = self.operation(
                operation,
                suffix,
                &answer,
                &self.kind_name,
                None,
                definitions,
            );
            item.insert(operation.method.to_owned(), rendered);
        }
        item
    }

    fn subresource(&self, subresource: &SubresourceDef, definitions: &mut Definitions) -> Paths {
        let kind = subresource
            .kind
            .as_ref()
            .and_then(|kind| definitions.builtin_kind(&kind.group, &kind.version, &kind.kind));
        let kind_name = kind.unwrap_or_else(|| self.kind_name.clone());
        let mut item = Map::new();
        let all = ON_OBJECT.iter().chain(ON_SUBRESOURCE);
        for operation in all.filter(|one| subresource.verbs.contains(&one.verb)) {
            let rendered = self.operation(
                operation,
                "",
                &kind_name,
                &kind_name,
                Some(subresource),
                definitions,
            );
            item.insert(operation.method.to_owned(), rendered);
        }
        item
    }

    fn operation(
        &self,
        operation: &Operation,
        suffix: &str,
        answer: &str,
        body_kind: &str,
        subresource: Option<&SubresourceDef>,
        definitions: &mut Definitions,
    ) -> Value {
        let flavor = definitions.flavor();
        let kind = subresource
            .and_then(|one| one.kind.as_ref())
            .map_or_else(
                || json!({"group": self.served.group, "version": self.served.version, "kind": self.def.kind}),
                |kind| json!({"group": kind.group, "version": kind.version, "kind": kind.kind}),
            );
        let mut parameters: Vec<Value> = operation
            .parameters
            .iter()
            .map(|(name, kind)| parameter(flavor, name, kind))
            .collect();
        let answer = match operation.verb {
            Verb::Delete | Verb::DeleteCollection => definitions.meta("Status"),
            _ => definitions.reference(answer),
        };
        let mut out = json!({
            "operationId": self.operation_id(operation, suffix, subresource),
            "tags": [self.tag()],
            "responses": {"200": response(flavor, answer)},
            "x-kubernetes-action": operation.action,
            "x-kubernetes-group-version-kind": kind,
        });
        if let Some(body) = operation.body {
            let schema = match body {
                Body::Object => definitions.reference(body_kind),
                Body::Patch => json!({"type": "object"}),
                Body::DeleteOptions => definitions.meta("DeleteOptions"),
            };
            let required = matches!(body, Body::Object | Body::Patch);
            match flavor {
                Flavor::V2 => parameters.push(json!({
                    "name": "body", "in": "body", "required": required, "schema": schema,
                })),
                Flavor::V3 => {
                    out["requestBody"] = json!({
                        "required": required,
                        "content": contents(body, &schema),
                    });
                }
            }
        }
        if !parameters.is_empty() {
            out["parameters"] = parameters.into();
        }
        out
    }

    /// `listAppsV1NamespacedDeployment` and the like.
    fn operation_id(
        &self,
        operation: &Operation,
        suffix: &str,
        subresource: Option<&SubresourceDef>,
    ) -> String {
        let verb = match operation.verb {
            Verb::Get => "read",
            Verb::Update => "replace",
            other => other.as_str(),
        };
        let verb = if operation.verb == Verb::DeleteCollection {
            "deleteCollection"
        } else {
            verb
        };
        let scope = if self.def.is_namespaced() && suffix.is_empty() {
            "Namespaced"
        } else {
            ""
        };
        let subresource = subresource.map_or_else(String::new, |one| capitalized(&one.name));
        format!(
            "{verb}{}{scope}{}{subresource}{suffix}",
            self.camel_version(),
            self.def.kind
        )
    }

    /// `AppsV1`, `CoreV1`.
    fn camel_version(&self) -> String {
        let group = match self.served.group.split('.').next().unwrap_or_default() {
            "" => "core",
            first => first,
        };
        format!(
            "{}{}",
            capitalized(group),
            capitalized(&self.served.version)
        )
    }

    fn tag(&self) -> String {
        let group = match self.served.group.split('.').next().unwrap_or_default() {
            "" => "core",
            first => first,
        };
        format!("{group}_{}", self.served.version)
    }
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(characters).collect()
    })
}

fn parameter(flavor: Flavor, name: &str, kind: &str) -> Value {
    match flavor {
        Flavor::V2 => json!({"name": name, "in": "query", "type": kind, "uniqueItems": true}),
        Flavor::V3 => json!({
            "name": name,
            "in": "query",
            "schema": {"type": kind, "uniqueItems": true},
        }),
    }
}

fn response(flavor: Flavor, schema: Value) -> Value {
    match flavor {
        Flavor::V2 => json!({"description": "OK", "schema": schema}),
        Flavor::V3 => json!({
            "description": "OK",
            "content": {"application/json": {"schema": schema}},
        }),
    }
}

fn contents(body: Body, schema: &Value) -> Value {
    let media: &[&str] = match body {
        Body::Patch => &[
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
        ],
        Body::Object | Body::DeleteOptions => &["application/json"],
    };
    media
        .iter()
        .map(|media| ((*media).to_owned(), json!({"schema": schema})))
        .collect::<Map<String, Value>>()
        .into()
}
