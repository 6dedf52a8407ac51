//! Classes of keys: arithmetic, encoding of text, or neither.

use gguf_format::keys::ANNOTATION_PREFIX;
use gguf_format::split_keys::SPLIT_ID;

/// Class of a key, which decides the severity of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Decides what the model computes: a difference is an error.
    Arithmetic,
    /// Describes the architecture without deciding what it computes: a warning, unless the graph differs.
    Free,
    /// Decides how text becomes tokens: an error.
    Encoding,
    /// Ends an answer: another id is an error; an id that only one side names is a warning.
    Turn,
    /// Concerns programs around the model: a warning.
    Runtime,
    /// Names and origins, which publishers change: ignored.
    Name,
    /// Changed by quantizing, splitting and writing: ignored.
    Build,
    /// Keys of other programs.
    Foreign,
}

/// Keys of an architecture (without its name) that describe it and decide nothing: the trained context length, the
/// vocabulary size, which follows from the tokens, the layout of the original tensors, the pooling of an embedding.
const FREE: [&str; 6] = [
    "classifier.output_labels",
    "classifier.pooling_type",
    "context_length",
    "pooling_type",
    "tensor_data_layout",
    "vocab_size",
];

/// Keys after `tokenizer.ggml.` that decide how text becomes tokens.
const ENCODING: [&str; 19] = [
    "model",
    "pre",
    "tokens",
    "token_type",
    "scores",
    "merges",
    "precompiled_charsmap",
    "bos_token_id",
    "eos_token_id",
    "unknown_token_id",
    "seperator_token_id",
    "cls_token_id",
    "add_bos_token",
    "add_eos_token",
    "add_sep_token",
    "add_space_prefix",
    "remove_extra_whitespaces",
    "normalizer.lowercase",
    "normalizer.strip_accents",
];

/// Keys after `tokenizer.ggml.` for the tokens at which a runtime ends an answer.
const TURN: [&str; 2] = ["eot_token_id", "eom_token_id"];

/// Prefixes of keys that decide the arithmetic of any architecture.
const SHARED: [&str; 2] = ["xielu.", "diffusion."];

/// Keys that describe the file instead of the model.
const BUILD: [&str; 10] = [
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "general.quantized_by",
    "general.tensor_extra.",
    "split.",
    SPLIT_ID,
    "quantize.",
    "gguf_foundry.quantize.",
    "imatrix.",
];

/// Keys under `general.` that programs act on.
const RUNTIME: [&str; 2] = ["general.type", "general.sampling."];

/// Keys under `general.` about license, origin and languages: listed if they differ.
const RIGHTS: [&str; 5] =
    ["general.license", "general.base_model.", "general.dataset.", "general.tags", "general.languages"];

/// Returns the class of a key in a file of an architecture. Unlisted keys of the architecture are assumed to decide the
/// arithmetic.
pub(super) fn class_of(key: &str, arch: &str) -> Class {
    let is_in =
        |list: &[&str]| list.iter().any(|row| key == *row || (row.ends_with('.') && key.starts_with(row)));
    if let Some(name) = key.strip_prefix("tokenizer.") {
        return match name.strip_prefix("ggml.") {
            Some(name) if ENCODING.contains(&name) => Class::Encoding,
            Some(name) if TURN.contains(&name) => Class::Turn,
            _ => Class::Runtime,
        };
    }
    if is_in(&BUILD) {
        return Class::Build;
    }
    if key == "general.architecture" || key.starts_with(ANNOTATION_PREFIX) || is_in(&SHARED) {
        return Class::Arithmetic;
    }
    if key.starts_with("general.") {
        let is_rights = RIGHTS.iter().any(|row| key.starts_with(row));
        return if is_rights || is_in(&RUNTIME) { Class::Runtime } else { Class::Name };
    }
    match key.strip_prefix(arch).and_then(|rest| rest.strip_prefix('.')) {
        Some(name) if !arch.is_empty() => local_class(name),
        _ => Class::Foreign,
    }
}

/// Returns the class of an architecture's key, given without the architecture's name.
pub(super) fn local_class(name: &str) -> Class {
    if FREE.contains(&name) { Class::Free } else { Class::Arithmetic }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_arch::{Registry, derived_keys};

    #[test]
    fn every_key_that_a_card_derives_is_classified() {
        let registry = Registry::embedded().unwrap();
        let mut n = 0;
        for card in registry.cards() {
            for key in derived_keys(card) {
                n += 1;
                let class = class_of(&key, &card.gguf);
                assert!(!matches!(class, Class::Foreign | Class::Name), "card `{}`: `{key}`", card.name());
            }
        }
        assert!(n > 200, "{n} keys");
    }

    #[test]
    fn keys_fall_into_their_classes() {
        for (key, expected) in [
            ("llama.rope.freq_base", Class::Arithmetic),
            ("llama.something.new", Class::Arithmetic),
            ("gguf_foundry.attention.sliding_window", Class::Arithmetic),
            ("xielu.beta", Class::Arithmetic),
            ("llama.context_length", Class::Free),
            ("qwen2.context_length", Class::Foreign),
            ("tokenizer.ggml.pre", Class::Encoding),
            ("tokenizer.ggml.eot_token_id", Class::Turn),
            ("tokenizer.ggml.padding_token_id", Class::Runtime),
            ("tokenizer.chat_template", Class::Runtime),
            ("general.name", Class::Name),
            ("general.base_model.0.name", Class::Runtime),
            ("general.license.link", Class::Runtime),
            ("general.sampling.temp", Class::Runtime),
            ("general.file_type", Class::Build),
            ("general.quantization_version", Class::Build),
            ("split.count", Class::Build),
            ("gguf_foundry.split.id", Class::Build),
            ("quantize.imatrix.file", Class::Build),
            ("gguf_foundry.quantize.kld", Class::Build),
            ("mradermacher.quantized_on", Class::Foreign),
        ] {
            assert_eq!(class_of(key, "llama"), expected, "{key}");
        }
        assert_eq!(class_of(".x", ""), Class::Foreign);
    }
}
