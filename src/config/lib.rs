//! Resolved, immutable settings and the one option table behind flags, environment, file and help.
