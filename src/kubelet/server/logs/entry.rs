//! One line of a log as the runtime writes it: `TIME STREAM TAGS CONTENT`.

use jiff::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// As it stands in the log.
    pub time: &'a str,
    pub is_stderr: bool,
    /// With its newline, unless this is part of a longer line.
    pub content: &'a [u8],
}

impl<'a> Entry<'a> {
    /// `None` for anything else: a line that was cut off, or not written by a runtime.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let (time, rest) = split(line)?;
        let (stream, rest) = split(rest)?;
        let (tags, content) = split(rest)?;
        let time = std::str::from_utf8(time).ok()?;
        if !time.as_bytes().first()?.is_ascii_digit() {
            return None;
        }
        let is_stderr = match stream {
            b"stdout" => false,
            b"stderr" => true,
            _ => return None,
        };
        // The first tag says whether the line goes on; later versions may add more.
        let is_partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
        let content = match content.strip_suffix(b"\n") {
            Some(inner) if is_partial => inner,
            _ => content,
        };
        Some(Self {
            time,
            is_stderr,
            content,
        })
    }

    pub fn timestamp(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }

    /// The time with all nine digits of its fraction.
    pub fn full_time(&self) -> String {
        let zone = self.time.find(['Z', '+']).or_else(|| {
            // A minus after the date is the zone's.
            self.time.rfind('-').filter(|at| *at > 10)
        });
        let (front, zone) = self.time.split_at(zone.unwrap_or(self.time.len()));
        let (whole, fraction) = front.split_once('.').unwrap_or((front, ""));
        format!("{whole}.{fraction:0<9}{zone}")
    }
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == b' ')?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn whole_and_partial_lines() {
        let whole = Entry::parse(b"2026-01-01T00:00:00.5Z stdout F a b \n").unwrap();
        assert_eq!((whole.content, whole.is_stderr), (&b"a b \n"[..], false));
        let part = Entry::parse(b"2026-01-01T00:00:00Z stderr P:x half\n").unwrap();
        assert_eq!((part.content, part.is_stderr), (&b"half"[..], true));
        let empty = Entry::parse(b"2026-01-01T00:00:00Z stdout F \n").unwrap();
        assert_eq!(empty.content, b"\n");
        for bad in [
            &b"hello world of logs\n"[..],
            b"2026-01-01T00:00:00Z stdin F x\n",
            b"",
        ] {
            assert_eq!(Entry::parse(bad), None);
        }
    }

    #[test]
    fn times_are_filled_up() {
        for (given, full) in [
            ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500000000Z"),
            (
                "2026-01-01T00:00:00+01:00",
                "2026-01-01T00:00:00.000000000+01:00",
            ),
            (
                "2026-01-01T00:00:00.12-07:00",
                "2026-01-01T00:00:00.120000000-07:00",
            ),
        ] {
            let line = format!("{given} stdout F x\n");
            assert_eq!(Entry::parse(line.as_bytes()).unwrap().full_time(), full);
        }
    }
}
