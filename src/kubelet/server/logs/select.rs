//! What of a log a client wanted to see.

use super::entry::Entry;
use super::{LogOptions, Stream};
use jiff::Timestamp;

/// Takes lines of a log in their order and yields what is to be sent.
#[derive(Debug, Clone)]
pub struct Selection {
    stream: Stream,
    timestamps: bool,
    since: Option<Timestamp>,
    remaining: u64,
    /// The next entry begins a line: only there stands a time.
    at_line_start: bool,
}

impl Selection {
    pub fn new(options: &LogOptions) -> Self {
        Self {
            stream: options.stream,
            timestamps: options.timestamps,
            since: options.since,
            remaining: options.limit_bytes.unwrap_or(u64::MAX),
            at_line_start: true,
        }
    }

    /// Appends what is shown of a line. Lines that are none of the runtime's are left out.
    pub fn add(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(entry) = Entry::parse(line) else {
            tracing::debug!(bytes = line.len(), "unreadable line in a container's log");
            return;
        };
        let begins = self.at_line_start;
        self.at_line_start = entry.content.ends_with(b"\n");
        if !self.wants(&entry) {
            return;
        }
        if self.timestamps && begins {
            self.write(format!("{} ", entry.full_time()).as_bytes(), out);
        }
        self.write(entry.content, out);
    }

    /// The limit of bytes is reached: nothing more will be shown.
    pub fn is_full(&self) -> bool {
        self.remaining == 0
    }

    fn wants(&self, entry: &Entry<'_>) -> bool {
        let stream = match self.stream {
            Stream::All => true,
            Stream::Stdout => !entry.is_stderr,
            Stream::Stderr => entry.is_stderr,
        };
        let old = |since| entry.timestamp().is_some_and(|time| time < since);
        stream && !self.since.is_some_and(old)
    }

    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let fitting = usize::try_from(self.remaining).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(fitting)];
        out.extend_from_slice(bytes);
        self.remaining -= bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LOG: [&str; 4] = [
        "2026-01-01T00:00:01Z stdout F one\n",
        "2026-01-01T00:00:02Z stdout P tw\n",
        "2026-01-01T00:00:03Z stdout F o\n",
        "2026-01-01T00:00:04Z stderr F bad\n",
    ];

    fn shown(options: &LogOptions) -> String {
        let mut selection = Selection::new(options);
        let mut out = Vec::new();
        for line in LOG {
            selection.add(line.as_bytes(), &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_option_selects() {
        let all = LogOptions::default();
        assert_eq!(shown(&all), "one\ntwo\nbad\n");
        let since = Some("2026-01-01T00:00:04Z".parse().unwrap());
        assert_eq!(
            shown(&LogOptions {
                since,
                ..all.clone()
            }),
            "bad\n"
        );
        let stream = Stream::Stdout;
        assert_eq!(
            shown(&LogOptions {
                stream,
                ..all.clone()
            }),
            "one\ntwo\n"
        );
        let limit_bytes = Some(6);
        assert_eq!(
            shown(&LogOptions {
                limit_bytes,
                ..all.clone()
            }),
            "one\ntw"
        );
        let timed = LogOptions {
            timestamps: true,
            ..all
        };
        assert_eq!(
            shown(&timed),
            "2026-01-01T00:00:01.000000000Z one\n\
             2026-01-01T00:00:02.000000000Z two\n\
             2026-01-01T00:00:04.000000000Z bad\n"
        );
    }
}
