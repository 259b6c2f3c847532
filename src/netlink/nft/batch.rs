//! Commands and the bytes they become. Pure; [`super::Connection`] sends them.

use std::fmt;

use super::expr::{Expr, SetName, SetRef, encode_value};
use super::set::{
    AnonymousSet, Element, ElementData, KeyType, Remembered, Set, SetData, total_len, type_number,
};
use super::{Base, ChainType, Hook, Rule, Table};
use crate::message::Writer;
use crate::socket::{APPEND, CREATE, REQUEST};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = 0;
const DEL_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DEL_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DEL_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DEL_SET: u16 = 11;
const NEW_ELEMENTS: u16 = 12;
const DEL_ELEMENTS: u16 = 14;

const FLAG_ANONYMOUS: u32 = 0x1;
const FLAG_CONSTANT: u32 = 0x2;
const FLAG_MAP: u32 = 0x8;
const FLAG_TIMEOUT: u32 = 0x10;
const FLAG_EVAL: u32 = 0x20;
const FLAG_CONCAT: u32 = 0x80;
const TYPE_VERDICT: u32 = 0xffff_ff00;

/// A list attribute's length is 16 bits wide, so long element lists go in several messages.
const ELEMENTS_PER_MESSAGE_BYTES: usize = 32 * 1024;

pub(crate) fn message_type(number: u16) -> u16 {
    SUBSYSTEM << 8 | number
}

/// One change of one table. Names are unqualified: the batch's table holds them all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    AddTable,
    DeleteTable,
    /// Creates the chain, or leaves an equal one as it is.
    AddChain {
        name: String,
        base: Option<Base>,
    },
    FlushChain {
        name: String,
    },
    DeleteChain {
        name: String,
    },
    AddRule {
        chain: String,
        rule: Rule,
    },
    AddSet {
        name: String,
        set: Set,
    },
    DeleteSet {
        name: String,
    },
    AddElements {
        set: String,
        elements: Vec<Element>,
    },
    DeleteElements {
        set: String,
        keys: Vec<Element>,
    },
    /// Puts elements of a dynamic map back as they were.
    Remember {
        set: String,
        elements: Vec<Remembered>,
    },
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddTable => write!(f, "add table"),
            Self::DeleteTable => write!(f, "delete table"),
            Self::AddChain { name, .. } => write!(f, "add chain {name}"),
            Self::FlushChain { name } => write!(f, "flush chain {name}"),
            Self::DeleteChain { name } => write!(f, "delete chain {name}"),
            Self::AddRule { chain, rule } => {
                let comment = rule.comment.as_deref().unwrap_or("no comment");
                write!(f, "add rule to {chain} ({comment})")
            }
            Self::AddSet { name, .. } => write!(f, "add set {name}"),
            Self::DeleteSet { name } => write!(f, "delete set {name}"),
            Self::AddElements { set, elements } => {
                write!(f, "add {} elements to {set}", elements.len())
            }
            Self::Remember { set, elements } => {
                write!(f, "restore {} elements of {set}", elements.len())
            }
            Self::DeleteElements { set, keys } => {
                write!(f, "delete {} elements from {set}", keys.len())
            }
        }
    }
}

/// Commands that the kernel takes as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub table: Table,
    pub commands: Vec<Command>,
}

/// An encoded batch; message `i` has sequence number `first + i` and stems from a command.
pub(crate) struct Encoded {
    pub bytes: Vec<u8>,
    pub origin: Vec<Option<usize>>,
}

impl Batch {
    pub fn new(table: Table) -> Self {
        Self {
            table,
            commands: Vec::new(),
        }
    }

    pub fn push(&mut self, command: Command) {
        self.commands.push(command);
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub(crate) fn encode(&self, first_sequence: u32) -> Encoded {
        let mut encoder = Encoder {
            table: &self.table,
            writer: Writer::new(),
            first_sequence,
            origin: Vec::new(),
            next_set_id: 1,
        };
        encoder.bracket(BATCH_BEGIN);
        for (index, command) in self.commands.iter().enumerate() {
            encoder.command(index, command);
        }
        encoder.bracket(BATCH_END);
        Encoded {
            bytes: encoder.writer.into_bytes(),
            origin: encoder.origin,
        }
    }

    /// How many messages, and so sequence numbers, it takes at most.
    pub(crate) fn message_bound(&self) -> u32 {
        let of = |command: &Command| match command {
            Command::AddRule { rule, .. } => {
                1 + rule
                    .expressions
                    .iter()
                    .map(anonymous_messages)
                    .sum::<usize>()
            }
            Command::AddElements { elements, .. } => 1 + chunks(elements),
            Command::DeleteElements { keys, .. } => 1 + chunks(keys),
            Command::Remember { elements, .. } => 1 + elements.len().div_ceil(REMEMBERED_AT_ONCE),
            _ => 1,
        };
        2 + self.commands.iter().map(of).sum::<usize>() as u32
    }
}

fn anonymous_messages(expr: &Expr) -> usize {
    match expr {
        Expr::Lookup {
            set: SetRef::Anonymous(set),
            ..
        } => 2 + chunks(&set.elements),
        _ => 0,
    }
}

/// Generous encoded size of an element: what lengths and nests add stays below 64 bytes.
fn element_size(element: &Element) -> usize {
    let data = match &element.data {
        Some(ElementData::Value(value)) => value.len(),
        Some(ElementData::Verdict(_)) => 300,
        None => 0,
    };
    64 + element.key.len() + data
}

fn chunks(elements: &[Element]) -> usize {
    let total: usize = elements.iter().map(element_size).sum();
    2 * total.div_ceil(ELEMENTS_PER_MESSAGE_BYTES) + 1
}

struct Encoder<'a> {
    table: &'a Table,
    writer: Writer,
    first_sequence: u32,
    origin: Vec<Option<usize>>,
    next_set_id: u32,
}

impl Encoder<'_> {
    fn bracket(&mut self, kind: u16) {
        let sequence = self.next_sequence(None);
        self.writer.message(kind, REQUEST, sequence, |w| {
            w.raw(&[0, 0, (SUBSYSTEM >> 8) as u8, SUBSYSTEM as u8]);
        });
    }

    fn next_sequence(&mut self, origin: Option<usize>) -> u32 {
        let sequence = self.first_sequence + self.origin.len() as u32;
        self.origin.push(origin);
        sequence
    }

    fn message(&mut self, origin: usize, number: u16, flags: u16, body: impl FnOnce(&mut Writer)) {
        let sequence = self.next_sequence(Some(origin));
        let family = self.table.family.number();
        let kind = message_type(number);
        self.writer.message(kind, REQUEST | flags, sequence, |w| {
            w.raw(&[family, 0, 0, 0]);
            body(w);
        });
    }

    fn command(&mut self, index: usize, command: &Command) {
        let table = self.table.name.as_str();
        match command {
            Command::AddTable => self.message(index, NEW_TABLE, CREATE, |w| w.string(1, table)),
            Command::DeleteTable => self.message(index, DEL_TABLE, 0, |w| w.string(1, table)),
            Command::AddChain { name, base } => self.message(index, NEW_CHAIN, CREATE, |w| {
                w.string(1, table);
                w.string(3, name);
                if let Some(base) = base {
                    encode_base(w, base);
                }
            }),
            Command::FlushChain { name } => self.message(index, DEL_RULE, 0, |w| {
                w.string(1, table);
                w.string(2, name);
            }),
            Command::DeleteChain { name } => self.message(index, DEL_CHAIN, 0, |w| {
                w.string(1, table);
                w.string(3, name);
            }),
            Command::AddRule { chain, rule } => self.rule(index, chain, rule),
            Command::AddSet { name, set } => self.message(index, NEW_SET, CREATE, |w| {
                encode_set(w, table, name, set);
            }),
            Command::DeleteSet { name } => self.message(index, DEL_SET, 0, |w| {
                w.string(1, table);
                w.string(2, name);
            }),
            Command::AddElements { set, elements } => {
                let name = SetName {
                    name: set,
                    id: None,
                };
                self.elements(index, NEW_ELEMENTS, &name, elements);
            }
            Command::Remember { set, elements } => self.remembered(index, set, elements),
            Command::DeleteElements { set, keys } => {
                let name = SetName {
                    name: set,
                    id: None,
                };
                self.elements(index, DEL_ELEMENTS, &name, keys);
            }
        }
    }

    /// A rule's anonymous sets come first: the rule names them by the number they get here.
    fn rule(&mut self, index: usize, chain: &str, rule: &Rule) {
        let ids: Vec<_> = rule
            .expressions
            .iter()
            .map(|expr| match expr {
                Expr::Lookup {
                    set: SetRef::Anonymous(set),
                    ..
                } => Some(self.anonymous_set(index, set)),
                _ => None,
            })
            .collect();
        let table = self.table.name.as_str();
        self.message(index, NEW_RULE, CREATE | APPEND, |w| {
            w.string(1, table);
            w.string(2, chain);
            w.nest(4, |w| {
                for (expr, id) in rule.expressions.iter().zip(&ids) {
                    expr.encode(w, set_name(expr, *id).as_ref());
                }
            });
            if let Some(comment) = &rule.comment {
                w.bytes(7, &comment_data(comment));
            }
        });
    }

    fn anonymous_set(&mut self, index: usize, set: &AnonymousSet) -> u32 {
        let id = self.next_set_id;
        self.next_set_id += 1;
        let name = anonymous_name(set);
        let table = self.table.name.as_str();
        self.message(index, NEW_SET, CREATE, |w| {
            encode_anonymous(w, table, set, id);
        });
        let name = SetName { name, id: Some(id) };
        self.elements(index, NEW_ELEMENTS, &name, &set.elements);
        id
    }

    fn remembered(&mut self, index: usize, set: &str, elements: &[Remembered]) {
        let table = self.table.name.as_str();
        for chunk in elements.chunks(REMEMBERED_AT_ONCE) {
            self.message(index, NEW_ELEMENTS, CREATE, |w| {
                w.string(1, table);
                w.string(2, set);
                w.nest(3, |w| chunk.iter().for_each(|e| encode_remembered(w, e)));
            });
        }
    }

    fn elements(&mut self, index: usize, number: u16, set: &SetName<'_>, elements: &[Element]) {
        let flags = if number == NEW_ELEMENTS { CREATE } else { 0 };
        let mut rest = elements;
        while !rest.is_empty() {
            let count = chunk_len(rest);
            let (chunk, tail) = rest.split_at(count);
            rest = tail;
            let table = self.table.name.as_str();
            self.message(index, number, flags, |w| {
                w.string(1, table);
                w.string(2, set.name);
                if let Some(id) = set.id {
                    w.be32(4, id);
                }
                w.nest(3, |w| chunk.iter().for_each(|e| encode_element(w, e)));
            });
        }
    }
}

/// Keeps the list's length below 16 bits.
const REMEMBERED_AT_ONCE: usize = 256;

fn chunk_len(elements: &[Element]) -> usize {
    let mut size = 0;
    for (i, element) in elements.iter().enumerate() {
        size += element_size(element);
        if size > ELEMENTS_PER_MESSAGE_BYTES && i > 0 {
            return i;
        }
    }
    elements.len()
}

fn set_name(expr: &Expr, id: Option<u32>) -> Option<SetName<'_>> {
    match expr {
        Expr::Lookup { set, .. } => Some(match set {
            SetRef::Named(name) => SetName { name, id: None },
            SetRef::Anonymous(set) => SetName {
                name: anonymous_name(set),
                id,
            },
        }),
        _ => None,
    }
}

fn anonymous_name(set: &AnonymousSet) -> &'static str {
    if set.data.is_some() {
        "__map%d"
    } else {
        "__set%d"
    }
}

fn encode_base(w: &mut Writer, base: &Base) {
    let hook = match base.hook {
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    };
    let kind = match base.kind {
        ChainType::Filter => "filter",
        ChainType::Nat => "nat",
        ChainType::Route => "route",
    };
    w.nest(4, |w| {
        w.be32(1, hook);
        w.be32(2, base.priority as u32);
    });
    const POLICY_ACCEPT: u32 = 1;
    w.be32(5, POLICY_ACCEPT);
    w.string(7, kind);
}

fn encode_set(w: &mut Writer, table: &str, name: &str, set: &Set) {
    let mut flags = 0;
    if set.dynamic {
        flags |= FLAG_EVAL;
    }
    if set.dynamic || set.timeout.is_some() {
        flags |= FLAG_TIMEOUT;
    }
    w.string(1, table);
    w.string(2, name);
    // Sets need a number too: the kernel asks for one even where nothing refers to it by number.
    w.be32(10, u32::MAX);
    encode_types(w, flags, &set.key, set.data.as_ref(), set.size);
    if let Some(timeout) = set.timeout {
        w.be64(11, timeout.as_millis() as u64);
    }
}

fn encode_anonymous(w: &mut Writer, table: &str, set: &AnonymousSet, id: u32) {
    w.string(1, table);
    w.string(2, anonymous_name(set));
    w.be32(10, id);
    let size = Some(set.elements.len() as u32);
    encode_types(
        w,
        FLAG_ANONYMOUS | FLAG_CONSTANT,
        &set.key,
        set.data.as_ref(),
        size,
    );
}

fn encode_types(
    w: &mut Writer,
    mut flags: u32,
    key: &[KeyType],
    data: Option<&SetData>,
    size: Option<u32>,
) {
    if key.len() > 1 {
        flags |= FLAG_CONCAT;
    }
    if data.is_some() {
        flags |= FLAG_MAP;
    }
    w.be32(3, flags);
    w.be32(4, type_number(key));
    w.be32(5, total_len(key));
    match data {
        Some(SetData::Verdict) => {
            w.be32(6, TYPE_VERDICT);
            w.be32(7, 0);
        }
        Some(SetData::Value(types)) => {
            w.be32(6, type_number(types));
            w.be32(7, total_len(types));
        }
        None => {}
    }
    if key.len() > 1 || size.is_some() {
        w.nest(9, |w| encode_description(w, key, size));
    }
    if matches!(key, [KeyType::Integer | KeyType::Mark]) {
        w.bytes(13, &host_byte_order());
    }
}

/// A note for `nft list`, which would otherwise show such keys with their bytes swapped.
fn host_byte_order() -> Vec<u8> {
    const KEY_BYTE_ORDER: u8 = 0;
    const HOST: u32 = 1;
    let mut data = vec![KEY_BYTE_ORDER, 4];
    data.extend_from_slice(&HOST.to_ne_bytes());
    data
}

fn encode_description(w: &mut Writer, key: &[KeyType], size: Option<u32>) {
    if let Some(size) = size {
        w.be32(1, size);
    }
    if key.len() > 1 {
        w.nest(2, |w| {
            for field in key {
                w.nest(1, |w| w.be32(1, field.row().1));
            }
        });
    }
}

fn encode_element(w: &mut Writer, element: &Element) {
    const LIST_ELEM: u16 = 1;
    w.nest(LIST_ELEM, |w| {
        encode_value(w, 1, &element.key);
        match &element.data {
            Some(ElementData::Value(value)) => encode_value(w, 2, value),
            Some(ElementData::Verdict(verdict)) => w.nest(2, |w| verdict.encode(w)),
            None => {}
        }
    });
}

fn encode_remembered(w: &mut Writer, element: &Remembered) {
    const LIST_ELEM: u16 = 1;
    w.nest(LIST_ELEM, |w| {
        encode_value(w, 1, &element.key);
        encode_value(w, 2, &element.value);
        w.be64(4, element.timeout.as_millis() as u64);
        w.be64(5, element.expires_in.as_millis() as u64);
    });
}

/// `nft` keeps comments as a typed, length-prefixed, zero-terminated string of at most 128 bytes.
fn comment_data(comment: &str) -> Vec<u8> {
    const COMMENT: u8 = 0;
    let mut end = comment.len().min(126);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    let text = &comment.as_bytes()[..end];
    let mut data = vec![COMMENT, text.len() as u8 + 1];
    data.extend_from_slice(text);
    data.push(0);
    data
}

/// The message behind a batch whose answer shows that everything before it was handled.
pub(crate) fn encode_barrier(sequence: u32) -> Vec<u8> {
    const GET_GEN: u16 = 16;
    let mut writer = Writer::new();
    writer.message(message_type(GET_GEN), REQUEST, sequence, |w| {
        w.raw(&[0, 0, 0, 0]);
    });
    writer.into_bytes()
}
