//! File names of checkpoints: the files that are fetched whole, and the names to try without a list.

/// Maximum size of a file, other than weights, that is fetched whole, in bytes (a vocabulary of a million tokens has 60
/// MB).
pub(super) const SMALL_BYTES: u64 = 512 << 20;

/// Name suffixes of files with weights, in any case.
const WEIGHTS: &[&str] = &[".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".flm", ".gguf"];

/// Name suffixes of other files that are read.
const SMALL: &[&str] =
    &[".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".vocab", ".bpe", ".spm", ".yaml"];

/// Folders of a repository that are read; others belong to other programs (`onnx`, `original`).
const FOLDERS: &[&str] = &[
    "0_Transformer",
    "1_Dense",
    "1_Pooling",
    "2_Dense",
    "3_Dense",
    "additional_chat_templates",
    "audio_tokenizer",
    // Denoising models of image and video pipelines, and what tells their prediction.
    "scheduler",
    "transformer",
    "unet",
];

/// Names to try on a server that does not list its files.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    include_str!("names.txt").lines()
}

/// Treatment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRole {
    /// Fetched whole at once.
    Small,
    /// Read by ranges.
    Weights,
    /// Not read.
    Other,
}

/// Returns the role of a file with this name and length.
pub(super) fn role(name: &str, n_bytes: u64) -> FileRole {
    if let Some((folder, _)) = name.rsplit_once('/')
        && !FOLDERS.contains(&folder)
    {
        return FileRole::Other;
    }
    let lower = name.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|end| lower.ends_with(end));
    if ends(WEIGHTS) {
        FileRole::Weights
    } else if ends(SMALL) && n_bytes <= SMALL_BYTES {
        FileRole::Small
    } else {
        FileRole::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_roles() {
        for (name, expected) in [
            ("config.json", FileRole::Small),
            ("tokenizer.model", FileRole::Small),
            ("1_Pooling/config.json", FileRole::Small),
            ("2_Dense/model.safetensors", FileRole::Weights),
            ("scheduler/scheduler_config.json", FileRole::Small),
            ("model-00001-of-00002.safetensors", FileRole::Weights),
            ("consolidated.00.PTH", FileRole::Weights),
            ("original/params.json", FileRole::Other),
            ("onnx/model.onnx", FileRole::Other),
            ("picture.png", FileRole::Other),
        ] {
            assert_eq!(role(name, 1000), expected, "{name}");
        }
        assert_eq!(role("huge.json", SMALL_BYTES + 1), FileRole::Other);
        assert!(known().count() > 40 && known().all(|name| role(name, 1) != FileRole::Other));
    }
}
