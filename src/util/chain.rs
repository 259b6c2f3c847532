//! An error with its causes on one line.

use std::error::Error;
use std::fmt::Write as _;

/// The error and what caused it, outermost first; what a message tells already is not told again.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {more}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("disk full")]
        Inner,
        #[error("cannot write: {0}")]
        Repeats(#[source] Box<Failure>),
        #[error("cannot save")]
        Names(#[source] Box<Failure>),
    }

    #[test]
    fn every_cause_is_told_once() {
        let inner = || Box::new(Failure::Inner);
        let repeats = Failure::Repeats(inner());
        assert_eq!(chain(&repeats), "cannot write: disk full");
        let names = Failure::Names(Box::new(Failure::Repeats(inner())));
        assert_eq!(chain(&names), "cannot save: cannot write: disk full");
        assert_eq!(chain(&Failure::Names(inner())), "cannot save: disk full");
    }
}
