//! What llama.cpp's loader and graph do by a number of the keys: it refuses a file whose tensors do not fit, and leaves
//! windows out.

use std::fmt;

use crate::judge::{conditions, needs};
use gguf_core::TensorMeta;
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};

/// Number of layers from which the loader of Command R asks for norms of queries and keys, and takes them.
const NORMED_LAYERS: u64 = 64;
/// Numbers of layers with which DeepSeek's loader takes queries without a latent; with the last one, if the model has
/// [`LITE_VOCAB`] tokens.
const LITE_LAYERS: [u64; 3] = [26, 27, 48];
const LITE_VOCAB: u64 = 128_256;
/// Number of layers with which EXAONE 4 has windows.
const WINDOWED_LAYERS: u64 = 64;
/// Windows of the loaders of EXAONE 4, if the file gives none, and of SmallThinker.
const OWN_WINDOW: u64 = 4096;
/// Window of Llama 4's loader.
const OWN_CHUNK: u64 = 8192;

const QUERY_KEY_NORMS: [&str; 2] = ["attn_q_norm.weight", "attn_k_norm.weight"];
const QUERIES: [&str; 1] = ["attn_q.weight"];
const LATENT_QUERIES: [&str; 3] = ["attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight"];
/// Tensors whose columns are the width of all heads.
const OF_ALL_HEADS: [&str; 3] = ["attn_output.weight", "attn_q_norm.weight", "attn_k_norm.weight"];

/// Reason why llama.cpp loads no such file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoaderFault {
    /// With this number of layers, the loader requires tensors that are missing, or takes none of those that are there.
    Depth {
        /// The architecture.
        arch: String,
        /// Number of layers, without those that predict further tokens.
        n_layers: u64,
        /// The first tensor.
        tensor: String,
        /// True if it is missing.
        is_missing: bool,
    },
    /// Keys that the loader or the graph stops at.
    Keys {
        /// The architecture.
        arch: String,
        /// What the keys must be.
        rule: &'static str,
    },
    /// The heads are together narrower or wider than the embedding, and the loader has no place for their width.
    HeadWidth {
        /// The architecture.
        arch: String,
        /// The first tensor.
        tensor: String,
        /// Width of all heads.
        width: u64,
        /// Width of the embedding.
        n_embd: u64,
    },
}

impl fmt::Display for LoaderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Depth { arch, n_layers, tensor, is_missing } => {
                let word = if *is_missing { "without" } else { "with" };
                write!(
                    f,
                    "llama.cpp loads no file of `{}` with {n_layers} layers {word} `{}`: its loader decides by the number of \
                     layers which tensors there are",
                    escape(arch),
                    escape(tensor)
                )
            }
            Self::Keys { arch, rule } => {
                write!(f, "llama.cpp runs no file of `{}` with these keys: {rule}", escape(arch))
            }
            Self::HeadWidth { arch, tensor, width, n_embd } => write!(
                f,
                "llama.cpp loads no file of `{}` whose heads are together {width} wide (`{}`) and its embedding {n_embd}: its \
                 loader takes the one for the other",
                escape(arch),
                escape(tensor)
            ),
        }
    }
}

/// Returns what llama.cpp's loader refuses in a model's file by its keys.
pub fn loader_faults(metadata: &Metadata, tensors: &[TensorMeta]) -> Vec<LoaderFault> {
    let word = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    if word("general.type") == "adapter" {
        return Vec::new();
    }
    let keys = Keys { arch: word("general.architecture"), metadata };
    let mut faults = Vec::new();
    faults.extend(by_depth(&keys, tensors));
    faults.extend(head_width(&keys, tensors));
    let names = tensors.iter().map(|tensor| tensor.name.as_str());
    let broken = conditions::broken(keys.arch, metadata, names).into_iter();
    faults.extend(broken.map(|rule| LoaderFault::Keys { arch: keys.arch.to_owned(), rule }));
    faults
}

/// Returns true if llama.cpp's graph of an architecture has the windows of the keys.
pub(super) fn has_windows(arch: &str, n_layers: u64) -> bool {
    arch != "phi3" && (arch != "exaone4" || n_layers == WINDOWED_LAYERS)
}

/// Returns the window that llama.cpp's loader sets in place of the file's, which is `found`; 0 is none.
pub fn own_window(arch: &str, n_layers: u64, found: Option<u64>) -> Option<u64> {
    match (arch, found) {
        _ if !has_windows(arch, n_layers) => Some(0),
        ("exaone4", None) | ("smallthinker", Some(1..)) => Some(OWN_WINDOW),
        ("llama4", Some(1..)) => Some(OWN_CHUNK),
        _ => None,
    }
}

/// Returns true if DeepSeek's loader takes queries without a latent, and none with one, by these numbers.
fn is_lite(n_layers: u64, n_vocab: u64) -> bool {
    LITE_LAYERS[..2].contains(&n_layers) || (n_layers == LITE_LAYERS[2] && n_vocab == LITE_VOCAB)
}

struct Keys<'m> {
    arch: &'m str,
    metadata: &'m Metadata,
}

impl Keys<'_> {
    fn number(&self, key: &str) -> Option<u64> {
        self.metadata.get(&format!("{}.{key}", self.arch)).and_then(Value::as_u64)
    }

    fn n_layers(&self) -> Option<u64> {
        Some(self.number("block_count")?.saturating_sub(self.number("nextn_predict_layers").unwrap_or(0)))
    }

    fn n_vocab(&self) -> u64 {
        let tokens =
            || self.metadata.get("tokenizer.ggml.tokens")?.as_array().map(|tokens| tokens.len() as u64);
        self.number("vocab_size").or_else(tokens).unwrap_or(0)
    }

    /// Returns the tensors of blocks that the number of layers decides about, and whether each block has them.
    fn decided(&self, n_layers: u64) -> Vec<(&'static str, bool)> {
        match self.arch {
            "command-r" => QUERY_KEY_NORMS.map(|name| (name, n_layers >= NORMED_LAYERS)).to_vec(),
            "deepseek2" | "mistral4" => {
                let has_rank = self.number("attention.q_lora_rank").is_some_and(|rank| rank > 0);
                let is_latent = has_rank && !is_lite(n_layers, self.n_vocab());
                let plain = QUERIES.map(|name| (name, !is_latent));
                plain.into_iter().chain(LATENT_QUERIES.map(|name| (name, is_latent))).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn by_depth(keys: &Keys<'_>, tensors: &[TensorMeta]) -> Option<LoaderFault> {
    let n_layers = keys.n_layers()?;
    // A file that has no first block has only what predicts further tokens.
    let block = "blk.0.";
    let has = |name: &str| tensors.iter().any(|tensor| tensor.name.strip_prefix(block) == Some(name));
    if !has("attn_norm.weight") {
        return None;
    }
    let (name, is_due) = keys.decided(n_layers).into_iter().find(|(name, is_due)| has(name) != *is_due)?;
    let (arch, tensor) = (keys.arch.to_owned(), format!("{block}{name}"));
    Some(LoaderFault::Depth { arch, n_layers, tensor, is_missing: is_due })
}

fn head_width(keys: &Keys<'_>, tensors: &[TensorMeta]) -> Option<LoaderFault> {
    let n_embd = keys.number("embedding_length")?;
    let square = OF_ALL_HEADS.into_iter().filter(|name| needs::is_square(keys.arch, name));
    let own = square.flat_map(|name| tensors.iter().filter(move |tensor| is_in_block(&tensor.name, name)));
    let mut widths = own.map(|tensor| (tensor, tensor.shape.n_cols()));
    let (tensor, width) = widths.find(|(_, width)| *width != n_embd)?;
    let (arch, tensor) = (keys.arch.to_owned(), tensor.name.clone());
    Some(LoaderFault::HeadWidth { arch, tensor, width, n_embd })
}

fn is_in_block(tensor: &str, name: &str) -> bool {
    tensor.strip_suffix(name).is_some_and(|block| block.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    fn faults(arch: &str, keys: &[(&str, u32)], tensors: &[(&str, [u64; 2])]) -> Vec<String> {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", arch);
        for (key, value) in keys {
            metadata.set(format!("{arch}.{key}"), *value);
        }
        let tensor = |(name, dims): &(&str, [u64; 2])| TensorMeta {
            name: format!("blk.0.{name}"),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: GgmlType::F32,
        };
        let first = ("attn_norm.weight", [1, 8]);
        let tensors: Vec<_> = [first].iter().chain(tensors).map(tensor).collect();
        loader_faults(&metadata, &tensors).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_number_of_layers_decides() {
        let (norms, queries) =
            ([("attn_q_norm.weight", [8, 8]), ("attn_k_norm.weight", [8, 8])], [("attn_q.weight", [8, 8])]);
        let latent = LATENT_QUERIES.map(|name| (name, [8, 8]));
        for (arch, n, more, tensors, fault) in [
            ("command-r", 40, None, &norms[..], Some("with `blk.0.attn_q_norm.weight`")),
            ("command-r", 64, None, &norms, None),
            ("command-r", 64, None, &[], Some("without `blk.0.attn_q_norm.weight`")),
            ("command-r", 40, None, &[], None),
            ("deepseek2", 27, None, &queries, None),
            ("deepseek2", 28, Some(("attention.q_lora_rank", 0)), &queries, None),
            ("deepseek2", 61, Some(("attention.q_lora_rank", 8)), &latent, None),
            (
                "deepseek2",
                27,
                Some(("attention.q_lora_rank", 8)),
                &latent,
                Some("without `blk.0.attn_q.weight`"),
            ),
            (
                "mistral4",
                28,
                Some(("attention.q_lora_rank", 8)),
                &queries,
                Some("with `blk.0.attn_q.weight`"),
            ),
            ("llama", 28, None, &norms, None),
        ] {
            let keys: Vec<_> = [("block_count", n)].into_iter().chain(more).collect();
            let found = faults(arch, &keys, tensors);
            match fault {
                Some(fault) => assert!(found.len() == 1 && found[0].contains(fault), "{arch} {n}: {found:?}"),
                None => assert_eq!(found, [""; 0], "{arch} {n}"),
            }
        }
    }

    #[test]
    fn the_width_of_heads_has_no_place_in_some_loaders() {
        let of = |arch: &str, width| {
            faults(arch, &[("embedding_length", 8)], &[("attn_output.weight", [8, width])])
        };
        assert_eq!(of("qwen2", 8), [""; 0]);
        assert_eq!(of("qwen3", 16), [""; 0]);
        // Keys of fewer heads, with a norm over all of them.
        let normed = |arch: &str| {
            faults(
                arch,
                &[("embedding_length", 8)],
                &[("attn_q_norm.weight", [1, 8]), ("attn_k_norm.weight", [1, 4])],
            )
        };
        assert_eq!(normed("olmo2"), [""; 0]);
        assert!(
            matches!(&normed("olmoe")[..], [fault] if fault.contains("4 wide (`blk.0.attn_k_norm.weight`)"))
        );
        assert_eq!(
            of("qwen2", 16),
            [
                "llama.cpp loads no file of `qwen2` whose heads are together 16 wide (`blk.0.attn_output.weight`) and its \
              embedding 8: its loader takes the one for the other"
            ]
        );
    }

    #[test]
    fn keys_that_the_graph_stops_at_are_told() {
        assert_eq!(
            faults("lfm2", &[("shortconv.l_cache", 1)], &[]),
            ["llama.cpp runs no file of `lfm2` with these keys: `shortconv.l_cache` must be at least 2"]
        );
        assert_eq!(faults("lfm2", &[("shortconv.l_cache", 3)], &[]), [""; 0]);
    }

    #[test]
    fn windows_of_two_architectures_are_left_out() {
        assert!(has_windows("gemma3", 26) && has_windows("exaone4", 64));
        assert!(!has_windows("exaone4", 30) && !has_windows("phi3", 32));
        for (arch, n_layers, found, expected) in [
            ("phi3", 32, Some(2047), Some(0)),
            ("exaone4", 30, Some(4096), Some(0)),
            ("exaone4", 64, None, Some(4096)),
            ("exaone4", 64, Some(512), None),
            ("llama4", 48, Some(512), Some(8192)),
            ("llama4", 48, Some(0), None),
            ("smallthinker", 52, None, None),
            ("gemma3", 26, Some(512), None),
        ] {
            assert_eq!(own_window(arch, n_layers, found), expected, "{arch} {n_layers} {found:?}");
        }
    }
}
