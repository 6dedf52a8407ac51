//! What a conversion is asked for.

use std::path::PathBuf;

use regex::Regex;

use crate::arch::{CardKind, Fuse, Heads, OutType};
use crate::convert::Codes;
use crate::core::limits::Limits;
use crate::core::simd::SimdLevel;
use crate::dequant::msmodelslim::OffsetSign;
use crate::gguf::Value;

/// Options of a conversion.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Type of the file; `None` takes the one that suits the checkpoint.
    pub file_type: Option<OutType>,
    /// What becomes of weights that are stored as integer codes.
    pub codes: Codes,
    /// How the offsets of an msModelSlim checkpoint are meant.
    pub offset_sign: OffsetSign,
    /// What of the model is written: the text model, or the towers of other modalities.
    pub kind: CardKind,
    /// A card to use besides the embedded ones, before them.
    pub card: Option<PathBuf>,
    /// Name of the model instead of the derived one.
    pub model_name: Option<String>,
    /// JSON file with `general.*` keys that override the derived ones.
    pub metadata_file: Option<PathBuf>,
    /// Keys that are set at the end, in order; a later one wins.
    pub set: Vec<(String, Value)>,
    /// Whether a vocabulary is written.
    pub tokenizer: bool,
    /// Write metadata and vocabulary without tensors.
    pub vocab_only: bool,
    /// Name of the pre-tokenizer instead of the identified one.
    pub pre: Option<String>,
    /// Chat template file instead of the checkpoint's.
    pub chat_template: Option<PathBuf>,
    /// Read `params.json` and `consolidated*.safetensors` also where there is a `config.json` with weights of its own.
    pub mistral_format: bool,
    /// Directory of the model that a draft model works for.
    pub target_model_dir: Option<PathBuf>,
    /// Take the dense modules of sentence-transformers into the file.
    pub dense_modules: bool,
    /// The model is a reranker, whatever its files say.
    pub rerank: bool,
    /// What becomes of draft heads (multi-token prediction).
    pub heads: Heads,
    /// Tensors that are joined after mapping.
    pub fuse: Fuse,
    /// Write keys `gguf_foundry.*` for numbers that change the result and for which GGUF has no key.
    pub annotate: bool,
    /// Tensors of the checkpoint that are left out, by their names.
    pub drop: Vec<Regex>,
    /// Matrices of 8-bit floats become Q8_0, whatever the type of the file.
    pub fp8_as_q8: bool,
    /// Let NaN, infinity and overflow through.
    pub allow_nonfinite: bool,
    /// Vector instructions to use.
    pub level: SimdLevel,
    /// Caps on input headers.
    pub limits: Limits,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            file_type: None,
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
            heads: Heads::Kept,
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
