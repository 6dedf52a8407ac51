//! Keys that llama.cpp's loader reads, by architecture, and those without which it loads no file.
//!
//! The table is `loader_keys.json`, which `lab/peers/loader_keys.py` derives from the loader. Architectures that it does not
//! list are not judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::{Metadata, Value};

/// Architectures by key, without the architecture's prefix. `!` follows those that need the key, `*` is every one.
// A test covers that the table parses.
static ROWS: LazyLock<BTreeMap<&'static str, &'static str>> =
    LazyLock::new(|| serde_json::from_str(include_str!("loader_keys.json")).unwrap_or_default());

fn has(archs: &str, arch: &str) -> bool {
    archs.split(' ').any(|own| own.trim_end_matches('!') == arch)
}

/// Returns the names of the architecture's keys in a file that llama.cpp's loader reads for other architectures only, without
/// the prefix.
pub fn unread_keys(metadata: &Metadata) -> BTreeSet<&str> {
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let is_others = |name: &str| ROWS.get(name).is_some_and(|archs| !has(archs, "*") && !has(archs, arch));
    let own = metadata.iter().filter_map(|(key, _)| key.strip_prefix(arch)?.strip_prefix('.'));
    let is_known = ROWS.values().any(|archs| has(archs, arch));
    own.filter(|name| is_known && is_others(name)).collect()
}

/// Returns the keys that a model's file lacks and llama.cpp's loader requires. Adapters are not judged.
pub fn missing_keys(metadata: &Metadata) -> Vec<String> {
    let word = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let arch = word("general.architecture");
    let is_model = word("general.type") != "adapter";
    let needs = |archs: &str| archs.split(' ').any(|own| own.strip_suffix('!') == Some(arch));
    let own = ROWS.iter().filter(|(_, archs)| is_model && needs(archs));
    own.map(|(key, _)| format!("{arch}.{key}")).filter(|key| !metadata.contains(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_architecture_has_keys_of_its_own() {
        assert!(ROWS.len() > 60);
        let missing = |arch: &str, keys: &[&str]| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", arch);
            for key in keys {
                metadata.set(format!("{arch}.{key}"), 1u32);
            }
            missing_keys(&metadata)
        };
        let norm = "attention.layer_norm_rms_epsilon";
        assert_eq!(missing("llama", &[]), ["llama.attention.layer_norm_rms_epsilon"]);
        assert_eq!(missing("llama", &[norm]), [""; 0]);
        assert_eq!(
            missing("exaone", &["attention.layer_norm_epsilon"]),
            ["exaone.attention.layer_norm_rms_epsilon"]
        );
        assert!(missing("gpt-oss", &[norm]).contains(&"gpt-oss.attention.sliding_window".to_owned()));
        assert_eq!(missing("of somebody's own", &[]), [""; 0]);
    }

    #[test]
    fn keys_are_unread_by_architecture() {
        let unread = |arch: &str, key: &str| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", arch);
            metadata.set(format!("{arch}.{key}"), 1u32);
            unread_keys(&metadata).contains(key)
        };
        let window = "attention.sliding_window";
        for (arch, key, expected) in [
            ("llama", window, true),
            ("olmo2", window, false),
            // By a function of the loader, and by the class that this one inherits.
            ("olmo2", "attention.sliding_window_pattern", false),
            ("mistral4", "attention.kv_lora_rank", false),
            ("llama", "rope.freq_base", false),
            ("llama", "of_nobody", false),
            ("of somebody's own", window, false),
        ] {
            assert_eq!(unread(arch, key), expected, "{arch}.{key}");
        }
    }
}
