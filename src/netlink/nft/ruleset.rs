//! The wanted content of one table, and the way from one content to another.

use std::collections::BTreeMap;

use super::batch::{Batch, Command};
use super::set::{Element, ElementData, Set};
use super::{Chain, Table};

pub type Elements = BTreeMap<Vec<u8>, Option<ElementData>>;

/// What a table shall hold. Elements of dynamic sets belong to the kernel and are not listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ruleset {
    pub chains: BTreeMap<String, Chain>,
    pub sets: BTreeMap<String, Set>,
    pub elements: BTreeMap<String, Elements>,
}

/// The way from one ruleset to the next, in two commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Everything that packets can notice: atomic.
    pub main: Batch,
    /// Removal of what `main` left unused. Apart, because some kernels call an object busy in the
    /// very transaction that drops its last user; if it fails nothing but a little memory is lost.
    pub cleanup: Batch,
}

impl Ruleset {
    pub fn chain(&mut self, name: impl Into<String>, chain: Chain) {
        self.chains.insert(name.into(), chain);
    }

    pub fn set(&mut self, name: impl Into<String>, set: Set) {
        self.sets.insert(name.into(), set);
    }

    pub fn element(&mut self, set: &str, key: Vec<u8>, data: Option<ElementData>) {
        let elements = self.elements.entry(set.to_owned()).or_default();
        elements.insert(key, data);
    }

    /// Makes `table` hold exactly this, whatever it held before.
    pub fn replace(&self, table: &Table) -> Batch {
        let mut batch = Batch::new(table.clone());
        batch.push(Command::AddTable);
        batch.push(Command::DeleteTable);
        batch.push(Command::AddTable);
        let added = Self::default().diff(self, table);
        batch.commands.extend(added.main.commands);
        batch
    }

    /// The commands that lead from `self` to `next`. A chain whose rules differ is filled anew.
    /// Both may be the same part of a table: what neither mentions stays as it is.
    pub fn diff(&self, next: &Self, table: &Table) -> Change {
        let mut change = Change {
            main: Batch::new(table.clone()),
            cleanup: Batch::new(table.clone()),
        };
        self.diff_definitions(next, &mut change);
        self.diff_removed_elements(next, &mut change.main);
        self.diff_rules(next, &mut change.main);
        self.diff_added_elements(next, &mut change.main);
        change
    }

    /// New sets and chains come first: rules and elements may refer to any of them.
    fn diff_definitions(&self, next: &Self, change: &mut Change) {
        for (name, set) in &next.sets {
            if !self.sets.contains_key(name) {
                change.main.push(Command::AddSet {
                    name: name.clone(),
                    set: set.clone(),
                });
            }
        }
        for (name, chain) in &next.chains {
            if !self.chains.contains_key(name) {
                change.main.push(Command::AddChain {
                    name: name.clone(),
                    base: chain.base,
                });
            }
        }
        for name in self.chains.keys().filter(|n| !next.chains.contains_key(*n)) {
            let name = name.clone();
            change.cleanup.push(Command::DeleteChain { name });
        }
        for name in self.sets.keys().filter(|n| !next.sets.contains_key(*n)) {
            let name = name.clone();
            change.cleanup.push(Command::DeleteSet { name });
        }
    }

    fn diff_removed_elements(&self, next: &Self, batch: &mut Batch) {
        for (set, elements) in &self.elements {
            // A set that goes takes its elements with it.
            if self.sets.contains_key(set) && !next.sets.contains_key(set) {
                continue;
            }
            let kept = next.elements.get(set);
            let gone = |(key, data): &(&Vec<u8>, &Option<ElementData>)| {
                kept.and_then(|kept| kept.get(*key)) != Some(*data)
            };
            let keys: Vec<_> = elements.iter().filter(gone).map(element).collect();
            if !keys.is_empty() {
                let set = set.clone();
                batch.push(Command::DeleteElements { set, keys });
            }
        }
    }

    fn diff_rules(&self, next: &Self, batch: &mut Batch) {
        for (name, chain) in self.chains.iter().filter(|(_, c)| !c.rules.is_empty()) {
            if next.chains.get(name).map(|c| &c.rules) != Some(&chain.rules) {
                batch.push(Command::FlushChain { name: name.clone() });
            }
        }
        for (name, chain) in &next.chains {
            if self.chains.get(name).map(|c| &c.rules) == Some(&chain.rules) {
                continue;
            }
            for rule in &chain.rules {
                batch.push(Command::AddRule {
                    chain: name.clone(),
                    rule: rule.clone(),
                });
            }
        }
    }

    fn diff_added_elements(&self, next: &Self, batch: &mut Batch) {
        for (set, elements) in &next.elements {
            let had = self.elements.get(set);
            let fresh = |(key, data): &(&Vec<u8>, &Option<ElementData>)| {
                had.and_then(|had| had.get(*key)) != Some(*data)
            };
            let elements: Vec<_> = elements.iter().filter(fresh).map(element).collect();
            if !elements.is_empty() {
                let set = set.clone();
                batch.push(Command::AddElements { set, elements });
            }
        }
    }
}

fn element((key, data): (&Vec<u8>, &Option<ElementData>)) -> Element {
    Element {
        key: key.clone(),
        data: data.clone(),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
