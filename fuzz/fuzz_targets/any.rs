//! Program of every target. If `FUZZ_TARGET` is set at compile time, it names the target, so that only the code of that
//! target is linked and has counters. Otherwise it names the target at run time.
#![no_main]

#[path = "../entries.rs"]
mod entries;

use std::sync::LazyLock;

use entries::{ENTRIES, Entry};

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Entry that was named at compile time.
const CHOSEN: Option<Entry> = match option_env!("FUZZ_TARGET") {
    Some(name) => {
        let mut at = 0;
        while !is_same(ENTRIES[at].0, name) {
            at += 1;
        }
        Some(ENTRIES[at].1)
    }
    None => None,
};

fn named() -> Entry {
    static ENTRY: LazyLock<Entry> = LazyLock::new(|| {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
        ENTRIES.iter().find(|entry| entry.0 == name).expect("a target of fuzz/entries.rs").1
    });
    *ENTRY
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    match CHOSEN {
        Some(entry) => entry(data),
        None => named()(data),
    };
});
