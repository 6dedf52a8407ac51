//! Errors of edits.

use std::path::PathBuf;

use crate::edit::Objection;
use gguf_checkpoint::json::JsonError;
use gguf_core::Hint;
use gguf_core::output::EditLockError;
use gguf_core::text::escape;
use gguf_format::{AssignError, GgufError, WriteError};

/// Reasons why an edit was not made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum EditError {
    #[error(transparent)]
    Open(#[from] GgufError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Assign(#[from] AssignError),
    #[error("key `{}`: {error}", escape(key))]
    ValueFile { key: String, error: std::io::Error },
    #[error("`{}`: `ROLE=TOKEN` expected, for example `eos=<|im_end|>`", escape(text))]
    SpecialForm { text: String },
    #[error("unknown role `{}` of a special token; there are {known}", escape(found))]
    Role { found: String, known: String },
    #[error("{}: no vocabulary", path.display())]
    NoVocabulary { path: PathBuf },
    #[error("{}: no token `{}` in the vocabulary", path.display(), escape(token))]
    NoToken { path: PathBuf, token: String, nearest: Option<String> },
    #[error("chat template: {error}")]
    TemplateFile { path: PathBuf, error: std::io::Error },
    #[error("{}: {error}", path.display())]
    TemplateJson { path: PathBuf, error: JsonError },
    #[error("{}: offset {offset}: not UTF-8", path.display())]
    TemplateUtf8 { path: PathBuf, offset: usize },
    #[error("{}: no chat template in it", path.display())]
    NoTemplate { path: PathBuf },
    #[error("{}: no key `{}`", path.display(), escape(key))]
    NoKey { path: PathBuf, key: String, nearest: Option<String> },
    #[error("{}: key `{}` belongs to {}", path.display(), escape(key), home.display())]
    OtherPart { path: PathBuf, key: String, home: PathBuf },
    #[error("{}: {}", path.display(), all(objections))]
    Refused { path: PathBuf, objections: Vec<Objection> },
    #[error(transparent)]
    Lock(#[from] EditLockError),
    #[error("{}: changed by another program since it was read; nothing was written", path.display())]
    Changed { path: PathBuf },
    #[error("`{}`: `OLD=NEW` expected, two names of a tensor", escape(text))]
    RenameForm { text: String },
    #[error("bad expression `{}`: {error}", escape(pattern))]
    Pattern { pattern: String, error: Box<regex::Error> },
    #[error("{}: no tensor `{}`", path.display(), escape(tensor))]
    NoTensor { path: PathBuf, tensor: String, nearest: Option<String> },
    #[error("{}: there is a tensor `{}` already", path.display(), escape(tensor))]
    TensorTwice { path: PathBuf, tensor: String },
    #[error("{}: tensor name `{}` has {} bytes, at most {most} are allowed", path.display(), escape(tensor), tensor.len())]
    NameLength { path: PathBuf, tensor: String, most: u64 },
    #[error("{}: no tensor has a name in which `{}` is found", path.display(), escape(pattern))]
    NoMatch { path: PathBuf, pattern: String },
    #[error("{}: one part of a split model: tensors are renamed and dropped in the joined file only", path.display())]
    OfParts { path: PathBuf },
    #[error("{}: not a part of the same model as {}", path.display(), first.display())]
    OtherModel { path: PathBuf, first: PathBuf },
    #[error("{}: not a part of a split file", path.display())]
    NotAPart { path: PathBuf },
}

fn all(objections: &[Objection]) -> String {
    objections.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl EditError {
    /// Returns true if the arguments are wrong, not a file.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Assign(_)
            | Self::SpecialForm { .. }
            | Self::Role { .. }
            | Self::RenameForm { .. }
            | Self::Pattern { .. } => true,
            Self::Open(_)
            | Self::Write(_)
            | Self::ValueFile { .. }
            | Self::NoVocabulary { .. }
            | Self::NoToken { .. }
            | Self::TemplateFile { .. }
            | Self::TemplateJson { .. }
            | Self::TemplateUtf8 { .. }
            | Self::NoTemplate { .. }
            | Self::NoKey { .. }
            | Self::OtherPart { .. }
            | Self::Refused { .. }
            | Self::Lock(_)
            | Self::Changed { .. }
            | Self::NoTensor { .. }
            | Self::TensorTwice { .. }
            | Self::NameLength { .. }
            | Self::NoMatch { .. }
            | Self::OfParts { .. }
            | Self::OtherModel { .. }
            | Self::NotAPart { .. } => false,
        }
    }
}

impl Hint for EditError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Open(error) => return error.hints(),
            Self::Write(error) => return error.hints(),
            Self::TemplateUtf8 { .. } => {
                "save it as UTF-8; `>` of Windows PowerShell writes UTF-16".to_owned()
            }
            Self::Lock(EditLockError::Busy { .. }) => "try again when it is done".to_owned(),
            Self::Assign(_)
            | Self::SpecialForm { .. }
            | Self::Role { .. }
            | Self::NoVocabulary { .. }
            | Self::TemplateFile { .. }
            | Self::TemplateJson { .. }
            | Self::RenameForm { .. }
            | Self::Pattern { .. }
            | Self::TensorTwice { .. }
            | Self::NameLength { .. }
            | Self::Lock(_) => return Vec::new(),
            Self::NoTensor { nearest: Some(nearest), .. } | Self::NoKey { nearest: Some(nearest), .. } => {
                format!("did you mean `{}`?", escape(nearest))
            }
            Self::NoTensor { nearest: None, .. } | Self::NoMatch { .. } => {
                "list the tensors with `gguf-inspect FILE`".to_owned()
            }
            Self::OtherModel { .. } => {
                "give the parts of one model, which are named alike in one folder: one of them will do"
                    .to_owned()
            }
            Self::NotAPart { .. } => "leave it out: it is a whole file already".to_owned(),
            Self::OfParts { .. } => "join the parts first: `gguf-inspect merge PART -o FILE`".to_owned(),
            Self::NoToken { nearest: Some(nearest), .. } => {
                format!("the nearest is `{}`", escape(nearest))
            }
            Self::NoToken { nearest: None, .. } => {
                "list the tokens with `gguf-inspect get FILE tokenizer.ggml.tokens`".to_owned()
            }
            Self::NoTemplate { .. } => {
                "a `.json` file has the member `chat_template`; any other file is the template itself"
                    .to_owned()
            }
            Self::Changed { .. } => "look at it, then try again".to_owned(),
            Self::ValueFile { .. } => {
                "a value that itself begins with `@` is written with two: `KEY=@@VALUE`".to_owned()
            }
            Self::NoKey { nearest: None, .. } => {
                "list the keys with `gguf-inspect FILE --no-tensors`".to_owned()
            }
            Self::OtherPart { home, .. } => {
                format!("edit {} (without `-o` that happens by itself)", home.display())
            }
            Self::Refused { .. } => "`--force` makes the change all the same".to_owned(),
        };
        vec![hint]
    }
}
