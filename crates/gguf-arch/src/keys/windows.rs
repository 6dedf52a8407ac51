//! Keys of a model none of whose layers has a window, in an architecture with windows.

use gguf_format::{Array, Metadata, Value};

use crate::graph::WindowPattern;
use crate::keys::shapes::MAX_BLOCKS;

/// Key of the layers with windows.
const PATTERN: &str = "attention.sliding_window_pattern";
/// Key of the size of the windows.
const SIZE: &str = "attention.sliding_window";
/// Architectures whose graphs without this size are those of layers without windows.
const MAY_LACK_WINDOWS: [&str; 5] = ["gemma3", "laguna", "mellum", "olmo2", "plamo3"];
/// Architectures in whose graphs a window, which they require, is nothing but a mask. Files of gpt-oss keep the keys that
/// llama.cpp writes, with a warning.
const MASKED_ONLY: [&str; 2] = ["gemma2", "granite_swa"];

/// Architecture that may lack them, too, and in whose graph the layers then have the windows of the pattern.
const WITHOUT_SIZE: &str = "modern-bert";

/// Writes layers without any window such that llama.cpp, which stops where a window's size comes without a layer that has
/// one, computes them: without the size, or with a window as long as the context. `rule` is the card's.
pub(super) fn settle_absent(arch: &str, rule: Option<WindowPattern>, metadata: &mut Metadata) {
    let [pattern, size, context, count] =
        [PATTERN, SIZE, "context_length", "block_count"].map(|key| format!("{arch}.{key}"));
    let is_set = |value: Value| value.as_bool().unwrap_or(false) || value.as_u64().is_some_and(|n| n > 0);
    let number = |key| metadata.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let (n_layers, has_window) = match metadata.get(&pattern) {
        Some(Value::Array(layers)) => {
            (layers.len(), (0..layers.len()).any(|layer| layers.get(layer).is_some_and(is_set)))
        }
        period => {
            let Some(rule) = rule.filter(|_| metadata.contains(&size)) else { return };
            let rule = period.map_or(rule, |_| rule.with_period(number(&pattern).unwrap_or(0)));
            let n_layers = (number(&count).unwrap_or(0) as usize).min(MAX_BLOCKS);
            (n_layers, n_layers == 0 || (0..n_layers).any(|layer| rule.is_windowed(layer)))
        }
    };
    if has_window {
        return;
    }
    if arch == WITHOUT_SIZE {
        metadata.remove(&size);
    } else if MAY_LACK_WINDOWS.contains(&arch) {
        metadata.remove(&pattern);
        metadata.remove(&size);
    } else if MASKED_ONLY.contains(&arch)
        && let Some(context) = metadata.get(&context).cloned()
    {
        metadata.set(size, context);
        metadata.set(pattern, Value::Array(Array::Bool(vec![true; n_layers])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_without_windows_are_written_as_llama_cpp_computes_them() {
        let of = |arch: &str, pattern: Value| {
            let key = |name: &str| format!("{arch}.{name}");
            let mut metadata = Metadata::new();
            metadata.set(key("context_length"), 512u32);
            metadata.set(key(SIZE), 8u32);
            metadata.set(key("block_count"), 2u32);
            metadata.set(key(PATTERN), pattern);
            settle_absent(arch, Some(WindowPattern::DenseLast(6)), &mut metadata);
            let get = |name: &str| metadata.get(&key(name)).cloned();
            (get(SIZE), get(PATTERN))
        };
        let list = |list: [bool; 2]| Value::Array(Array::Bool(list.to_vec()));
        let [none, some] = [list([false, false]), list([false, true])];
        assert_eq!(of("gemma3", none.clone()), (None, None));
        assert_eq!(of("gemma3", some.clone()), (Some(Value::U32(8)), Some(some.clone())));
        assert_eq!(of("granite_swa", none.clone()), (Some(Value::U32(512)), Some(list([true, true]))));
        assert_eq!(of("granite_swa", some.clone()), (Some(Value::U32(8)), Some(some)));
        // Here the layers with windows rotate, too.
        assert_eq!(of("cohere2", none.clone()), (Some(Value::U32(8)), Some(none)));
        assert_eq!(of("gemma3", Value::U32(6)), (Some(Value::U32(8)), Some(Value::U32(6))));
        for full in [Value::U32(1), list([false, false])] {
            assert_eq!(of("gemma3", full.clone()), (None, None));
            // Back in a configuration, these layers are no other ones.
            assert_eq!(of("modern-bert", full.clone()), (None, Some(full)));
        }
    }
}
