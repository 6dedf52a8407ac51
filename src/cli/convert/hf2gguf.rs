//! `gguf-convert hf2gguf`: converts a Hugging Face checkpoint.

use std::path::PathBuf;

use clap::Args;

use crate::arch::{CardKind, DraftHeads, Fuse};
use crate::cli::convert::to_gguf::{ToGguf, check_tower_types};
use crate::cli::remote::RemoteArgs;
use crate::cli::{Exit, Session, UsageError};
use crate::convert::ConvertOptions;
use crate::job::{JobInput, JobTypes};

/// Ids of options that apply to the text model only.
const TEXT_ONLY: [&str; 12] = [
    "target_model_dir",
    "rerank",
    "sentence_transformers_dense_modules",
    "no_mtp",
    "mtp",
    "fuse_qkv",
    "fuse_gate_up_exps",
    "annotate",
    "pre",
    "chat_template",
    "vocab_only",
    "target",
];

/// Arguments of `hf2gguf`.
#[derive(Debug, Args)]
pub(super) struct Hf2gguf {
    /// Directory of the checkpoint: config.json, weights, tokenizer files; a PyTorch file in one; file or directory of
    /// an image or video model; or a model on a server: ORG/NAME or ORG/NAME@REVISION of the Hugging Face hub,
    /// https://HOST/DIR, with /FILE.safetensors for one of several image models
    dir: PathBuf,
    /// Read a model in Mistral's own format (params.json, consolidated*.safetensors) although its directory has Hugging
    /// Face's files too
    #[arg(long)]
    mistral_format: bool,
    /// Directory of the model that a draft model (EAGLE-3, DFlash, DSpark) was trained for: its configuration and
    /// vocabulary are read
    #[arg(long, value_name = "DIR")]
    target_model_dir: Option<PathBuf>,
    /// Convert a decoder as a reranker: scores for yes and no in place of the output; recognized by name as well
    #[arg(long)]
    rerank: bool,
    /// Include the dense layers of sentence-transformers that follow an embedding model (2_Dense, 3_Dense)
    #[arg(long)]
    sentence_transformers_dense_modules: bool,
    /// Leave out draft heads (multi-token prediction)
    #[arg(long, visible_alias = "no-nextn", conflicts_with = "mtp")]
    no_mtp: bool,
    /// Write the draft heads alone, for speculative decoding with the model [default name: mtp-NAME-TYPE.gguf]
    #[arg(long)]
    mtp: bool,
    /// Write the vision and audio towers, with what joins them to the text model, instead of the text model [default
    /// name: mmproj-NAME-TYPE.gguf]
    #[arg(long, conflicts_with_all = TEXT_ONLY)]
    mmproj: bool,
    /// Join the tensors of queries, keys and values of each block into one
    #[arg(long)]
    fuse_qkv: bool,
    /// Join the tensors of the experts' gates and ups of each block into one
    #[arg(long)]
    fuse_gate_up_exps: bool,
    /// Write matrices that the checkpoint has as 8-bit floats (FP8) as q8_0, and the rest in the type of the file
    #[arg(long)]
    fp8_as_q8: bool,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    pub(super) to_gguf: ToGguf,
}

impl Hf2gguf {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let model = self.remote.directory(session, &self.dir)?;
        let target_model = self.remote.optional(session, self.target_model_dir.as_deref())?;
        self.remote.check_use([&model].into_iter().chain(&target_model))?;
        let adjust = |types: &JobTypes, options: &mut ConvertOptions| {
            if self.fp8_as_q8 && !matches!(types, JobTypes::Plain { .. }) {
                let text = "`--fp8-as-q8` goes with f32, f16, bf16, q8_0, tq1_0, tq2_0 and auto only";
                return Err(UsageError(text.to_owned()).into());
            }
            self.to_gguf.refuse_with_vocabulary_alone(&[
                ("--fuse-qkv", self.fuse_qkv),
                ("--fuse-gate-up-exps", self.fuse_gate_up_exps),
            ])?;
            if self.mmproj {
                check_tower_types(types)?;
            }
            if self.mtp && self.to_gguf.is_calibrated() {
                let text = "`--calibrate` runs the model: draft heads alone (`--mtp`) are none";
                return Err(UsageError(text.to_owned()).into());
            }
            options.kind = if self.mmproj { CardKind::Mmproj } else { CardKind::Text };
            options.mistral_format = self.mistral_format;
            options.target_model_dir = target_model.as_ref().map(|target| target.path().to_owned());
            options.rerank = self.rerank;
            options.dense_modules = self.sentence_transformers_dense_modules;
            options.heads = match (self.no_mtp, self.mtp) {
                (true, _) => DraftHeads::Dropped,
                (false, true) => DraftHeads::Alone,
                (false, false) => DraftHeads::Kept,
            };
            options.fuse = Fuse { qkv: self.fuse_qkv, gate_up_exps: self.fuse_gate_up_exps };
            options.fp8_as_q8 = self.fp8_as_q8;
            Ok(())
        };
        let input = JobInput::Checkpoint(model.path().to_owned());
        self.to_gguf.run(session, input, model.output(), adjust)?;
        Ok(Exit::Done)
    }
}
