//! Label and node selectors, compiled once per pod so that matching a node or a pod allocates nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
    /// The requirement makes no sense (unknown operator, `Gt` on a word): it matches nothing.
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

impl Requirement {
    fn new(key: &str, operator: &str, values: &[String]) -> Self {
        let number = || values.first().and_then(|value| value.parse::<i64>().ok());
        let test = match operator {
            "In" => Test::In(values.to_vec()),
            "NotIn" => Test::NotIn(values.to_vec()),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::DoesNotExist,
            "Gt" => number().map_or(Test::Never, Test::GreaterThan),
            "Lt" => number().map_or(Test::Never, Test::LessThan),
            _ => Test::Never,
        };
        Self {
            key: key.to_owned(),
            test,
        }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => {
                value.is_some_and(|value| values.iter().any(|known| known == value))
            }
            Test::NotIn(values) => {
                value.is_none_or(|value| values.iter().all(|known| known != value))
            }
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Test::LessThan(bound) => number().is_some_and(|number| number < *bound),
            Test::Never => false,
        }
    }
}

/// A label selector; an absent one matches nothing, an empty one everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl Selector {
    pub fn nothing() -> Self {
        Self {
            requirements: Vec::new(),
            nothing: true,
        }
    }

    pub fn new(selector: Option<&LabelSelector>) -> Self {
        let Some(selector) = selector else {
            return Self::nothing();
        };
        let mut compiled = Self::default();
        if let Some(labels) = &selector.match_labels {
            compiled.require_all(labels);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let values = expression.values.as_deref().unwrap_or_default();
            compiled.requirements.push(Requirement::new(
                &expression.key,
                &expression.operator,
                values,
            ));
        }
        compiled
    }

    pub fn from_labels(labels: &Labels) -> Self {
        let mut compiled = Self::default();
        compiled.require_all(labels);
        compiled
    }

    pub fn require_all(&mut self, labels: &Labels) {
        for (key, value) in labels {
            self.require(key, value);
        }
    }

    pub fn require(&mut self, key: &str, value: &str) {
        self.requirements.push(Requirement {
            key: key.to_owned(),
            test: Test::In(vec![value.to_owned()]),
        });
    }

    /// Both selectors must match.
    pub fn and(&mut self, other: Self) {
        self.requirements.extend(other.requirements);
        self.nothing |= other.nothing;
    }

    /// Whether it has no requirement at all: it matches everything, or nothing.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        !self.nothing
            && self
                .requirements
                .iter()
                .all(|each| each.matches(labels.get(&each.key).map(String::as_str)))
    }
}

/// One term of a node selector: labels and fields of the node, all of which must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTerm {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

impl NodeTerm {
    pub fn new(term: &NodeSelectorTerm) -> Self {
        let compile = |list: &Option<Vec<NodeSelectorRequirement>>| {
            list.iter()
                .flatten()
                .map(|each| {
                    Requirement::new(
                        &each.key,
                        &each.operator,
                        each.values.as_deref().unwrap_or_default(),
                    )
                })
                .collect()
        };
        Self {
            labels: compile(&term.match_expressions),
            fields: compile(&term.match_fields),
        }
    }

    /// A term without requirements matches no node.
    pub fn matches(&self, node_name: &str, labels: &Labels) -> bool {
        let field = |key: &str| (key == "metadata.name").then_some(node_name);
        !(self.labels.is_empty() && self.fields.is_empty())
            && self
                .labels
                .iter()
                .all(|each| each.matches(labels.get(&each.key).map(String::as_str)))
            && self
                .fields
                .iter()
                .all(|each| each.matches(field(&each.key)))
    }

    /// The node names that the term's fields allow; `None` when they name no node.
    pub fn node_names(&self) -> Option<Vec<&str>> {
        let mut names: Option<Vec<&str>> = None;
        for requirement in self
            .fields
            .iter()
            .filter(|each| each.key == "metadata.name")
        {
            let Test::In(values) = &requirement.test else {
                continue;
            };
            names = Some(match names {
                None => values.iter().map(String::as_str).collect(),
                Some(names) => names
                    .into_iter()
                    .filter(|name| values.iter().any(|value| value == name))
                    .collect(),
            });
        }
        names
    }
}

/// `spec.nodeSelector` and the required node affinity together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequiredNodes {
    pub labels: Selector,
    /// `None`: no affinity; an empty list matches no node.
    pub terms: Option<Vec<NodeTerm>>,
}

impl RequiredNodes {
    pub fn matches(&self, node_name: &str, labels: &Labels) -> bool {
        self.labels.matches(labels)
            && self
                .terms
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|term| term.matches(node_name, labels)))
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.terms.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn absent_selector_matches_nothing_and_empty_one_everything() {
        assert!(!Selector::new(None).matches(&labels(&[])));
        assert!(Selector::new(Some(&LabelSelector::default())).matches(&labels(&[("a", "b")])));
    }

    #[test]
    fn every_operator() {
        let node = labels(&[("zone", "a"), ("cores", "8")]);
        let matches = |key: &str, operator: &str, values: &[&str]| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            Requirement::new(key, operator, &values).matches(node.get(key).map(String::as_str))
        };
        assert!(matches("zone", "In", &["a", "b"]));
        assert!(!matches("zone", "NotIn", &["a"]));
        assert!(matches("other", "NotIn", &["a"]));
        assert!(matches("zone", "Exists", &[]));
        assert!(matches("other", "DoesNotExist", &[]));
        assert!(matches("cores", "Gt", &["4"]));
        assert!(!matches("cores", "Lt", &["8"]));
        assert!(!matches("zone", "Gt", &["1"]));
        assert!(!matches("zone", "Like", &["a"]));
    }

    #[test]
    fn names_of_a_term_are_intersected() {
        let field = |values: &[&str]| NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
        };
        let term = |fields| {
            NodeTerm::new(&NodeSelectorTerm {
                match_fields: Some(fields),
                match_expressions: None,
            })
        };
        assert_eq!(
            term(vec![field(&["a", "b"]), field(&["b"])]).node_names(),
            Some(vec!["b"])
        );
        assert_eq!(term(vec![]).node_names(), None);
        assert!(!term(vec![]).matches("a", &Labels::new()));
    }
}
