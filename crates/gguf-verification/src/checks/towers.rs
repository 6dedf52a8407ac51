//! Checks of vision and audio tower files (`--mmproj`) that need no run.

mod sizes;

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Aspect, Check, Finding, Report};
use gguf_arch::{TowerFile, block_count, block_number, tower_gaps};
use gguf_core::TensorMeta;
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};

const TENSORS: Check = Check::Towers;
const TOWERS: [&str; 2] = ["vision", "audio"];

/// Value of `general.architecture` in such files.
const CLIP: &str = "clip";
/// Keys that every tower must declare, after `clip.vision.` or `clip.audio.`.
const SIZES: [&str; 5] =
    ["attention.head_count", "block_count", "embedding_length", "feed_forward_length", "projection_dim"];
/// Further keys that a vision tower must declare.
const OF_IMAGES: [&str; 4] = ["image_mean", "image_size", "image_std", "patch_size"];

/// Projectors that llama.cpp 0.5.0 knows (`PROJECTOR_TYPE_NAMES` of its clip-impl.h).
const PROJECTORS: &str = "mlp ldp ldpv2 resampler adapter qwen2vl_merger qwen2.5vl_merger qwen3vl_merger ling3vl step3vl gemma3 gemma3nv \
    gemma3na gemma4v gemma4a gemma4uv gemma4ua phi4 idefics3 pixtral ultravox internvl llama4 qwen2a qwen3a glma \
    qwen2.5o voxtral meralion musicflamingo lfm2 kimivl paddleocr lightonocr cogvlm janus_pro dots_ocr dots3note_v \
    dots3note_a deepseekocr deepseekocr2 deepseek4v lfm2a glm4v glm5v youtuvl yasa2 kimik25 nemotron_v2_vl \
    exaone4_5 hunyuanvl minicpmv4_6 granite_speech mimovl minimax_m3 granite4_vision mimo_audio parakeet \
    qwen3tts_spkenc qwen3tts_gen pockettts_spkenc pockettts_gen muse-glimmer";

pub(crate) fn is_towers(metadata: &Metadata) -> bool {
    metadata.get("general.architecture").and_then(Value::as_str) == Some(CLIP)
}

/// Checks the keys and tensors of towers that a runtime requires.
pub(super) fn check(file: &CheckedFile<'_>) -> Vec<Finding> {
    if file.content != FileContent::Towers {
        return Vec::new();
    }
    let (metadata, tensors) = (file.metadata, file.tensors());
    let mut findings = check_keys(metadata);
    if tensors.is_empty() {
        findings.push(Finding::error(TENSORS, "the file has no tensors"));
        return findings;
    }
    if findings.is_empty() {
        findings.extend(check_tensors(metadata, tensors));
        findings.extend(sizes::check(metadata, tensors));
    }
    findings
}

fn has(metadata: &Metadata, tower: &str) -> bool {
    metadata.get(&format!("clip.has_{tower}_encoder")).and_then(Value::as_bool) == Some(true)
}

fn check_keys(metadata: &Metadata) -> Vec<Finding> {
    let towers: Vec<&str> = TOWERS.into_iter().filter(|tower| has(metadata, tower)).collect();
    let mut missing: Vec<String> = Vec::new();
    if towers.is_empty() {
        missing.push("clip.has_vision_encoder` or `clip.has_audio_encoder".to_owned());
    }
    for tower in towers {
        let of_images = if tower == "vision" { &OF_IMAGES[..] } else { &[] };
        let keys = SIZES.iter().chain(of_images).map(|key| format!("clip.{tower}.{key}"));
        missing.extend(keys.filter(|key| !metadata.contains(key)));
        let projector = format!("clip.{tower}.projector_type");
        if !metadata.contains("clip.projector_type") && !metadata.contains(&projector) {
            missing.push(projector);
        }
    }
    // Converters of LLaVA wrote it from 2024 on.
    let is_llava = metadata.get("clip.has_llava_projector").and_then(Value::as_bool) == Some(true);
    let advice = |key: &str| {
        let adds = "; for LLaVA, `gguf-inspect set FILE clip.projector_type=mlp` adds it";
        if key.ends_with("projector_type") && is_llava { adds } else { "" }
    };
    let finding =
        |key: String| Finding::error(Check::RequiredKeys, format!("key `{key}` is missing{}", advice(&key)));
    missing.into_iter().map(finding).collect()
}

/// Records why no text is run through towers, and what judges them instead.
pub(crate) fn leave_out(report: &mut Report) {
    const ALONE: &str = "vision and audio towers are not run";
    for aspect in [Aspect::Perplexity, Aspect::Divergence] {
        report.not_judged(aspect, ALONE, "`--baseline` with the checkpoint, and `--weights-only`");
    }
}

/// Checks the tensors of each block and of the projector.
fn check_tensors(metadata: &Metadata, tensors: &[TensorMeta]) -> Vec<Finding> {
    let mut projectors = Vec::new();
    let mut blocks = [None; 2];
    for (tower, n_blocks) in TOWERS.into_iter().zip(&mut blocks).filter(|(tower, _)| has(metadata, tower)) {
        let own = metadata.get(&format!("clip.{tower}.projector_type"));
        projectors.extend(own.or_else(|| metadata.get("clip.projector_type")).and_then(Value::as_str));
        *n_blocks =
            Some(metadata.get(&format!("clip.{tower}.block_count")).and_then(Value::as_u64).unwrap_or(0));
    }
    projectors.dedup();
    let names = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let file = TowerFile { names, vision: blocks[0], audio: blocks[1] };
    let is_unknown = |name: &&&str| !PROJECTORS.split(' ').any(|known| known == **name);
    if let Some(name) = projectors.iter().find(is_unknown) {
        let what = format!(
            "projector `{}`: llama.cpp knows none of this name, and loads no such file",
            escape(name)
        );
        return vec![Finding::error(TENSORS, what)];
    }
    let Some(gaps) = tower_gaps(&projectors, &file) else {
        let what = format!(
            "what a tower with the projector `{}` needs is not known",
            escape(&projectors.join("`, `"))
        );
        return vec![Finding::unchecked(TENSORS, what)];
    };
    let mut findings: Vec<Finding> = gaps
        .missing
        .iter()
        .map(|name| {
            Finding::error(TENSORS, format!("tensor `{name}` is missing, which a tower of this kind needs"))
        })
        .collect();
    for ((tower, head), n_blocks) in TOWERS.into_iter().zip(["v.blk.", "a.blk."]).zip(blocks) {
        let Some(n_blocks) = n_blocks else { continue };
        let key = format!("clip.{tower}.block_count");
        let beyond = |name: &&str| block_number(name, head).is_some_and(|block| block >= n_blocks);
        if let Some(name) = file.names.iter().copied().find(beyond) {
            let message = format!("`{key}` is {n_blocks}, and there is `{}`", escape(name));
            findings.push(Finding::error(TENSORS, message));
        }
        let n_found = block_count(file.names.iter().copied(), head);
        if gaps.may_be_short && gaps.missing.is_empty() && n_found < n_blocks {
            let message = format!(
                "`{key}` is {n_blocks}, and the file has {n_found} of {n_blocks} blocks: no runtime loads it"
            );
            findings.push(Finding::warning(TENSORS, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_of_strangers() {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", CLIP);
        metadata.set("clip.has_vision_encoder", true);
        metadata.set("clip.projector_type", "gemma3");
        metadata.set("clip.vision.block_count", 1u32);
        let tensor = |name: &str| TensorMeta {
            name: name.to_owned(),
            shape: gguf_core::Shape::new(vec![4]).unwrap(),
            ty: gguf_core::GgmlType::F32,
        };
        let found = check_tensors(&metadata, &[tensor("v.blk.18446744073709551615.\u{1b}x")]);
        let message = found.iter().find(|finding| finding.message.contains("and there is")).unwrap();
        assert!(!message.message.contains('\u{1b}'), "{message:?}");
        metadata.set("clip.projector_type", "\u{1b}[31m");
        let found = check_tensors(&metadata, &[tensor("v.blk.0.x")]);
        assert!(
            found[0].message.contains("knows none of this name") && !found[0].message.contains('\u{1b}'),
            "{found:?}"
        );
        // Known to the runtime, but not written here.
        metadata.set("clip.projector_type", "ldp");
        let found = check_tensors(&metadata, &[tensor("v.blk.0.x")]);
        assert!(found[0].message.contains("is not known"), "{found:?}");
    }

    #[test]
    fn a_tower_says_its_sizes_and_its_projector() {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", CLIP);
        assert!(is_towers(&metadata));
        assert_eq!(check_keys(&metadata).len(), 1);
        metadata.set("clip.has_audio_encoder", true);
        assert_eq!(check_keys(&metadata).len(), SIZES.len() + 1);
        metadata.set("clip.audio.projector_type", "qwen2a");
        for key in SIZES {
            metadata.set(format!("clip.audio.{key}"), 1u32);
        }
        assert!(check_keys(&metadata).is_empty());
        metadata.set("clip.has_vision_encoder", true);
        let missing = check_keys(&metadata);
        assert_eq!(missing.len(), SIZES.len() + OF_IMAGES.len() + 1, "{missing:?}");
    }
}
