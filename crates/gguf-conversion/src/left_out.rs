//! Warnings about tensors that a text model leaves out of a multimodal checkpoint.

use std::fmt;

use indexmap::IndexMap;

use gguf_arch::{CardKind, DropReason, Mapping};
use gguf_core::WeightMeta;
use gguf_core::text::escape;

/// Maximum number of parts that a warning names.
const MAX_PARTS: usize = 6;

/// Parts of a checkpoint that belong to other modalities: names and tensor counts, in the checkpoint's order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OtherModalities {
    parts: Vec<(String, usize)>,
    /// True if `--mmproj` writes these parts to a file.
    is_converted: bool,
}

impl OtherModalities {
    /// Collects the parts that the mapping drops; `None` if there are none. `is_converted` returns whether `--mmproj`
    /// would write them to a file.
    pub(super) fn of(
        mapping: &Mapping,
        weights: &[WeightMeta],
        is_converted: impl FnOnce() -> bool,
    ) -> Option<Self> {
        let mut parts: IndexMap<String, usize> = IndexMap::new();
        for dropped in mapping.dropped.iter().filter(|dropped| dropped.why == DropReason::OtherModality) {
            if let Some(weight) = weights.get(dropped.weight) {
                *parts.entry(part_of(&weight.name).to_owned()).or_default() += 1;
            }
        }
        let parts: Vec<_> = parts.into_iter().collect();
        (!parts.is_empty()).then(|| Self { parts, is_converted: is_converted() })
    }

    /// Returns true if `--mmproj` writes these parts to a file.
    pub(super) fn is_converted(&self) -> bool {
        self.is_converted
    }
}

/// Returns a warning about tensors left over from training, if the mapping drops any.
pub(super) fn of_training(mapping: &Mapping, weights: &[WeightMeta]) -> Option<String> {
    let dropped = mapping.dropped.iter().filter(|dropped| dropped.why == DropReason::Training);
    let names: Vec<&str> =
        dropped.filter_map(|dropped| Some(weights.get(dropped.weight)?.name.as_str())).collect();
    (!names.is_empty()).then(|| {
        let (what, n) = (if names.len() == 1 { "tensor" } else { "tensors" }, names.len());
        format!(
            "{n} {what} that a training left next to the model {} left out: {}",
            if n == 1 { "is" } else { "are" },
            first_names(&names)
        )
    })
}

/// Returns warnings about changes of an adapter that are not written. `is_changed` is true for weights that it changes;
/// `kind` is that of the written model.
pub(super) fn of_adapter(
    mapping: &Mapping,
    weights: &[WeightMeta],
    is_changed: impl Fn(usize) -> bool,
    kind: CardKind,
) -> Vec<String> {
    let mut parts: IndexMap<(&str, String), Vec<&str>> = IndexMap::new();
    for dropped in mapping.dropped.iter().filter(|dropped| is_changed(dropped.weight)) {
        // A file of towers never has the text model.
        let is_expected = kind == CardKind::Mmproj && dropped.why == DropReason::TextModel;
        if let Some(weight) = weights.get(dropped.weight).filter(|_| !is_expected) {
            let module = weight.name.strip_suffix(".weight").unwrap_or(&weight.name);
            let of_tower = dropped.why == DropReason::OtherModality;
            let way = if of_tower {
                "; `gguf-convert merge-lora BASE ADAPTER --mmproj` writes the tower with it"
            } else {
                ""
            };
            parts.entry((part_of(&weight.name), format!("{}{way}", dropped.why))).or_default().push(module);
        }
    }
    let line = |((part, why), names): (&(&str, String), &Vec<&str>)| {
        let what = match names.len() {
            1 => format!("`{}`", escape(names[0])),
            n => format!("{n} tensors of `{}` ({})", escape(part), first_names(names)),
        };
        format!("the adapter's change of {what} is left out: {why}")
    };
    parts.iter().map(line).collect()
}

/// Formats up to three names, with an ellipsis if there are more.
pub(super) fn first_names(names: &[&str]) -> String {
    const MAX_NAMES: usize = 3;
    let shown: Vec<String> = names.iter().take(MAX_NAMES).map(|name| format!("`{name}`")).collect();
    format!("{}{}", shown.join(", "), if names.len() > MAX_NAMES { ", …" } else { "" })
}

/// Returns the part of a model that a tensor belongs to: the first word of its name other than `model` and
/// `language_model`.
fn part_of(name: &str) -> &str {
    name.split('.').find(|word| !matches!(*word, "model" | "language_model")).unwrap_or(name)
}

impl fmt::Display for OtherModalities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_tensors: usize = self.parts.iter().map(|part| part.1).sum();
        let tensors = |n: usize| if n == 1 { "tensor" } else { "tensors" };
        write!(f, "only the text model is written: {n_tensors} {} left out (", tensors(n_tensors))?;
        for (at, (name, n)) in self.parts.iter().take(MAX_PARTS).enumerate() {
            write!(f, "{}{n} of `{name}`", if at > 0 { ", " } else { "" })?;
        }
        let n_more = self.parts.len().saturating_sub(MAX_PARTS);
        if n_more > 0 {
            write!(f, " and those of {n_more} more parts")?;
        }
        f.write_str(")")?;
        if self.is_converted {
            f.write_str("; `gguf-convert hf2gguf DIR --mmproj` writes the towers to a file of their own")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_as_the_checkpoint_names_them() {
        for (name, part) in [
            ("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", "vision_tower"),
            ("model.vision_tower.x.weight", "vision_tower"),
            ("multi_modal_projector.linear_1.bias", "multi_modal_projector"),
            ("model.image_newline", "image_newline"),
            ("model", "model"),
        ] {
            assert_eq!(part_of(name), part);
        }
    }

    #[test]
    fn the_message_counts_and_stays_short() {
        let parts = |n: usize| OtherModalities {
            parts: (0..n).map(|i| (format!("p{i}"), i + 1)).collect(),
            is_converted: false,
        };
        let with_card = OtherModalities { is_converted: true, ..parts(1) };
        assert!(with_card.to_string().ends_with(
            "(1 of `p0`); `gguf-convert hf2gguf DIR --mmproj` writes the towers to a file of their own"
        ));
        assert_eq!(
            parts(2).to_string(),
            "only the text model is written: 3 tensors left out (1 of `p0`, 2 of `p1`)"
        );
        assert_eq!(parts(1).to_string(), "only the text model is written: 1 tensor left out (1 of `p0`)");
        assert!(parts(8).to_string().ends_with("6 of `p5` and those of 2 more parts)"));
    }
}
