//! Files of vision and audio towers (`--mmproj`): what can be judged of them without running them.

use crate::gguf::{Metadata, Value};
use crate::verify::{Aspect, Finding, Report};

/// `general.architecture` of such files.
const CLIP: &str = "clip";
/// What every tower says of itself, behind `clip.vision.` or `clip.audio.`.
const SIZES: [&str; 5] =
    ["attention.head_count", "block_count", "embedding_length", "feed_forward_length", "projection_dim"];
/// What a vision tower says besides.
const OF_IMAGES: [&str; 4] = ["image_mean", "image_size", "image_std", "patch_size"];

/// True for a file of towers.
pub(super) fn is_towers(metadata: &Metadata) -> bool {
    metadata.get("general.architecture").and_then(Value::as_str) == Some(CLIP)
}

/// The keys that a runtime cannot do without.
pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    let has = |tower: &str| {
        metadata.get(&format!("clip.has_{tower}_encoder")).and_then(Value::as_bool) == Some(true)
    };
    let towers: Vec<&str> = ["vision", "audio"].into_iter().filter(|tower| has(tower)).collect();
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
    let finding = |key: String| Finding::error("required-keys", format!("key `{key}` is missing"));
    missing.into_iter().map(finding).collect()
}

/// Says why no text is run through towers, and what judges them.
pub(super) fn leave_out(report: &mut Report) {
    const ALONE: &str = "vision and audio towers are not run";
    for aspect in [Aspect::Perplexity, Aspect::Divergence] {
        report.not_judged(aspect, ALONE, "`--baseline` with the checkpoint, and `--weights-only`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tower_says_its_sizes_and_its_projector() {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", CLIP);
        assert!(is_towers(&metadata));
        assert_eq!(check(&metadata).len(), 1);
        metadata.set("clip.has_audio_encoder", true);
        assert_eq!(check(&metadata).len(), SIZES.len() + 1);
        metadata.set("clip.audio.projector_type", "qwen2a");
        for key in SIZES {
            metadata.set(format!("clip.audio.{key}"), 1u32);
        }
        assert!(check(&metadata).is_empty());
        metadata.set("clip.has_vision_encoder", true);
        let missing = check(&metadata);
        assert_eq!(missing.len(), SIZES.len() + OF_IMAGES.len() + 1, "{missing:?}");
    }
}
