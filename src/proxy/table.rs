//! Puts the Services' pieces together and computes what has to change. Pure.
//!
//! Chains and affinity maps belong to one Service each. Elements of shared maps may be claimed by
//! several (two Services with one external address and port): the Service whose name sorts first
//! has it, and the next one gets it when that one goes.

use std::collections::{BTreeMap, HashMap};

use sampan_netlink::nft::{Change, ElementData, Ruleset, Table};

use crate::model::ServiceName;

type ElementKey = (String, Vec<u8>);
type Claims = BTreeMap<ServiceName, Option<ElementData>>;

/// All Services' pieces.
#[derive(Debug, Clone, Default)]
pub struct Assembly {
    fragments: HashMap<ServiceName, Ruleset>,
    claims: HashMap<ElementKey, Claims>,
}

impl Assembly {
    /// Takes new pieces in; returns the affected part of the table before and after. An empty piece
    /// removes its Service.
    pub fn update(&mut self, fragments: BTreeMap<ServiceName, Ruleset>) -> (Ruleset, Ruleset) {
        let (mut before, mut after) = (Ruleset::default(), Ruleset::default());
        let mut touched = Vec::new();
        for (name, new) in &fragments {
            let empty = Ruleset::default();
            let old = self.fragments.get(name).unwrap_or(&empty);
            if old == new {
                continue;
            }
            copy_definitions(old, &mut before);
            copy_definitions(new, &mut after);
            touched.extend(keys(old));
            touched.extend(keys(new));
        }
        touched.sort_unstable();
        touched.dedup();
        self.copy_elements(&touched, &mut before);
        for (name, new) in fragments {
            self.replace(name, new);
        }
        self.copy_elements(&touched, &mut after);
        (before, after)
    }

    /// The commands for new pieces.
    pub fn change(&mut self, fragments: BTreeMap<ServiceName, Ruleset>, table: &Table) -> Change {
        let (before, after) = self.update(fragments);
        before.diff(&after, table)
    }

    /// Adds everything to the table's fixed part.
    pub fn add_to(&self, whole: &mut Ruleset) {
        for fragment in self.fragments.values() {
            copy_definitions(fragment, whole);
        }
        for ((set, key), claims) in &self.claims {
            if let Some(data) = claims.values().next() {
                whole.element(set, key.clone(), data.clone());
            }
        }
    }

    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.fragments.keys()
    }

    fn replace(&mut self, name: ServiceName, new: Ruleset) {
        if let Some(old) = self.fragments.remove(&name) {
            for key in keys(&old) {
                if let Some(claims) = self.claims.get_mut(&key) {
                    claims.remove(&name);
                    if claims.is_empty() {
                        self.claims.remove(&key);
                    }
                }
            }
        }
        for (set, elements) in &new.elements {
            for (key, data) in elements {
                let claims = self.claims.entry((set.clone(), key.clone())).or_default();
                claims.insert(name.clone(), data.clone());
            }
        }
        if new != Ruleset::default() {
            self.fragments.insert(name, new);
        }
    }

    fn copy_elements(&self, keys: &[ElementKey], into: &mut Ruleset) {
        for element in keys {
            let claims = self.claims.get(element);
            if let Some(data) = claims.and_then(|c| c.values().next()) {
                into.element(&element.0, element.1.clone(), data.clone());
            }
        }
    }
}

fn copy_definitions(from: &Ruleset, into: &mut Ruleset) {
    let chains = from.chains.iter().map(|(n, c)| (n.clone(), c.clone()));
    into.chains.extend(chains);
    let sets = from.sets.iter().map(|(n, s)| (n.clone(), s.clone()));
    into.sets.extend(sets);
}

fn keys(fragment: &Ruleset) -> impl Iterator<Item = ElementKey> {
    let of = |(set, elements): (&String, &BTreeMap<Vec<u8>, Option<ElementData>>)| {
        let set = set.clone();
        let keys: Vec<_> = elements.keys().cloned().collect();
        keys.into_iter().map(move |key| (set.clone(), key))
    };
    fragment.elements.iter().flat_map(of)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sampan_netlink::nft::{Command, Family, Verdict};

    fn fragment(key: u8, chain: &str) -> Ruleset {
        let mut rules = Ruleset::default();
        rules.chain(chain, Default::default());
        let goto = ElementData::Verdict(Verdict::Goto(chain.into()));
        rules.element("map", vec![key], Some(goto));
        rules
    }

    fn update(assembly: &mut Assembly, name: &str, rules: Ruleset) -> Vec<String> {
        let table = Table::new(Family::Ip, "t");
        let name = ServiceName::new("default", name);
        let change = assembly.change([(name, rules)].into(), &table);
        let text = |c: &Command| c.to_string();
        let main = change.main.commands.iter().map(text);
        main.chain(change.cleanup.commands.iter().map(text))
            .collect()
    }

    #[test]
    fn a_contested_element_goes_to_the_first_and_then_to_the_next() {
        let mut assembly = Assembly::default();
        let added = ["add chain b", "add 1 elements to map"];
        assert_eq!(update(&mut assembly, "b", fragment(1, "b")), added);
        let taken = [
            "add chain a",
            "delete 1 elements from map",
            "add 1 elements to map",
        ];
        assert_eq!(update(&mut assembly, "a", fragment(1, "a")), taken);
        assert_eq!(
            update(&mut assembly, "c", fragment(1, "c")),
            ["add chain c"]
        );
        assert_eq!(
            update(&mut assembly, "c", fragment(1, "c")),
            Vec::<String>::new()
        );
        let given = [
            "delete 1 elements from map",
            "add 1 elements to map",
            "delete chain a",
        ];
        assert_eq!(update(&mut assembly, "a", Ruleset::default()), given);
        assert_eq!(
            update(&mut assembly, "c", Ruleset::default()),
            ["delete chain c"]
        );
        assert_eq!(assembly.services().count(), 1);
    }
}
