//! Options of a conversion.

use std::path::PathBuf;

use regex::Regex;

use crate::Codes;
use gguf_arch::{CardKind, DraftHeads, Fuse, OutType};
use gguf_core::limits::Limits;
use gguf_core::simd::SimdLevel;
use gguf_dequant::msmodelslim::OffsetSign;
use gguf_format::Value;

/// Options of a conversion.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Type of the file; `None` selects the one that suits the checkpoint.
    pub file_type: Option<OutType>,
    /// True if the conversion is quantized afterwards. Of an image or video model, the types that suit the checkpoint are
    /// then used in place of [`file_type`](Self::file_type).
    pub then_quantized: bool,
    /// Treatment of weights that are stored as integer codes.
    pub codes: Codes,
    /// Sign convention of the offsets of an msModelSlim checkpoint.
    pub offset_sign: OffsetSign,
    /// Part of the model to write: the text model, or the towers of other modalities.
    pub kind: CardKind,
    /// Additional card, which takes precedence over the embedded ones.
    pub card: Option<PathBuf>,
    /// Name of the model instead of the derived one.
    pub model_name: Option<String>,
    /// JSON file with `general.*` keys that override the derived ones.
    pub metadata_file: Option<PathBuf>,
    /// Keys that are set at the end, in order; a later one wins.
    pub set: Vec<(String, Value)>,
    /// True to write a vocabulary.
    pub tokenizer: bool,
    /// True to write metadata and vocabulary without tensors.
    pub vocab_only: bool,
    /// Name of the pre-tokenizer instead of the identified one.
    pub pre: Option<String>,
    /// Chat template file instead of the checkpoint's.
    pub chat_template: Option<PathBuf>,
    /// True to read `params.json` and `consolidated*.safetensors` even if there is a `config.json` with weights of its
    /// own.
    pub mistral_format: bool,
    /// Directory of the target model of a draft model.
    pub target_model_dir: Option<PathBuf>,
    /// True to include the dense modules of sentence-transformers.
    pub dense_modules: bool,
    /// True to treat the model as a reranker, regardless of its files.
    pub rerank: bool,
    /// Treatment of draft heads (multi-token prediction).
    pub heads: DraftHeads,
    /// Tensors that are joined after mapping.
    pub fuse: Fuse,
    /// True to write keys `gguf_foundry.*` for numbers that change the result and for which GGUF has no key.
    pub annotate: bool,
    /// Patterns of names of checkpoint tensors to leave out.
    pub drop: Vec<Regex>,
    /// True to convert matrices of 8-bit floats to Q8_0, regardless of the file's type.
    pub fp8_as_q8: bool,
    /// True to accept NaN, infinity and overflow.
    pub allow_nonfinite: bool,
    /// Vector instructions to use.
    pub level: SimdLevel,
    /// Limits on input headers.
    pub limits: Limits,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            file_type: None,
            then_quantized: false,
            codes: Codes::Card,
            offset_sign: OffsetSign::Auto,
            kind: CardKind::Text,
            card: None,
            model_name: None,
            metadata_file: None,
            set: Vec::new(),
            tokenizer: true,
            vocab_only: false,
            pre: None,
            chat_template: None,
            mistral_format: false,
            rerank: false,
            dense_modules: false,
            target_model_dir: None,
            heads: DraftHeads::Kept,
            fuse: Fuse::default(),
            annotate: false,
            drop: Vec::new(),
            fp8_as_q8: false,
            allow_nonfinite: false,
            level: SimdLevel::detect(),
            limits: Limits::default(),
        }
    }
}
