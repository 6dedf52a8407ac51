//! Numbers of vision and audio towers that llama.cpp does not accept.

use super::{NOT_COMPUTED, NumberFault, NumericKeys, above_zero, not_numbers};
use crate::Value;

/// Value of `general.architecture` in files of towers.
pub(super) const ARCH: &str = "clip";

/// Largest integer that fits the runtime's own.
const MOST: u64 = i32::MAX as u64;
/// Integers of towers with the least and the largest that the runtime takes.
const RANGES: [(&str, u64, u64); 9] = [
    // 0: images of any size.
    ("vision.image_size", 0, 8192),
    ("vision.patch_size", 1, 65535),
    ("vision.embedding_length", 1, MOST),
    ("vision.projector.scale_factor", 1, 65535),
    ("vision.spatial_merge_size", 1, 65535),
    ("vision.window_size", 0, 4096),
    ("audio.embedding_length", 1, MOST),
    ("audio.projector.stack_factor", 1, MOST),
    (MELS, 1, 256),
];
const MELS: &str = "audio.num_mel_bins";
/// Projectors that read the samples themselves, in frames of this number.
const OF_SAMPLES: [&str; 2] = ["gemma4ua", "pockettts_spkenc"];
const EPSILONS: [(&str, bool); 2] =
    [("vision.attention.layer_norm_epsilon", true), ("audio.attention.layer_norm_epsilon", true)];

/// Returns the errors in the numbers of towers.
pub(super) fn faults(numbers: &NumericKeys<'_>) -> Vec<NumberFault> {
    let mut findings: Vec<NumberFault> =
        RANGES.iter().filter_map(|row| out_of_range(numbers, *row)).collect();
    findings.extend(["vision", "audio"].into_iter().filter_map(|tower| heads(numbers, tower)));
    findings.extend(above_zero(numbers, &EPSILONS));
    findings.extend(deviations(numbers));
    findings.extend(not_numbers(numbers, &EPSILONS));
    let is_set = |name: &str| numbers.value(name).and_then(Value::as_bool) == Some(true);
    if is_set("use_gelu") && is_set("use_silu") {
        findings.push(numbers.error("use_gelu", "and `clip.use_silu` are both true"));
    }
    findings
}

fn out_of_range(numbers: &NumericKeys<'_>, row: (&str, u64, u64)) -> Option<NumberFault> {
    let (name, least, most) = row;
    let found = numbers.number(name)?;
    let reads_samples = || {
        let projector = numbers.value("audio.projector_type").or_else(|| numbers.value("projector_type"));
        projector.and_then(Value::as_str).is_some_and(|projector| OF_SAMPLES.contains(&projector))
    };
    let most = if name == MELS && reads_samples() { MOST } else { most };
    let limits = if most == MOST { format!("{least} or more") } else { format!("{least} to {most}") };
    (!(least..=most).contains(&found)).then(|| numbers.error(name, &format!("is {found}, not {limits}")))
}

/// A tower with blocks has heads.
fn heads(numbers: &NumericKeys<'_>, tower: &str) -> Option<NumberFault> {
    let name = format!("{tower}.attention.head_count");
    numbers.number(&format!("{tower}.block_count")).filter(|&n| n > 0)?;
    (numbers.number(&name)? == 0).then(|| numbers.error(&name, "is 0, and there are blocks"))
}

/// What the values of pixels are divided by.
fn deviations(numbers: &NumericKeys<'_>) -> Option<NumberFault> {
    const NAME: &str = "vision.image_std";
    let list = numbers.value(NAME)?.as_array()?;
    let mut values = (0..list.len()).filter_map(|at| list.get(at)?.as_f64());
    values.any(|value| value <= 0.0).then(|| NumberFault {
        outcome: NOT_COMPUTED,
        ..numbers.error(NAME, "has a number that is not above 0")
    })
}

#[cfg(test)]
mod tests {
    use super::super::number_faults;
    use crate::{Metadata, Value};

    fn found(key: &str, value: impl Into<Value>) -> String {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "clip");
        metadata.set("clip.use_gelu", true);
        metadata.set("clip.audio.projector_type", "qwen2a");
        for tower in ["vision", "audio"] {
            metadata.set(format!("clip.{tower}.block_count"), 2u32);
        }
        metadata.set(format!("clip.{key}"), value.into());
        number_faults(&metadata).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn numbers_of_towers_are_those_that_a_runtime_takes() {
        for (key, wrong, right) in [
            ("vision.image_size", 8193u32, 0u32),
            ("vision.patch_size", 0, 14),
            ("vision.embedding_length", 0, 64),
            ("vision.projector.scale_factor", 0, 2),
            ("vision.spatial_merge_size", 65536, 2),
            ("vision.window_size", 4097, 112),
            ("vision.attention.head_count", 0, 4),
            ("audio.attention.head_count", 0, 4),
            ("audio.num_mel_bins", 640, 128),
            ("audio.projector.stack_factor", 0, 8),
        ] {
            let message = found(key, wrong);
            assert!(message.starts_with(&format!("key `clip.{key}` is {wrong}, ")), "{key}: {message}");
            assert!(message.ends_with("llama.cpp does not load the file"), "{message}");
            assert_eq!(found(key, right), "", "{key}");
        }
        for (key, wrong) in [
            ("vision.attention.layer_norm_epsilon", Value::from(f32::NAN)),
            ("audio.attention.layer_norm_epsilon", Value::from(-1.0f32)),
            ("vision.image_mean", vec![0.5, f32::INFINITY, 0.5].into()),
            ("vision.image_std", vec![0.5f32, 0.0, 0.5].into()),
        ] {
            let message = found(key, wrong);
            assert!(message.ends_with("computes no usable numbers with it"), "{key}: {message}");
        }
        assert_eq!(found("vision.image_std", vec![0.5f32; 3]), "");
        assert!(found("use_silu", true).contains("`clip.use_gelu` and `clip.use_silu` are both true"));
    }
}
