//! Check of the planned keys: no file is written that the runtime refuses because of a value in the configuration.

use gguf_arch::Mapping;
use gguf_core::Hint;
use gguf_core::text::escape;
use gguf_format::key_faults::key_faults;
use gguf_format::loader_keys::missing_keys;
use gguf_format::number_faults::number_faults;
use gguf_format::{KeyFault, Metadata, Value};

/// Value of the configuration that gives a key no runtime reads.
#[derive(Debug, thiserror::Error)]
#[error("{}{fault}", origin(.file, .origins))]
pub struct KeysError {
    /// File of the configuration.
    file: &'static str,
    /// Configuration keys that the value comes from: name, and name with value.
    origins: Vec<(String, String)>,
    /// What is wrong with the key.
    fault: String,
}

impl KeysError {
    /// Checks types, lengths and numbers of the planned keys. Those in `set` are the user's own. A value that the
    /// configuration leaves to its class is only a warning, which is returned.
    pub(super) fn check(
        file: &'static str,
        mapping: &Mapping,
        metadata: &Metadata,
        set: &[(String, Value)],
    ) -> Result<Option<String>, Box<Self>> {
        let types = key_faults(metadata).into_iter().filter(KeyFault::is_fatal);
        let types = types.map(|fault| (fault.key().to_owned(), fault.to_string()));
        let numbers = number_faults(metadata).into_iter();
        let mut all = types.chain(numbers.map(|fault| (fault.key.clone(), fault.to_string())));
        let Some((key, fault)) = all.find(|(key, _)| !set.iter().any(|(own, _)| own == key)) else {
            return Ok(absent(file, metadata, set));
        };
        let origins = mapping.origins.get(&key).map_or(&[][..], Vec::as_slice);
        // A dense model of a family with experts: transformers states the number of experts used in any case.
        let experts = metadata.get(&format!("{}.expert_count", mapping.card.gguf)).and_then(Value::as_u64);
        let is_count = [".expert_used_count", ".expert_count"].iter().any(|end| key.ends_with(end));
        let is_dense = is_count && experts.unwrap_or(0) == 0;
        // Such a file runs if a context size is given.
        let has_no_context = key.ends_with(".context_length");
        let is_absent = is_dense
            || has_no_context
            || !origins.is_empty()
                && origins.iter().all(|origin| origin.stated.as_ref().is_none_or(serde_json::Value::is_null));
        let origins = origins.iter().map(|origin| (origin.key.clone(), origin.to_string())).collect();
        let error = Self { file, origins, fault };
        if is_absent { Ok(Some(error.to_string())) } else { Err(Box::new(error)) }
    }
}

/// Returns a warning about keys that the runtime requires and the configuration has no value for.
fn absent(file: &str, metadata: &Metadata, set: &[(String, Value)]) -> Option<String> {
    let is_set = |key: &String| set.iter().any(|(own, _)| own == key);
    let missing = missing_keys(metadata).into_iter().filter(|key| !is_set(key));
    let missing: Vec<String> = missing.map(|key| format!("`{key}`")).collect();
    let names = missing.join(", ");
    (!missing.is_empty()).then(|| {
        format!("{file} has no value for {names}, without which llama.cpp does not load the file; `--set KEY=TYPE:VALUE` adds one")
    })
}

/// Returns the beginning of the message.
fn origin(file: &str, origins: &[(String, String)]) -> String {
    let values: Vec<&str> = origins.iter().map(|(_, value)| value.as_str()).collect();
    if values.is_empty() { format!("{file}: ") } else { format!("{file}: {}: ", values.join(", ")) }
}

impl Hint for KeysError {
    fn hints(&self) -> Vec<String> {
        let keys: Vec<String> = self.origins.iter().map(|(key, _)| format!("`{}`", escape(key))).collect();
        let right = "or take the file that was saved with these weights";
        match keys.as_slice() {
            [] => vec![format!("take the {} that was saved with these weights", self.file)],
            [key] => vec![format!("set {key} in {} right, {right}", self.file)],
            _ => vec![format!("set one of {} in {} right, {right}", keys.join(", "), self.file)],
        }
    }
}
