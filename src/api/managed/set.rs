//! Sets of field paths, as tries; their JSON form is `FieldsV1`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// A member of a struct or map.
    Field(String),
    /// An element of a list, by its key fields: a JSON object as text, members sorted.
    Key(String),
    /// An element of a set, by value: JSON as text.
    Value(String),
    Index(usize),
}

impl Element {
    pub fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    fn to_text(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(key) => format!("k:{key}"),
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        // Written by others, the text may have spaces or another order.
        let canonical = |rest: &str| {
            let value: Value = serde_json::from_str(rest).ok()?;
            Some(value.to_string())
        };
        match kind {
            "f" => Some(Self::field(rest)),
            "k" => Some(Self::Key(canonical(rest)?)),
            "v" => Some(Self::Value(canonical(rest)?)),
            "i" => rest.parse().ok().map(Self::Index),
            _ => None,
        }
    }
}

/// `.name`, `[key="value"]`, `[="value"]`, `[0]`
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(key) => {
                let parsed: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
                let parts: Vec<String> = parsed
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                write!(f, "[{}]", parts.join(","))
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    nodes: BTreeMap<Element, Node>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    /// The path up to here is in the set.
    member: bool,
    below: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl Set {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let node = self.nodes.entry(first.clone()).or_default();
        if rest.is_empty() {
            node.member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// Marks the step `element` and puts `below` under it.
    pub(super) fn put(&mut self, element: Element, member: bool, below: Set) {
        if !member && below.is_empty() {
            return;
        }
        let node = self.nodes.entry(element).or_default();
        node.member |= member;
        node.below = if node.below.is_empty() {
            below
        } else {
            node.below.union(&below)
        };
    }

    pub(super) fn has(&self, element: &Element) -> bool {
        self.nodes.get(element).is_some_and(|node| node.member)
    }

    pub(super) fn below(&self, element: &Element) -> Option<&Set> {
        self.nodes
            .get(element)
            .map(|node| &node.below)
            .filter(|set| !set.is_empty())
    }

    /// Steps with whether they are members and what is below them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Element, bool, &Set)> {
        self.nodes
            .iter()
            .map(|(element, node)| (element, node.member, &node.below))
    }

    pub fn union(&self, other: &Set) -> Set {
        let mut result = self.clone();
        for (element, node) in &other.nodes {
            result.put(element.clone(), node.member, node.below.clone());
        }
        result
    }

    pub fn intersection(&self, other: &Set) -> Set {
        self.combine(other, |mine, theirs| Node {
            member: mine.member && theirs.member,
            below: mine.below.intersection(&theirs.below),
        })
    }

    fn combine(&self, other: &Set, both: impl Fn(&Node, &Node) -> Node) -> Set {
        let nodes = self
            .nodes
            .iter()
            .filter_map(|(element, mine)| {
                let node = both(mine, other.nodes.get(element)?);
                (!node.is_empty()).then(|| (element.clone(), node))
            })
            .collect();
        Set { nodes }
    }

    /// Without the members of `other`; what is below them stays.
    pub fn difference(&self, other: &Set) -> Set {
        self.without(other, |mine, theirs| Node {
            member: mine.member && !theirs.member,
            below: mine.below.difference(&theirs.below),
        })
    }

    /// Without the members of `other` and all that is below them.
    pub fn recursive_difference(&self, other: &Set) -> Set {
        self.without(other, |mine, theirs| {
            if theirs.member {
                Node::default()
            } else {
                Node {
                    member: mine.member,
                    below: mine.below.recursive_difference(&theirs.below),
                }
            }
        })
    }

    fn without(&self, other: &Set, both: impl Fn(&Node, &Node) -> Node) -> Set {
        if other.is_empty() {
            return self.clone();
        }
        let nodes = self
            .nodes
            .iter()
            .filter_map(|(element, mine)| {
                let node = match other.nodes.get(element) {
                    Some(theirs) => both(mine, theirs),
                    None => mine.clone(),
                };
                (!node.is_empty()).then(|| (element.clone(), node))
            })
            .collect();
        Set { nodes }
    }

    /// All members as text, `.spec.containers[name="a"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.collect("", &mut found);
        found
    }

    fn collect(&self, prefix: &str, found: &mut Vec<String>) {
        for (element, node) in &self.nodes {
            let path = format!("{prefix}{element}");
            if node.member {
                found.push(path.clone());
            }
            node.below.collect(&path, found);
        }
    }

    pub fn to_fields(&self) -> Value {
        let mut map = Map::new();
        for (element, node) in &self.nodes {
            let mut below = node.below.to_fields();
            if node.member && !node.below.is_empty() {
                below["."] = Value::Object(Map::new());
            }
            map.insert(element.to_text(), below);
        }
        Value::Object(map)
    }

    /// Reads `FieldsV1`; `None` if it is malformed. What is not understood is left out.
    pub fn from_fields(fields: &Value) -> Option<Set> {
        let mut set = Set::default();
        for (key, value) in fields.as_object()? {
            if key == "." {
                continue;
            }
            let Some(element) = Element::from_text(key) else {
                continue;
            };
            let members = value.as_object()?;
            let below = Set::from_fields(value)?;
            let member = below.is_empty() || members.contains_key(".");
            set.nodes.insert(element, Node { member, below });
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn set(fields: Value) -> Set {
        Set::from_fields(&fields).unwrap()
    }

    #[test]
    fn json_form() {
        let fields = json!({"f:a": {}, "f:b": {".": {}, "k:{\"name\":\"x\"}": {"f:y": {}}}, "f:l": {"v:\"1\"": {}}});
        let read = set(fields.clone());
        assert_eq!(read.to_fields(), fields);
        assert_eq!(read.paths(), [".a", ".b", ".b[name=\"x\"].y", ".l[=\"1\"]"]);
    }

    #[test]
    fn algebra() {
        let a = set(json!({"f:a": {}, "f:b": {".": {}, "f:c": {}}}));
        let b = set(json!({"f:b": {}}));
        assert_eq!(
            a.difference(&b).to_fields(),
            json!({"f:a": {}, "f:b": {"f:c": {}}})
        );
        assert_eq!(a.recursive_difference(&b).to_fields(), json!({"f:a": {}}));
        assert_eq!(a.intersection(&b).to_fields(), json!({"f:b": {}}));
        assert_eq!(b.union(&a), a);
        assert!(a.difference(&a).is_empty());
    }
}
