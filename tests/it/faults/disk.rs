//! What a disk holds after power was lost at some moment. Pure.

use rand::Rng as _;
use rand::rngs::SmallRng;

use super::vfs::{Kind, Op};

const SECTOR: usize = 512;

/// What became of writes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    Gone,
    Written,
    /// Each for itself: gone, written, or some of its sectors.
    Mixed,
}

/// How the disk treats syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    Honest,
    /// It says it has written what it has not: every other sync does nothing.
    Lying,
}

/// The contents of the database and of its log; `None` where there is no such file yet.
pub type Image = [Option<Vec<u8>>; 2];

/// Follows the operations; at any moment it can tell what would be left.
pub struct Platter<'a> {
    disk: Disk,
    files: [File<'a>; 2],
}

struct File<'a> {
    kind: Kind,
    durable: Option<Vec<u8>>,
    waiting: Vec<&'a Op>,
}

impl<'a> Platter<'a> {
    pub fn new(disk: Disk) -> Self {
        let files = [Kind::Database, Kind::Log].map(|kind| File {
            kind,
            durable: None,
            waiting: Vec::new(),
        });
        Self { disk, files }
    }

    pub fn step(&mut self, op: &'a Op, random: &mut SmallRng) {
        for file in &mut self.files {
            match op {
                Op::Write { file: kind, .. } | Op::Truncate { file: kind, .. }
                    if *kind == file.kind =>
                {
                    file.waiting.push(op);
                }
                Op::Sync { file: kind } if *kind == file.kind => {
                    if self.disk == Disk::Honest || random.random_bool(0.5) {
                        let durable = &mut file.durable;
                        file.waiting.drain(..).for_each(|op| apply(op, durable));
                    }
                }
                Op::LostSync { file: kind } if *kind == file.kind => {
                    for op in file.waiting.drain(..) {
                        survive(op, &mut file.durable, Unsynced::Mixed, random);
                    }
                }
                _ => {}
            }
        }
    }

    /// What is left if power is lost now.
    pub fn cut(&self, unsynced: Unsynced, random: &mut SmallRng) -> Image {
        self.files.each_ref().map(|file| {
            let mut content = file.durable.clone();
            for op in &file.waiting {
                survive(op, &mut content, unsynced, random);
            }
            content
        })
    }
}

fn survive(op: &Op, content: &mut Option<Vec<u8>>, unsynced: Unsynced, random: &mut SmallRng) {
    match (unsynced, random.random_range(0..3)) {
        (Unsynced::Written, _) | (Unsynced::Mixed, 0) => apply(op, content),
        (Unsynced::Mixed, 1) => tear(op, content, random),
        (Unsynced::Gone, _) | (Unsynced::Mixed, _) => {}
    }
}

fn apply(op: &Op, content: &mut Option<Vec<u8>>) {
    let content = content.get_or_insert_default();
    match op {
        Op::Write { offset, data, .. } => put(content, *offset, data),
        Op::Truncate { size, .. } => content.resize(*size, 0),
        Op::Sync { .. } | Op::LostSync { .. } | Op::Mark(_) => {}
    }
}

fn put(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(data);
}

/// Some sectors get there, some do not.
fn tear(op: &Op, content: &mut Option<Vec<u8>>, random: &mut SmallRng) {
    let Op::Write { offset, data, .. } = op else {
        return;
    };
    let content = content.get_or_insert_default();
    let mut at = *offset;
    while at < offset + data.len() {
        let end = ((at / SECTOR + 1) * SECTOR).min(offset + data.len());
        if random.random_bool(0.5) {
            put(content, at, &data[at - offset..end - offset]);
        }
        at = end;
    }
}
