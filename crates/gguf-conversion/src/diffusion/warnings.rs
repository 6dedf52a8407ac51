//! Warnings and notes about the checkpoint of an image or video model.

use super::PlannedTensor;
use crate::ConvertOptions;
use gguf_arch::diffusion::{DiffusionCard, DiffusionRules, NamePrefix, Setting, first_names};
use gguf_arch::{CardKind, DraftHeads};
use gguf_checkpoint::BareWeights;
use gguf_core::text::{escape, plural};
use gguf_dequant::ImageWeights;
use gguf_format::{Metadata, Value};

/// Returns the warning about entries of the header that the runtime reads and the file lacks.
pub(super) fn lost_entries(
    card: &DiffusionCard,
    has: impl Fn(&str) -> bool,
    entries: &[(String, String)],
) -> Option<String> {
    let is_read = card.copied_for.iter().any(|name| has(name));
    let is_lost = |key: &&String| is_read && !entries.iter().any(|(name, _)| name == *key);
    let lost = first_names(card.copied.iter().filter(is_lost).map(String::as_str))?;
    Some(format!(
        "{lost} is missing in the header of the checkpoint: the runtime reads the model's numbers from it; copy it from \
         the header of the original release, or add it with `--set KEY=str:TEXT`"
    ))
}

/// Returns the warning about a setting that runtimes do not find in the file.
pub(super) fn lost_setting(setting: &Setting) -> Option<String> {
    let Setting { file, key, way_out, .. } = setting;
    let way_out = way_out.as_ref()?;
    Some(format!(
        "{file}: `{key}`: runtimes do not find this setting in the GGUF file, and take another: {way_out}"
    ))
}

/// Returns the warning about tensors that only a few blocks have.
pub(super) fn of_odd(names: &[String]) -> Option<String> {
    first_names(names.iter().map(String::as_str)).map(|names| {
        format!("{names}: only in some blocks, and the blocks of such a model are alike: the others lack it, or no runtime reads it")
    })
}

/// Returns the warning about tensors that no known model of the architecture has.
pub(super) fn of_unknown<'n>(arch: &str, names: impl Iterator<Item = &'n str>) -> Option<String> {
    first_names(names).map(|names| {
        format!(
            "{names}: no known model of `{arch}` has such tensors: this may be another model or a newer version; check that your \
             runtime reads it before you publish the file"
        )
    })
}

/// Returns the warning about further denoising models of a pipeline, each of which is a file of its own.
pub(super) fn further_models(bare: &BareWeights) -> Option<String> {
    let names = bare.further_models();
    first_names(names.iter().map(String::as_str)).map(|names| {
        format!(
            "{names} of the pipeline holds another model, which is not in this file: convert that folder, too"
        )
    })
}

/// Returns the warnings about weights with factors.
pub(super) fn of_factors(weights: &ImageWeights) -> Vec<String> {
    let mut warnings = Vec::new();
    if weights.n_scaled() > 0 {
        let n = plural(weights.n_scaled() as u64, "weight");
        warnings.push(format!("{n} in FP8 with a scale: multiplied by it and rounded to BF16 first"));
    }
    if let Some(names) = first_names(weights.beside()) {
        warnings.push(format!(
            "{names}: beside a weight, without a known meaning: written as they are, and no runtime applies them; if \
             they change the weight, merge them first"
        ));
    }
    if let Some(keys) = first_names(weights.unknown_keys()) {
        warnings.push(format!(
            "{keys} in `comfy_quant`: without a known meaning, and not applied to the weights"
        ));
    }
    warnings
}

/// Returns the warning about FP8 weights that have no factor, next to others that have one.
pub(super) fn without_factors(weights: &ImageWeights) -> Option<String> {
    let names = weights.without_factors();
    first_names(names.iter().map(String::as_str)).map(|first| {
        format!(
            "{} in FP8 without a factor, in a checkpoint that has factors: as in ComfyUI, it is taken as 1; if the file is \
             incomplete, fetch it again: {first}",
            plural(names.len() as u64, "weight"),
        )
    })
}

/// Returns the note about a checkpoint that holds other models, too.
pub(super) fn left_out(names: &[&str], prefix: NamePrefix<'_>) -> Option<String> {
    let others: Vec<&str> = names.iter().copied().filter(|name| prefix.strip(name).is_none()).collect();
    if others.is_empty() {
        return None;
    }
    let mut modules: Vec<&str> = others.iter().filter_map(|name| name.split('.').next()).collect();
    modules.sort_unstable();
    modules.dedup();
    let listed: Vec<String> = modules.iter().take(4).map(|name| format!("`{}`", escape(name))).collect();
    let more = if modules.len() > 4 { ", ..." } else { "" };
    Some(format!(
        "the diffusion model is taken{}; {} of other models {} left out: {}{more}",
        prefix.text().map_or_else(String::new, |text| format!(" (`{}`)", escape(text))),
        plural(others.len() as u64, "tensor"),
        if others.len() == 1 { "is" } else { "are" },
        listed.join(", "),
    ))
}

/// Returns the warning about tensors that ComfyUI-GGUF does not load in their type.
pub(super) fn unloadable(rules: &DiffusionRules, tensors: &[PlannedTensor]) -> Option<String> {
    let metas = tensors.iter().map(|tensor| &tensor.meta).filter(|meta| rules.is_unloadable(meta));
    first_names(metas.map(|meta| meta.name.as_str())).map(|names| {
        format!(
            "{names}: a parameter in BF16 that belongs to no layer, which ComfyUI-GGUF does not load (nor from the \
             file of its own converter): convert with `--type f16`, and quantize that file"
        )
    })
}

/// Returns the warning about a name of the architecture that the user gave, by which runtimes do not know the model.
pub(super) fn other_architecture(card: &DiffusionCard, metadata: &Metadata) -> Option<String> {
    let given = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    (given != card.gguf).then(|| {
        format!(
            "`general.architecture` is `{}`, and the model is one of `{}`: runtimes refuse the file, or guess the model by its \
             tensors",
            escape(given),
            card.gguf
        )
    })
}

/// Returns the warning about options of language models.
pub(super) fn without_effect(options: &ConvertOptions) -> Option<String> {
    let given = [
        ("--metadata", options.metadata_file.is_some()),
        ("--vocab-only", options.vocab_only),
        ("--pre", options.pre.is_some()),
        ("--chat-template", options.chat_template.is_some()),
        ("--no-tokenizer", !options.tokenizer),
        ("--mistral-format", options.mistral_format),
        ("--rerank", options.rerank),
        ("--mmproj", options.kind != CardKind::Text),
        ("--mtp", options.heads == DraftHeads::Alone),
        ("--no-mtp", options.heads == DraftHeads::Dropped),
        ("--fuse-qkv", options.fuse.qkv),
        ("--fuse-gate-up-exps", options.fuse.gate_up_exps),
        ("--sentence-transformers-dense-modules", options.dense_modules),
        ("--target-model-dir", options.target_model_dir.is_some()),
        ("--annotate", options.annotate),
        ("--fp8-as-q8", options.fp8_as_q8),
    ];
    let names: Vec<String> = given.iter().filter(|row| row.1).map(|row| format!("`{}`", row.0)).collect();
    (!names.is_empty()).then(|| format!("without effect on an image or video model: {}", names.join(", ")))
}
