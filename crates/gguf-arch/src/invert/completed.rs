//! Keys that a file does not have, with the values that the runtime takes for them.

use crate::graph::Positions;
use crate::read::metadata_rows::derived_keys;
use crate::read::schema::Card;
use gguf_core::WeightMeta;
use gguf_format::{Metadata, Value};

use super::config::LONG_FACTORS;

/// What llama.cpp's loader takes for `rope.freq_base`; the defaults of configuration classes are others.
const FREQ_BASE: f32 = 10000.0;

/// Returns the metadata with the rope that llama.cpp's loader makes of absent keys: a factor without a type scales
/// linearly, as does one of long rope without factors by frequency, and its old name is `rope.scale_linear`.
pub(super) fn completed(card: &Card, metadata: &Metadata, tensors: &[WeightMeta]) -> Metadata {
    let mut all = metadata.clone();
    let key = |name: &str| format!("{}.{name}", card.gguf);
    let number =
        |name: &str| metadata.get(&key(name)).and_then(Value::as_f64).filter(|number| *number != 0.0);
    let (base, factor, kind) = (key("rope.freq_base"), key("rope.scaling.factor"), key("rope.scaling.type"));
    let rotates = card.graph.as_ref().is_some_and(|graph| graph.positions == Positions::Rope);
    if rotates && number("rope.freq_base").is_none() && derived_keys(card).contains(&base) {
        all.set(base, FREQ_BASE);
    }
    let has_factors = || tensors.iter().any(|tensor| tensor.name == LONG_FACTORS);
    let is_linear = match metadata.get(&kind).and_then(Value::as_str) {
        None => true,
        Some("longrope") => !has_factors(),
        Some(_) => false,
    };
    let stretch = number("rope.scaling.factor").or_else(|| number("rope.scale_linear"));
    if let Some(stretch) = stretch.filter(|stretch| *stretch != 1.0) {
        all.set(factor, stretch as f32);
        if is_linear {
            all.set(kind, "linear");
        }
    }
    all
}
