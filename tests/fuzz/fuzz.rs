//! One target under libFuzzer; SAMPAN_FUZZ_TARGET names it (see `targets.rs` for all).
#![no_main]

#[path = "targets.rs"]
mod targets;

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<targets::Target> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("SAMPAN_FUZZ_TARGET").unwrap_or_default();
        let named = targets::TARGETS.iter().find(|(known, _)| *known == name);
        let names: Vec<_> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
        named.unwrap_or_else(|| panic!("SAMPAN_FUZZ_TARGET is none of {names:?}")).1
    });
    target(data);
});
