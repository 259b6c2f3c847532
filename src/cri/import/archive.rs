//! Random access to the members of a tar file, plain or compressed with gzip or zstd.

use super::Error;
use super::bundle::Data;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = 512;
/// Long names and extended headers are small; anything else is an attack or damage.
const EXTENSION_LIMIT: u64 = 1 << 20;

/// An open archive. Blobs taken out of it keep the file open.
#[derive(Debug)]
pub struct Archive {
    file: Arc<File>,
    members: BTreeMap<String, Member>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Member {
    File {
        offset: u64,
        size: u64,
    },
    /// To another member, by full name.
    Link(String),
}

impl Archive {
    /// Opens `path`; what is compressed is first expanded into an unnamed file in `scratch`. Blocks on the disk.
    pub fn open(path: &Path, scratch: &Path) -> Result<Self, Error> {
        let read_error = |source| Error::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read_error)?;
        let file = expanded(file, scratch).map_err(read_error)?;
        let members = scan(&file).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Error::Malformed {
                path: path.to_owned(),
                problem: source.to_string(),
            },
            _ => read_error(source),
        })?;
        Ok(Self {
            file: Arc::new(file),
            members,
        })
    }

    /// The bytes of a regular member, links followed.
    pub fn get(&self, name: &str) -> Option<Data> {
        let mut name = clean(name);
        // Chains of links are short; a loop ends here.
        for _ in 0..8 {
            match self.members.get(&name)? {
                Member::File { offset, size } => {
                    return Some(Data::File {
                        file: Arc::clone(&self.file),
                        offset: *offset,
                        size: *size,
                    });
                }
                Member::Link(target) => name = target.clone(),
            }
        }
        None
    }
}

/// The same bytes uncompressed: the file itself, or a nameless copy.
fn expanded(file: File, scratch: &Path) -> io::Result<File> {
    let mut magic = [0; 4];
    let read = file.read_at(&mut magic, 0)?;
    match &magic[..read] {
        [0x1f, 0x8b, ..] => {
            let mut decoder = flate2::read::MultiGzDecoder::new(&file);
            spill(&mut decoder, scratch)
        }
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let mut decoder =
                ruzstd::decoding::StreamingDecoder::new(&file).map_err(io::Error::other)?;
            spill(&mut decoder, scratch)
        }
        _ => Ok(file),
    }
}

fn spill(reader: &mut dyn Read, scratch: &Path) -> io::Result<File> {
    let path = scratch.join(format!(".expand-{}-{:p}", std::process::id(), &reader));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    io::copy(reader, &mut file)?;
    Ok(file)
}

fn scan(file: &File) -> io::Result<BTreeMap<String, Member>> {
    let mut members = BTreeMap::new();
    let mut position = 0;
    let mut long_name: Option<String> = None;
    let mut long_link: Option<String> = None;
    let end = file.metadata()?.len();
    while position + BLOCK <= end {
        let mut header = [0; BLOCK as usize];
        file.read_exact_at(&mut header, position)?;
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        let entry = Header::parse(&header)?;
        let body = position + BLOCK;
        if body + entry.size > end {
            return Err(invalid(format!("member {} is cut off", entry.name)));
        }
        position = body + entry.size.div_ceil(BLOCK) * BLOCK;
        match entry.kind {
            b'L' => long_name = Some(text(&extension(file, body, entry.size)?)),
            b'K' => long_link = Some(text(&extension(file, body, entry.size)?)),
            b'x' => {
                let records = extension(file, body, entry.size)?;
                long_name = pax_value(&records, "path").or(long_name);
                long_link = pax_value(&records, "linkpath").or(long_link);
            }
            kind => {
                let name = clean(&long_name.take().unwrap_or(entry.name));
                let link = long_link.take().unwrap_or(entry.link);
                let member = match kind {
                    b'0' | 0 | b'7' => Member::File {
                        offset: body,
                        size: entry.size,
                    },
                    b'1' => Member::Link(clean(&link)),
                    b'2' => Member::Link(resolve(&name, &link)),
                    _ => continue,
                };
                members.insert(name, member);
            }
        }
    }
    Ok(members)
}

struct Header {
    name: String,
    link: String,
    size: u64,
    kind: u8,
}

impl Header {
    fn parse(block: &[u8; BLOCK as usize]) -> io::Result<Self> {
        let sum: u64 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| {
                u64::from(if (148..156).contains(&at) {
                    b' '
                } else {
                    *byte
                })
            })
            .sum();
        if number(&block[148..156]) != Some(sum) {
            return Err(invalid(
                "not a tar archive (bad header checksum)".to_owned(),
            ));
        }
        let mut name = text(&block[..100]);
        let prefix = text(&block[345..500]);
        if &block[257..262] == b"ustar" && block[262] == 0 && !prefix.is_empty() {
            name = format!("{prefix}/{name}");
        }
        let size = number(&block[124..136])
            .ok_or_else(|| invalid(format!("member {name} has no valid size")))?;
        Ok(Self {
            name,
            link: text(&block[157..257]),
            size,
            kind: block[156],
        })
    }
}

/// Octal digits, or GNU's binary form for what does not fit them.
fn number(field: &[u8]) -> Option<u64> {
    if let Some(first) = field.first().filter(|first| **first & 0x80 != 0) {
        let mut value = u64::from(first & 0x3f);
        for byte in &field[1..] {
            value = value.checked_mul(256)? + u64::from(*byte);
        }
        return Some(value);
    }
    let text = text(field);
    let digits = text.trim();
    if digits.is_empty() {
        return Some(0);
    }
    u64::from_str_radix(digits, 8).ok()
}

fn text(field: &[u8]) -> String {
    let end = field
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn extension(file: &File, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    if size > EXTENSION_LIMIT {
        return Err(invalid(format!("extended header of {size} bytes")));
    }
    let mut body = vec![0; size as usize];
    file.read_exact_at(&mut body, offset)?;
    Ok(body)
}

/// Records of a pax header are `LENGTH KEY=VALUE\n`.
fn pax_value(mut records: &[u8], key: &str) -> Option<String> {
    let mut found = None;
    while !records.is_empty() {
        let space = records.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
        let record = records.get(space + 1..length.checked_sub(1)?)?;
        let (name, value) = record.split_at(record.iter().position(|byte| *byte == b'=')?);
        if name == key.as_bytes() {
            found = Some(String::from_utf8_lossy(&value[1..]).into_owned());
        }
        records = &records[length..];
    }
    found
}

/// `./a//b/` is `a/b`; steps upward are resolved and never leave the archive.
fn clean(name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn resolve(from: &str, link: &str) -> String {
    match from.rsplit_once('/') {
        Some((folder, _)) if !link.starts_with('/') => clean(&format!("{folder}/{link}")),
        _ => clean(link),
    }
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_and_links_stay_inside() {
        assert_eq!(clean("./a//b/"), "a/b");
        assert_eq!(clean("../../etc/x"), "etc/x");
        assert_eq!(resolve("a/layer.tar", "../b/layer.tar"), "b/layer.tar");
    }

    #[test]
    fn pax_records() {
        let records = b"19 path=a/long/name\n11 size=12\n";
        // The first length is one short of the record: damaged records give nothing.
        assert_eq!(pax_value(records, "path"), None);
        let records = b"20 path=a/long/name\n11 size=12\n";
        assert_eq!(pax_value(records, "path").as_deref(), Some("a/long/name"));
        assert_eq!(pax_value(records, "size").as_deref(), Some("12"));
    }

    #[test]
    fn octal_and_binary_sizes() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(
            number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]),
            Some(2 << 32)
        );
        assert_eq!(number(b"zzz"), None);
    }
}
