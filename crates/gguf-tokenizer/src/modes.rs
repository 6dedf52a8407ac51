//! Modes of reading a vocabulary: one file per family, which converts tokenizer files to tokens and keys.

mod added_tokens_decoder;
mod bpe;
mod byte_fallback;
mod chatglm;
mod gemma4;
mod hybrid_dna;
mod in_memory;
mod mistral;
mod plamo;
mod preparation;
mod rwkv;
mod spm;
mod tiktoken;
mod unigram;
mod wordpiece;
mod xlmr;

pub(super) use self::spm::{MODEL_FILES, SENTINEL};

use crate::Result;
use gguf_format::Metadata;

use super::chat_template::ChatTemplates;
use super::emit::{TokenList, n_tokens};
use super::files::Directory;
use super::given::GivenVocabulary;
use super::hf_json::HfJson;
use super::special::SpecialTokens;
use super::{Mode, ModeRequest, SpecialToken, Template, TokenizerError, TokenizerRequest, TokenizerWarning};

/// Inputs and outputs of a mode.
pub(super) struct Context<'a> {
    pub(super) directory: Directory<'a>,
    pub(super) request: &'a TokenizerRequest,
    pub(super) mode: &'a ModeRequest,
    /// `tokenizer.json`, read once for all modes.
    pub(super) hf: Option<&'a HfJson>,
    pub(super) out: &'a mut Metadata,
    pub(super) warnings: &'a mut Vec<TokenizerWarning>,
}

/// Result of trying a mode.
pub(super) enum Attempt {
    /// The keys are written.
    Done,
    /// The files do not exist, or belong to another mode.
    Absent(String),
}

pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    match context.mode.mode {
        Mode::None => {
            context.out.set("tokenizer.ggml.model", "none");
            Ok(Attempt::Done)
        }
        Mode::Bpe | Mode::BpePlainAdded | Mode::Whitespace => bpe::run(context),
        Mode::LlamaHf => byte_fallback::run_llama_hf(context),
        Mode::SpmXverse => byte_fallback::run_xverse(context),
        Mode::Spm | Mode::SpmPhi3 | Mode::SpmArctic | Mode::SpmInternlm2 | Mode::SpmInternlm3 => {
            spm::run(context)
        }
        Mode::SpmChatglm1 => chatglm::run_first(context),
        Mode::SpmChatglm3 => chatglm::run(context),
        Mode::Tiktoken => tiktoken::run(context),
        Mode::Unigram => unigram::run(context),
        Mode::Xlmr => xlmr::run(context),
        Mode::WordPiece => wordpiece::run(context),
        Mode::Gemma4 => gemma4::run(context),
        Mode::HybridDna => hybrid_dna::run(context),
        Mode::RwkvWorld => rwkv::run(context),
        Mode::Plamo => plamo::run(context),
        Mode::Mistral => mistral::run(context),
        // Earlier modes of a card look for the checkpoint's own files.
        Mode::Builtin => Err(TokenizerError::BuiltinVocabulary { path: context.directory.path().to_owned() }),
    }
}

/// Writes the keys of a vocabulary in memory.
pub(super) fn run_given(context: &mut Context<'_>, vocabulary: &GivenVocabulary) -> Result<Attempt> {
    in_memory::run(context, vocabulary)
}

impl Context<'_> {
    /// Returns the number of rows of the embedding, if known.
    fn n_rows(&self) -> Option<u64> {
        self.request.rows
    }

    /// Returns the number of tokens that have a row and a place in a list of the declared size, if known.
    fn n_places(&self) -> Option<u64> {
        let size = self.request.size.map(|size| n_tokens(self.request, size));
        self.request.rows.into_iter().chain(size).min()
    }

    /// Returns the number of rows, or the declared size of a model without weights.
    fn n_kept(&self) -> Option<u64> {
        self.n_rows().or_else(|| self.n_places())
    }

    /// Collects the special tokens named by files and card.
    fn special(&mut self, tokens: &TokenList) -> Result<SpecialTokens> {
        self.special_of(tokens, self.hf)
    }

    /// Collects the special tokens, with those of a file in the form of `tokenizer.json`.
    fn special_of(&mut self, tokens: &TokenList, hf: Option<&HfJson>) -> Result<SpecialTokens> {
        let roles = self.request.types.as_deref();
        let mut special = SpecialTokens::read(&self.directory, hf, tokens, roles, self.warnings)?;
        for (role, value) in &self.mode.special {
            if special.id(role).is_none() {
                let id = self.special_id(tokens, role, value)?;
                special.set(role, id, self.warnings);
            }
        }
        for (role, value) in &self.request.force {
            special.force(role, self.special_id(tokens, role, value)?);
        }
        match &self.request.template {
            Template::Files => {}
            Template::None => special.chat = ChatTemplates::None,
            Template::Given(text) => special.chat = ChatTemplates::One(text.clone()),
        }
        Ok(special)
    }

    fn special_id(&self, tokens: &TokenList, role: &str, value: &SpecialToken) -> Result<u64> {
        match value {
            SpecialToken::Id(id) => Ok(u64::from(*id)),
            SpecialToken::Text(token) => tokens.id(token).ok_or_else(|| TokenizerError::UnknownSpecial {
                path: self.directory.path().to_owned(),
                role: role.to_owned(),
                token: token.clone(),
            }),
        }
    }
}
