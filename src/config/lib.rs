//! Resolved, immutable settings and the one option table behind flags, environment, file and help.
//!
//! An option is one row of [`options::OPTIONS`]. The flag parser, the environment, the configuration
//! file, the help text and the reference in the README iterate that table; none of them names an option.

pub mod apiserver;
pub mod conflicts;
pub mod environment;
pub mod foreign;
pub mod options;
pub mod resolve;
pub mod settings;
pub mod values;

pub use options::{Arity, OPTIONS, OptionRow, Role};
pub use resolve::{ConfigError, Sources, resolve, resolve_leniently};
pub use settings::Settings;
