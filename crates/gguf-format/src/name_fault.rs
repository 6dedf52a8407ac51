//! A model's name from which llama.cpp concludes more than the vocabulary holds.

use std::collections::HashSet;

use crate::{Array, Metadata, Value};

/// Parts of `general.name`, in lower case, by which llama.cpp takes a vocabulary for Phi-3's.
pub const PHI_3: [&str; 2] = ["phi-3", "phi3"];
/// Tokens that it then looks up; without one of them it does not load the file.
const TOKENS: [&str; 4] = ["</s>", "<unk>", "<s>", "<|endoftext|>"];
/// Pre-tokenizers and architectures that have rules of their own before this one.
const OTHERS: [&str; 5] = ["jina-v2-de", "jina-v2-es", "jina-v2-code", "nomic-bert-moe", "jina-bert-v3"];

/// Returns what is wrong with `general.name`, if llama.cpp does not load a file of this name.
///
/// ref: `llama_vocab::impl::load` of llama.cpp 0.5.0
pub fn name_fault(metadata: &Metadata) -> Option<String> {
    let word = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let name = word("general.name").to_ascii_lowercase();
    let part = PHI_3.iter().find(|part| name.contains(**part))?;
    let own = [word("tokenizer.ggml.pre"), word("general.architecture")];
    if OTHERS.iter().any(|other| own.iter().any(|own| own.contains(other))) {
        return None;
    }
    let Array::String(tokens) = metadata.get("tokenizer.ggml.tokens")?.as_array()? else { return None };
    let tokens: HashSet<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    let lacking = TOKENS.iter().filter(|token| !tokens.contains(token.as_bytes()));
    let lacking: Vec<String> = lacking.map(|token| format!("`{token}`")).collect();
    (!lacking.is_empty()).then(|| {
        format!(
            "`general.name` contains `{part}`: llama.cpp takes the vocabulary for Phi-3's and does not load the file without \
             {}",
            lacking.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_phi_3_needs_the_tokens_of_phi_3() {
        let fault = |name: &str, arch: &str, tokens: &[&str]| {
            let mut metadata = Metadata::new();
            metadata.set("general.name", name);
            metadata.set("general.architecture", arch);
            let tokens = tokens.iter().map(|token| token.as_bytes().to_vec()).collect();
            metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
            name_fault(&metadata)
        };
        let few = ["a", "<s>", "</s>"];
        let text = fault("Llama Merge PHI3", "llama", &few).unwrap();
        assert!(text.contains("contains `phi3`") && text.ends_with("`<unk>`, `<|endoftext|>`"), "{text}");
        assert!(fault("my-phi-3-mini", "phi3", &few).is_some());
        assert_eq!(fault("phi3", "phi3", &["</s>", "<unk>", "<s>", "<|endoftext|>"]), None);
        assert_eq!(fault("phi-4", "llama", &few), None);
        assert_eq!(fault("phi3", "jina-bert-v3", &few), None);
        assert_eq!(name_fault(&Metadata::new()), None);
    }
}
