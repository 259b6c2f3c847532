//! nf_tables: what a rule set is, how it is encoded, how one becomes another.
//!
//! A [`Ruleset`] is plain data for one table. [`Ruleset::replace`] and [`Ruleset::diff`] turn it into
//! [`Batch`]es; [`Connection::commit`] sends a batch, which the kernel takes as a whole or not at all.
//! [`build`] has the expressions that callers put into rules.

pub mod batch;
pub mod build;
pub mod connection;
pub mod expr;
pub mod ruleset;
pub mod set;

pub use batch::{Batch, Command};
pub use connection::{ChainInfo, Connection, Fingerprint};
pub use expr::{Expr, SetRef, Verdict};
pub use ruleset::{Change, Ruleset};
pub use set::{AnonymousSet, Element, ElementData, KeyType, Remembered, Set, SetData};

/// Address family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    Inet,
    Ip,
    Ip6,
}

impl Family {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => libc::AF_INET as u8,
            Self::Ip6 => libc::AF_INET6 as u8,
        }
    }

    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Ip6]
            .into_iter()
            .find(|family| family.number() == number)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Ip6]
            .into_iter()
            .find(|family| family.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table {
    pub family: Family,
    pub name: String,
}

impl Table {
    pub fn new(family: Family, name: impl Into<String>) -> Self {
        Self {
            family,
            name: name.into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainType {
    Filter,
    Nat,
    Route,
}

/// What ties a chain to the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    pub kind: ChainType,
    pub hook: Hook,
    pub priority: i32,
}

/// Usual priorities, named as `nft` names them.
pub mod priority {
    pub const RAW: i32 = -300;
    pub const MANGLE: i32 = -150;
    pub const DSTNAT: i32 = -100;
    pub const FILTER: i32 = 0;
    pub const SRCNAT: i32 = 100;
}

impl Base {
    pub fn new(kind: ChainType, hook: Hook, priority: i32) -> Self {
        Self {
            kind,
            hook,
            priority,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    /// `None`: reached only by a jump or goto.
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    pub expressions: Vec<Expr>,
    /// Shown by `nft list`.
    pub comment: Option<String>,
}

impl Rule {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends expressions: they are conditions until one of them acts.
    #[must_use]
    pub fn with(mut self, expressions: impl IntoIterator<Item = Expr>) -> Self {
        self.expressions.extend(expressions);
        self
    }

    #[must_use]
    pub fn verdict(self, verdict: Verdict) -> Self {
        self.with([Expr::Verdict(verdict)])
    }

    #[must_use]
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }
}
