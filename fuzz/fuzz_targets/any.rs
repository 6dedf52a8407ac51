//! One program for all targets, since each would link the whole library again: `FUZZ_TARGET` names the one to run.
#![no_main]

#[path = "../entries.rs"]
mod entries;

use std::sync::LazyLock;

static ENTRY: LazyLock<entries::Entry> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    entries::ENTRIES.iter().find(|entry| entry.0 == name).expect("a target of fuzz/entries.rs").1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ENTRY(data);
});
