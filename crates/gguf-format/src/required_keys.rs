//! Keys without which llama.cpp loads no file of an architecture.
//!
//! The table is `required_keys.json`, which `lab/peers/needed_keys.py` derives from llama.cpp's loader. Architectures that it
//! does not list are not judged.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::{Metadata, Value};

// A test covers that the table parses.
static ROWS: LazyLock<BTreeMap<&'static str, &'static str>> =
    LazyLock::new(|| serde_json::from_str(include_str!("required_keys.json")).unwrap_or_default());

/// Returns the keys that a model's file lacks and llama.cpp's loader requires. Adapters are not judged.
pub fn missing_keys(metadata: &Metadata) -> Vec<String> {
    let word = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let arch = word("general.architecture");
    let is_model = word("general.type") != "adapter";
    let own = ROWS.iter().filter(|(_, archs)| is_model && archs.split(' ').any(|own| own == arch));
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
}
