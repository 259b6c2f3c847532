//! `/version`.

use serde_json::{Value, json};

pub const MAJOR: &str = "1";
pub const MINOR: &str = "36";
/// The level of the API that is served, with our own version behind it.
pub const GIT_VERSION: &str = concat!("v1.36.2+sampan", env!("CARGO_PKG_VERSION"));

pub fn document() -> Value {
    let platform = format!(
        "linux/{}",
        match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
    );
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION,
        "gitCommit": "unknown",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": platform,
    })
}
