//! Commits batches and lists what is there.

use std::collections::BTreeMap;
use std::time::Duration;

use super::batch::{Batch, Command, encode_barrier, message_type};
use super::set::Remembered;
use super::{Family, Table};
use crate::message::{Attributes, Messages, be32_of, be64_of, string_of};
use crate::socket::answer_of;
use crate::{Error, Namespace, Protocol, Socket};

const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
const GET_SET: u16 = 10;
const GET_ELEMENTS: u16 = 13;
const FAMILY_HEADER: usize = 4;

/// An nf_tables socket.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

/// A chain of any table on this machine, as far as a report needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    pub family: u8,
    pub table: String,
    pub name: String,
    /// Hook number, for a base chain.
    pub hook: Option<u32>,
    /// Whether packets that no rule decides are dropped.
    pub drops: bool,
}

/// Which table it is and how many chains and sets it holds: changes when somebody deletes or
/// recreates it, or adds or removes one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    handle: u64,
    objects: u32,
}

impl Connection {
    pub fn open() -> Result<Self, Error> {
        Socket::open(Protocol::Netfilter).map(|socket| Self { socket })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Socket::open_in(namespace, Protocol::Netfilter).map(|socket| Self { socket })
    }

    /// Everything in `batch`, or nothing and the first refusal.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let first = self.socket.reserve_sequences(batch.message_bound());
        let encoded = batch.encode(first);
        self.socket.send(&encoded.bytes)?;
        let barrier = self.socket.next_sequence();
        self.socket.send(&encode_barrier(barrier))?;
        let mut refused = None;
        loop {
            let length = self.socket.receive()?;
            for message in Messages(self.socket.datagram(length)) {
                if message.sequence == barrier {
                    return refused.map_or(Ok(()), Err);
                }
                let Some(answer) = answer_of(&message) else {
                    continue;
                };
                let Some(index) = answer.sequence.checked_sub(first) else {
                    continue;
                };
                let Some(origin) = encoded.origin.get(index as usize) else {
                    continue;
                };
                let result = answer.into_result(|| describe(batch, *origin));
                refused = refused.or(result.err());
            }
        }
    }

    /// Deletes a table with all it holds; a missing one is fine.
    pub fn delete_table(&mut self, table: &Table) -> Result<(), Error> {
        let mut batch = Batch::new(table.clone());
        // Adding first makes the deletion succeed whether the table was there or not.
        batch.push(Command::AddTable);
        batch.push(Command::DeleteTable);
        self.commit(&batch)
    }

    pub fn tables(&mut self) -> Result<Vec<Table>, Error> {
        let mut all = Vec::new();
        self.socket.dump(
            message_type(GET_TABLE),
            || "list tables".into(),
            |w| w.raw(&[0, 0, 0, 0]),
            |message| {
                let family = message.payload.first().copied().unwrap_or_default();
                let name = message.attributes(FAMILY_HEADER).find(1).map(string_of);
                if let (Some(family), Some(name)) = (Family::from_number(family), name) {
                    all.push(Table { family, name });
                }
            },
        )?;
        Ok(all)
    }

    /// All chains of all tables.
    pub fn chains(&mut self) -> Result<Vec<ChainInfo>, Error> {
        let mut all = Vec::new();
        self.socket.dump(
            message_type(GET_CHAIN),
            || "list chains".into(),
            |w| w.raw(&[0, 0, 0, 0]),
            |message| {
                let attributes = message.attributes(FAMILY_HEADER);
                all.push(ChainInfo {
                    family: message.payload.first().copied().unwrap_or_default(),
                    table: attributes.find(1).map(string_of).unwrap_or_default(),
                    name: attributes.find(3).map(string_of).unwrap_or_default(),
                    hook: attributes.nested(4).find(1).map(be32_of),
                    drops: attributes.find(5).map(be32_of) == Some(0),
                });
            },
        )?;
        Ok(all)
    }

    /// Names of a table's sets and maps; nothing where there is no such table.
    pub fn sets(&mut self, table: &Table) -> Result<Vec<String>, Error> {
        let mut all = Vec::new();
        let listed = self.socket.dump(
            message_type(GET_SET),
            || format!("list sets of {}", table.name),
            |w| {
                w.raw(&[table.family.number(), 0, 0, 0]);
                w.string(1, &table.name);
            },
            |message| all.extend(message.attributes(FAMILY_HEADER).find(2).map(string_of)),
        );
        crate::error::allow_missing(listed)?;
        Ok(all)
    }

    /// A set's elements: key to value (empty where it holds none, or a verdict).
    pub fn elements(
        &mut self,
        table: &Table,
        set: &str,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        let mut all = BTreeMap::new();
        self.each_element(table, set, |element| {
            all.insert(value_of(element, KEY), value_of(element, DATA));
        })?;
        Ok(all)
    }

    /// A dynamic map's elements with what is left of their lives.
    pub fn remembered(&mut self, table: &Table, set: &str) -> Result<Vec<Remembered>, Error> {
        let mut all = Vec::new();
        self.each_element(table, set, |element| {
            let time = |kind| {
                element
                    .find(kind)
                    .map(|b| Duration::from_millis(be64_of(b)))
            };
            if let (Some(timeout), Some(expires_in)) = (time(TIMEOUT), time(EXPIRATION)) {
                all.push(Remembered {
                    key: value_of(element, KEY),
                    value: value_of(element, DATA),
                    timeout,
                    expires_in,
                });
            }
        })?;
        Ok(all)
    }

    fn each_element(
        &mut self,
        table: &Table,
        set: &str,
        mut each: impl FnMut(Attributes<'_>),
    ) -> Result<(), Error> {
        self.socket.dump(
            message_type(GET_ELEMENTS),
            || format!("list elements of {set}"),
            |w| {
                w.raw(&[table.family.number(), 0, 0, 0]);
                w.string(1, &table.name);
                w.string(2, set);
            },
            |message| {
                let list = message.attributes(FAMILY_HEADER).nested(3);
                list.for_each(|(_, element)| each(Attributes(element)));
            },
        )
    }

    /// What tells whether a table is still the one we left; `None`: there is none.
    pub fn fingerprint(&mut self, table: &Table) -> Result<Option<Fingerprint>, Error> {
        let found = self.socket.fetch(
            message_type(GET_TABLE),
            || format!("look up table {}", table.name),
            |w| {
                w.raw(&[table.family.number(), 0, 0, 0]);
                w.string(1, &table.name);
            },
            |message| {
                let attributes = message.attributes(FAMILY_HEADER);
                Fingerprint {
                    objects: attributes.find(3).map_or(0, be32_of),
                    handle: attributes.find(4).map_or(0, be64_of),
                }
            },
        );
        match found {
            Ok(fingerprint) => Ok(Some(fingerprint)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

const KEY: u16 = 1;
const DATA: u16 = 2;
const TIMEOUT: u16 = 4;
const EXPIRATION: u16 = 5;

fn value_of(element: Attributes<'_>, kind: u16) -> Vec<u8> {
    element.nested(kind).find(1).unwrap_or_default().to_vec()
}

fn describe(batch: &Batch, origin: Option<usize>) -> String {
    let table = &batch.table;
    let what = origin.and_then(|i| batch.commands.get(i)).map_or_else(
        || "the batch itself".to_owned(),
        std::string::ToString::to_string,
    );
    format!("nf_tables {} {}: {what}", table.family.as_str(), table.name)
}
