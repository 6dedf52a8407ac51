//! The program of every target. `FUZZ_TARGET` names the target while it is compiled, so that only what the target
//! reaches is linked and has counters; without it, it names the target of a run.
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

/// The entry that was named to the compiler.
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
