//! `x-kubernetes-validations`: rules in CEL, compiled with the row and run over objects, with a budget for a request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::cel::{self, Failure, Program, Scope, Type};
use crate::field::{ErrorKind, ErrorList, FieldError};
use crate::meta::{boolean, get, items, text};

mod schema;

/// What one rule may cost …
const PER_RULE: u64 = 1_000_000;
/// … and all of a request.
const PER_REQUEST: u64 = 10_000_000;
/// The longest message that an expression makes.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// The rules of a schema and of what is inside; `None` if there are none.
#[derive(Debug)]
pub struct Rules {
    /// Where rules stand: what they are compiled and run with.
    schema: Option<Value>,
    /// Compiled when they are first needed.
    own: OnceLock<Vec<Rule>>,
    atomic: bool,
    /// Members with a schema of their own, in or out of `properties` below.
    known: BTreeSet<String>,
    keys: Vec<String>,
    properties: BTreeMap<String, Rules>,
    additional: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
    all_of: Vec<Rules>,
    root: bool,
}

#[derive(Debug)]
struct Rule {
    text: String,
    message: String,
    /// What the rule compiles to, or why it does not.
    program: Result<Program, String>,
    message_program: Option<Program>,
    uses_old: bool,
    optional_old: bool,
    reason: ErrorKind,
    /// Below the place of the rule, such as `.spec.name`.
    path: String,
}

impl Rules {
    pub fn of_root(schema: &Value) -> Option<Self> {
        Self::of(schema, true)
    }

    fn of(schema: &Value, root: bool) -> Option<Self> {
        let inner = |key: &str| {
            let inner = get(schema, key);
            inner
                .is_object()
                .then(|| Self::of(inner, false).map(Box::new))
                .flatten()
        };
        let properties = get(schema, "properties").as_object().into_iter().flatten();
        let found = Self {
            own: OnceLock::new(),
            atomic: text(schema, &["x-kubernetes-map-type"]) == "atomic",
            known: get(schema, "properties")
                .as_object()
                .filter(|_| get(schema, "additionalProperties").is_object())
                .map(|known| known.keys().cloned().collect())
                .unwrap_or_default(),
            keys: items(schema, &["x-kubernetes-list-map-keys"])
                .iter()
                .filter_map(|key| key.as_str().map(str::to_owned))
                .collect(),
            properties: properties
                .filter_map(|(name, property)| Some((name.clone(), Self::of(property, false)?)))
                .collect(),
            additional: inner("additionalProperties"),
            items: inner("items"),
            all_of: items(schema, &["allOf"])
                .iter()
                .filter_map(|part| Self::of(part, root))
                .collect(),
            schema: has_own(schema).then(|| schema.clone()),
            root,
        };
        let any = found.schema.is_some()
            || !found.properties.is_empty()
            || found.additional.is_some()
            || found.items.is_some()
            || !found.all_of.is_empty();
        any.then_some(found)
    }

    fn own(&self) -> &[Rule] {
        self.own.get_or_init(|| match &self.schema {
            Some(schema) => own(schema, self.root),
            None => Vec::new(),
        })
    }

    /// All faults of an object that the schema itself has found right.
    pub fn check(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        let mut checker = Checker {
            left: PER_REQUEST,
            exhausted: false,
            errors: ErrorList::new(),
        };
        checker.value(self, object, old, "", old.is_some());
        checker.errors
    }
}

fn has_own(schema: &Value) -> bool {
    let list = items(schema, &["x-kubernetes-validations"]);
    list.iter()
        .any(|rule| !text(rule, &["rule"]).trim().is_empty())
}

fn own(schema: &Value, root: bool) -> Vec<Rule> {
    let list = items(schema, &["x-kubernetes-validations"]);
    let kind = schema::type_of(schema, root);
    list.iter()
        .filter(|rule| !text(rule, &["rule"]).trim().is_empty())
        .map(|rule| compile(rule, &kind))
        .collect()
}

fn variables(rule: &Value, kind: &Type) -> [(&'static str, Type); 2] {
    let old = if boolean(rule, &["optionalOldSelf"]) {
        Type::Optional(Box::new(kind.clone()))
    } else {
        kind.clone()
    };
    [("self", kind.clone()), ("oldSelf", old)]
}

/// A program whose result is of a type.
fn program(source: &str, rule: &Value, kind: &Type, wanted: &Type) -> Result<Program, String> {
    let program = Program::compile(source, &variables(rule, kind))?;
    let result = program.result();
    if result == wanted || *result == Type::Dyn {
        Ok(program)
    } else if *wanted == Type::Bool {
        Err("cel expression must evaluate to a bool".to_owned())
    } else {
        Err("messageExpression must evaluate to a string".to_owned())
    }
}

fn compile(rule: &Value, kind: &Type) -> Rule {
    let source = text(rule, &["rule"]).trim();
    let program = program(source, rule, kind, &Type::Bool);
    let message = text(rule, &["messageExpression"]).trim();
    let message_program = (!message.is_empty())
        .then(|| self::program(message, rule, kind, &Type::Text).ok())
        .flatten();
    Rule {
        text: source.to_owned(),
        message: text(rule, &["message"]).trim().to_owned(),
        uses_old: program.as_ref().is_ok_and(|one| one.uses("oldSelf")),
        program,
        message_program,
        optional_old: boolean(rule, &["optionalOldSelf"]),
        reason: match text(rule, &["reason"]) {
            "FieldValueForbidden" => ErrorKind::Forbidden,
            "FieldValueRequired" => ErrorKind::Required,
            "FieldValueDuplicate" => ErrorKind::Duplicate,
            _ => ErrorKind::Invalid,
        },
        path: text(rule, &["fieldPath"]).to_owned(),
    }
}

/// Why a rule cannot be accepted, and whether that is its message expression's fault.
pub(super) struct Refusal {
    pub(super) of_message: bool,
    pub(super) why: String,
}

/// Checks one rule of a definition.
pub(super) fn refusals(rule: &Value, schema: &Value, root: bool) -> (Vec<Refusal>, bool) {
    let kind = schema::type_of(schema, root);
    let mut all = Vec::new();
    let compiled = program(text(rule, &["rule"]).trim(), rule, &kind, &Type::Bool);
    let uses_old = compiled.as_ref().is_ok_and(|one| one.uses("oldSelf"));
    if let Err(why) = compiled {
        all.push(Refusal {
            of_message: false,
            why: worded(why),
        });
    }
    let message = text(rule, &["messageExpression"]).trim();
    if !message.is_empty()
        && let Err(why) = program(message, rule, &kind, &Type::Text)
    {
        all.push(Refusal {
            of_message: true,
            why: worded(why),
        });
    }
    (all, uses_old)
}

fn worded(why: String) -> String {
    if why.starts_with("ERROR") {
        format!("compilation failed: {why}")
    } else {
        why
    }
}

struct Checker {
    left: u64,
    exhausted: bool,
    errors: ErrorList,
}

impl Checker {
    /// `tracked`: whether the old value, or that there is none, is known.
    fn value(
        &mut self,
        rules: &Rules,
        value: &Value,
        old: Option<&Value>,
        path: &str,
        tracked: bool,
    ) {
        if value.is_null() || self.exhausted {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        self.own(rules, value, old, path, tracked);
        for part in &rules.all_of {
            self.value(part, value, old, path, false);
        }
        match value {
            Value::Object(map) => self.members(rules, map, old, path, tracked),
            Value::Array(list) => self.elements(rules, list, old, path, tracked),
            _ => {}
        }
    }

    fn members(
        &mut self,
        rules: &Rules,
        map: &Map<String, Value>,
        old: Option<&Value>,
        path: &str,
        tracked: bool,
    ) {
        // What is replaced as a whole has no old members.
        let atomic = rules.atomic;
        let old = old.filter(|_| !atomic);
        for (key, member) in map {
            let inner = match rules.properties.get(key) {
                Some(inner) => inner,
                None if rules.known.contains(key) => continue,
                None => match &rules.additional {
                    Some(inner) => inner,
                    None => continue,
                },
            };
            let dot = if path.is_empty() { "" } else { "." };
            let by_name = rules.properties.contains_key(key);
            let place = if by_name {
                format!("{path}{dot}{key}")
            } else {
                format!("{path}[{key}]")
            };
            let before = old.and_then(|old| old.get(key));
            self.value(inner, member, before, &place, tracked && !atomic);
        }
    }

    fn elements(
        &mut self,
        rules: &Rules,
        list: &[Value],
        old: Option<&Value>,
        path: &str,
        tracked: bool,
    ) {
        let Some(inner) = &rules.items else {
            return;
        };
        let by_key = !rules.keys.is_empty();
        let old = old.and_then(Value::as_array).filter(|_| by_key);
        let key_of = |item: &Value| -> String {
            let parts = rules.keys.iter().map(|key| item.get(key).cloned());
            let parts: Vec<Option<Value>> = parts.collect();
            serde_json::to_string(&parts).unwrap_or_default()
        };
        // Of several with one key the first one counts.
        let old: HashMap<String, &Value> = old
            .into_iter()
            .flatten()
            .rev()
            .map(|item| (key_of(item), item))
            .collect();
        for (index, item) in list.iter().enumerate() {
            let before = old.get(&key_of(item)).copied().filter(|_| by_key);
            let place = format!("{path}[{index}]");
            self.value(inner, item, before, &place, tracked && by_key);
        }
    }

    fn own(
        &mut self,
        rules: &Rules,
        value: &Value,
        old: Option<&Value>,
        path: &str,
        tracked: bool,
    ) {
        let Some(schema) = &rules.schema else {
            return;
        };
        let own = schema::value_of(schema, value, rules.root);
        let before = old.map(|old| schema::value_of(schema, old, rules.root));
        let unchanged = tracked && old == Some(value);
        for rule in rules.own() {
            if self.exhausted {
                return;
            }
            if rule.uses_old && before.is_none() && !rule.optional_old {
                continue;
            }
            // What was wrong before may stay as it was.
            if unchanged && !rule.uses_old {
                continue;
            }
            let old_self = match (&before, rule.optional_old) {
                (Some(before), true) => cel::Value::some(before.clone()),
                (Some(before), false) => before.clone(),
                (None, true) => cel::Value::Optional(None),
                (None, false) => cel::Value::Null,
            };
            let inner = Scope::new("self", own.clone());
            let scope = inner.with("oldSelf", old_self);
            self.rule(rules, rule, &scope, value, path);
        }
    }

    fn rule(&mut self, rules: &Rules, rule: &Rule, scope: &Scope<'_>, value: &Value, path: &str) {
        let kind = rules
            .schema
            .as_ref()
            .map_or("", |schema| text(schema, &["type"]));
        let program = match &rule.program {
            Ok(program) => program,
            Err(why) => {
                return self.add(
                    path,
                    ErrorKind::Invalid,
                    Some(kind.into()),
                    format!("rule compile error: {why}"),
                );
            }
        };
        let shown = if rule.message.is_empty() {
            &rule.text
        } else {
            &rule.message
        };
        let problem = match self.run(program, scope) {
            Ok(cel::Value::Bool(true)) => return,
            Ok(cel::Value::Bool(false)) => {
                let detail = self.message(rule, scope);
                let value = (!matches!(kind, "object" | "array")).then(|| value.clone());
                let place = if path.is_empty() {
                    rule.path.trim_start_matches('.').to_owned()
                } else {
                    format!("{path}{}", rule.path)
                };
                return self.add(&place, rule.reason, value, detail);
            }
            Ok(_) => "no such overload".to_owned(),
            Err(Failure::Cost) => {
                self.exhausted = true;
                let detail = if self.left == 0 {
                    "validation failed due to running out of cost budget, no further validation rules will be run".to_owned()
                } else {
                    format!(
                        "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}",
                        Failure::Cost
                    )
                };
                return self.add(path, ErrorKind::Invalid, Some(kind.into()), detail);
            }
            Err(Failure::Error(why)) => why,
        };
        let detail = if problem.starts_with("no such overload") {
            format!(
                "'{problem}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
            )
        } else {
            format!("{problem} evaluating rule: {shown}")
        };
        self.add(path, ErrorKind::Invalid, Some(kind.into()), detail);
    }

    /// Runs within what one rule may cost, as far as the request has that left.
    fn run(&mut self, program: &Program, scope: &Scope<'_>) -> Result<cel::Value, Failure> {
        let allowed = self.left.min(PER_RULE);
        let mut budget = allowed;
        let found = program.run(scope, &mut budget);
        let spent = if found == Err(Failure::Cost) {
            allowed
        } else {
            allowed - budget
        };
        self.left -= spent;
        found
    }

    fn message(&mut self, rule: &Rule, scope: &Scope<'_>) -> String {
        let made = rule
            .message_program
            .as_ref()
            .and_then(|program| self.run(program, scope).ok());
        if let Some(cel::Value::Text(made)) = made {
            let made = made.trim();
            if !made.is_empty() && made.len() <= LONGEST_MESSAGE && !made.contains(['\n', '\r']) {
                return made.to_owned();
            }
        }
        if rule.message.is_empty() {
            format!("failed rule: {}", rule.text)
        } else {
            rule.message.clone()
        }
    }

    fn add(&mut self, path: &str, kind: ErrorKind, value: Option<Value>, detail: String) {
        let value = value.filter(|_| !matches!(kind, ErrorKind::Required | ErrorKind::Forbidden));
        self.errors.0.push(FieldError {
            kind,
            field: if path.is_empty() {
                "<nil>".to_owned()
            } else {
                path.to_owned()
            },
            value,
            detail,
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn faults(schema: &Value, object: &Value, old: Option<&Value>) -> Vec<String> {
        let rules = Rules::of_root(schema).unwrap();
        let errors = rules.check(object, old).0;
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_are_run_where_they_stand() {
        let schema = json!({"type": "object", "x-kubernetes-validations": [
                {"rule": "self.metadata.name.size() < 5", "message": "name too long"}],
            "properties": {"spec": {"type": "object",
            "x-kubernetes-validations": [{"rule": "!has(self.a) || self.a < self.b", "reason": "FieldValueForbidden", "fieldPath": ".a",
                "messageExpression": "'a is ' + string(self.a)"}],
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1},
            "d": {"type": "string", "format": "duration", "x-kubernetes-validations": [{"rule": "self < duration('1h')"}]},
            "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}}});
        let object = json!({"metadata": {"name": "long-name"}, "spec": {"a": 3, "b": 2, "d": "2h", "fixed": "x"}});
        assert_eq!(
            faults(&schema, &object, None),
            [
                "<nil>: Invalid value: name too long",
                "spec.a: Forbidden: a is 3",
                "spec.d: Invalid value: \"2h\": failed rule: self < duration('1h')",
            ]
        );
        let mut changed = object.clone();
        changed["spec"]["fixed"] = json!("y");
        assert_eq!(
            faults(&schema, &changed, Some(&object)),
            [
                "<nil>: Invalid value: name too long",
                "spec.a: Forbidden: a is 3",
                "spec.fixed: Invalid value: \"y\": failed rule: self == oldSelf",
            ],
            "what was wrong before and stays as it was is let be"
        );
        assert!(Rules::of_root(&json!({"type": "object"})).is_none());
    }

    #[test]
    fn elements_are_found_again_by_their_key() {
        let schema = json!({"type": "object", "properties": {"list": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"},
            "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}}}}});
        let old = json!({"list": [{"k": "a", "v": 1}, {"k": "b", "v": 5}]});
        let new = json!({"list": [{"k": "b", "v": 4}, {"k": "a", "v": 2}, {"k": "c", "v": 0}]});
        assert_eq!(
            faults(&schema, &new, Some(&old)),
            ["list[0].v: Invalid value: 4: failed rule: self >= oldSelf"]
        );
    }

    #[test]
    fn schemas_are_kept_where_rules_stand() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string",
            "x-kubernetes-validations": [{"rule": "self != ''"}]}}});
        let rules = Rules::of_root(&schema).unwrap();
        assert!(rules.schema.is_none());
        assert!(rules.properties["a"].schema.is_some());
        assert!(rules.properties["a"].own.get().is_none(), "not yet needed");
        assert_eq!(rules.check(&json!({"a": ""}), None).0.len(), 1);
    }

    #[test]
    fn long_lists_are_matched_in_one_pass() {
        let schema = json!({"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {
            "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}}});
        let list = |v: u64| Value::from_iter((0..50_000).map(|k| json!({"k": k, "v": v})));
        assert_eq!(
            faults(&schema, &list(2), Some(&list(1))),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_request_has_a_budget() {
        let schema = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"},
            "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"}]}}});
        let object = json!({"l": vec![1; 300]});
        let found = faults(&schema, &object, None);
        assert!(found[0].contains("call cost exceeds limit"), "{found:?}");
    }
}
