//! Errors in cards, and errors in checkpoints that are resolved against their card.

use crate::error::listing::first_few_names;
use crate::error::missing_input::MissingInput;
use crate::error::similarity::Similarity;
use crate::graph::GraphProblem;
use crate::keys::origin::Origin;
use crate::language::eval::error::EvalError;
use crate::language::expr::ParseError;
use crate::language::names::PatternError;
use crate::language::ops::OpError;
use gguf_core::similar::did_you_mean;
use gguf_core::text::escape;
use gguf_format::ValueType;

pub(crate) type Result<T, E = ArchError> = std::result::Result<T, E>;

mod hints;
pub(crate) mod listing;
pub(crate) mod lost_value;
pub(crate) mod missing_input;
pub(crate) mod similarity;
pub(crate) mod tie;
pub(crate) mod warning;

/// Error of this crate.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ArchError {
    #[error("card `{}`: {problem}", escape(card))]
    Card { card: String, problem: Box<CardProblem> },
    #[error("config.json: `architectures` names no model class")]
    NoClass { model_type: Option<String> },
    #[error("no card for the vision or audio tower of class `{}`", escape(class))]
    NoTower {
        class: String,
        nearest: Vec<String>,
        /// Class of the same model in the layout that a card converts.
        layout: Option<&'static str>,
    },
    #[error("no architecture card for class `{}`", escape(class))]
    UnknownClass {
        class: String,
        /// Part of the graph that llama.cpp lacks, if it is known to lack one.
        lacks: Option<&'static str>,
        nearest: Vec<String>,
        resembles: Option<Box<Similarity>>,
        /// Known class of the checkpoint's `model_type`.
        by_type: Option<String>,
    },
    #[error("class `{}` is claimed by the cards {}, and {} of their conditions hold", escape(class), cards.join(", "), if *n_true == 0 { "none" } else { "several" })]
    AmbiguousClass { class: String, cards: Vec<String>, n_true: usize },
    #[error("card `{card}`, {at}: {source}")]
    Eval { card: String, at: String, source: EvalError },
    #[error("config.json: {message}")]
    Required { message: String, found: Vec<Origin> },
    #[error("config.json: `{}` is {}, expected {expected}", escape(key), escape(value))]
    ConfigValue { key: String, value: String, expected: &'static str },
    #[error(
        "config.json: `{key}` has {n_entries} {}, and `{layers_key}` is {n_layers}: nothing says which entry belongs to \
         which layer",
        if *n_entries == 1 { "entry" } else { "entries" }
    )]
    LayerList { key: String, n_entries: u64, layers_key: &'static str, n_layers: u64 },
    #[error("config.json: `{key}` is missing")]
    ConfigMissing { key: &'static str },
    #[error(transparent)]
    MissingInput(#[from] MissingInput),
    #[error("config.json: unknown rope type `{}`", escape(found))]
    RopeType { found: String, known: &'static [&'static str] },
    #[error("`{key}`: {value} is not a {expected}")]
    KeyValue { key: String, value: String, expected: ValueType },
    #[error("{} of the checkpoint's tensors {} unknown to architecture `{card}`: {}", names.len(), if names.len() == 1 { "is" } else { "are" }, first_few(names))]
    Leftover {
        card: String,
        names: Vec<(String, Option<String>)>,
        /// Pattern of these names, if the model may be whole without them.
        drop: Option<String>,
        /// A tensor inside of the module of a matrix, and the matrix.
        within: Option<Box<(String, String)>>,
    },
    #[error("{} of the checkpoint's tensors belong to an adapter that is not merged: {}", names.len(), first_few_names(names))]
    Unmerged { names: Vec<String> },
    #[error("the checkpoint lacks {}{}", first_few_names(names), if *more { " and more" } else { "" })]
    Missing { names: Vec<String>, more: bool, cut: Option<CutBlocks> },
    #[error("the checkpoint has `{}` without {}", escape(has), first_few_names(lacks))]
    Alone { has: String, lacks: Vec<String> },
    #[error("tensor `{}`: matches `{first}` and `{second}` of card `{card}`", escape(tensor))]
    TwoEntries { card: String, tensor: String, first: String, second: String },
    #[error("tensors `{}` and `{}` both become `{target}`", escape(first), escape(second))]
    TwoSources { first: String, second: String, target: String },
    #[error(
        "tensor `{}`: block {block} of a model with {n_blocks}{}",
        escape(tensor),
        gap.map_or_else(String::new, |gap| format!(", and no tensor of block {gap}"))
    )]
    Block { tensor: String, block: u64, n_blocks: u64, gap: Option<u64> },
    #[error("`{target}`: {}", if found > expected {
        format!("{found} parts where the configuration declares {expected}, `{}` is too many", escape(missing))
    } else {
        format!("{found} of {expected} parts present, `{}` is missing", escape(missing))
    })]
    Stack { target: String, found: u64, expected: u64, missing: String },
    #[error("tensor `{}` {shape}: {source}", escape(tensor))]
    Op { tensor: String, shape: String, source: Box<OpError>, keys: Vec<String> },
    #[error("`{target}`: shape {found} of `{}` does not join with {expected}", escape(tensor))]
    Join { target: String, tensor: String, found: String, expected: String },
    #[error("tensor `{}`: element type {found} cannot be converted here", escape(tensor))]
    ElementType { tensor: String, found: gguf_core::ElementType },
    #[error(
        "tensor `{}`: element {index} is not zero, and the architecture has no such tensor",
        escape(tensor)
    )]
    NotZero { tensor: String, index: u64 },
    #[error("tensor `{}`: element {index} {problem}", escape(tensor))]
    Index { tensor: String, index: u64, problem: &'static str },
    #[error(transparent)]
    Source(#[from] gguf_core::SourceError),
    #[error("no architecture card for `general.architecture` `{}`", escape(arch))]
    UnknownArch { arch: String },
    #[error("`{option}` does not go with card `{}`: {why}", escape(card))]
    Option { option: &'static str, card: String, why: &'static str },
    #[error("`--mtp`: the checkpoint has no draft heads: no tensor of a block after the model's own")]
    NoHeads,
    #[error("`--no-mtp`: the checkpoint holds nothing but a draft head")]
    OnlyHeads,
    #[error("tensor `{}`: `{op}` cannot be undone", escape(tensor))]
    NoInverse { tensor: String, op: &'static str },
    #[error("`{class}` of transformers has no `{tensor}`, which the runtime adds")]
    NoBias { tensor: String, class: String },
    #[error(
        "`{arch}` of llama.cpp has no {}: smoothing gave the norms before these layers a bias, which only biases of the layers \
         can hold",
        first_few_names(names)
    )]
    AddedBias { arch: String, names: Vec<String> },
    #[error("`{target}`: shape {shape} cannot be stored")]
    Shape { target: String, shape: String },
}

/// Blocks at the end of a model that the configuration counts and no tensor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutBlocks {
    /// Number of blocks with tensors.
    pub stored: u64,
    /// Number in the configuration.
    pub counted: u64,
}

/// Violation of a rule of the card schema.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CardProblem {
    #[error("{0}")]
    Toml(String),
    #[error("[graph]: {0}")]
    Graph(GraphProblem),
    #[error("{at}: unknown key `{key}`")]
    UnknownKey { at: String, key: String, nearest: Option<String> },
    #[error("{at}: `{key}` is missing")]
    MissingKey { at: String, key: &'static str },
    #[error("{at}: expected {expected}, found {found}")]
    Kind { at: String, expected: &'static str, found: String },
    #[error("{at}: `{text}`: {source}")]
    Expr { at: String, text: String, source: ParseError },
    #[error("{at}: {source}")]
    Pattern { at: String, source: PatternError },
    #[error("{at}: unknown name `{name}`")]
    UnknownName { at: String, name: String, nearest: Option<String> },
    #[error("{at}: unknown GGUF key `{key}`")]
    UnknownGgufKey { at: String, key: String, nearest: Option<String> },
    #[error("annotate: `{key}` is a key that `metadata` writes")]
    AnnotatedTwice { key: String },
    #[error("{at}: unknown {what} `{name}`")]
    UnknownChoice { at: String, what: &'static str, name: String, nearest: Option<String> },
    #[error("{at}: {what} `{}` is not supported yet", escape(word))]
    NotBuilt { at: String, what: &'static str, word: String, instead: &'static str },
    #[error("{at}: the parent makes `{target}` by several operations")]
    OtherOps { at: String, target: String },
    #[error("{at}: `{key}` is not there to be removed")]
    NothingRemoved { at: String, key: String, nearest: Option<String> },
    #[error("{at}: `{key}` has no effect here: {why}")]
    WithoutEffect { at: String, key: &'static str, why: &'static str },
    #[error("{at}: the operations yield {outputs} tensors for {targets} targets")]
    Arity { at: String, outputs: usize, targets: usize },
    #[error("{at}: `{{{placeholder}}}` {problem}")]
    Placeholder { at: String, placeholder: &'static str, problem: &'static str },
    #[error("`{first}` and `{second}` match the same names, and not both have `when`")]
    Overlap { first: String, second: String },
    #[error("[let]: the definition of `{0}` needs itself")]
    Cycle(String),
    #[error("`extends`: {0}")]
    Parent(ParentProblem),
    #[error("`gguf` is `{gguf}`, but the file is named `{stem}`")]
    Stem { gguf: String, stem: String },
    #[error("`kind`: cards of towers (`mmproj`) go with `--mmproj`, those of text models without it")]
    OtherKind,
    #[error("class `{class}` is claimed by `{other}` too, and neither has `when`")]
    ClassTwice { class: String, other: String },
}

/// Error in `extends`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ParentProblem {
    #[error("no card is named `{0}`")]
    Unknown(String),
    #[error("more than six generations")]
    TooDeep,
}

fn first_few(names: &[(String, Option<String>)]) -> String {
    first_few_names(&names.iter().take(9).map(|name| name.0.clone()).collect::<Vec<_>>())
}

impl ArchError {
    /// Returns true if names or shapes of the checkpoint's tensors are not those that the card expects.
    pub fn is_about_tensors(&self) -> bool {
        matches!(
            self,
            Self::Leftover { .. }
                | Self::Missing { .. }
                | Self::Alone { .. }
                | Self::TwoSources { .. }
                | Self::Block { .. }
                | Self::Stack { .. }
                | Self::Op { .. }
                | Self::Join { .. }
                | Self::Shape { .. }
        )
    }
}

impl CardProblem {
    /// Returns suggestions for the user.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::UnknownKey { nearest, .. }
            | Self::UnknownName { nearest, .. }
            | Self::UnknownGgufKey { nearest, .. }
            | Self::UnknownChoice { nearest, .. }
            | Self::NothingRemoved { nearest, .. } => did_you_mean(nearest.as_deref()).into_iter().collect(),
            Self::OtherOps { .. } => {
                vec!["state those of this name: `ops = [..]`, or `ops = []` for none".to_owned()]
            }
            Self::NotBuilt { instead, .. } if !instead.is_empty() => vec![(*instead).to_owned()],
            Self::NotBuilt { .. } => {
                vec!["leave it out: a card of this version cannot say it".to_owned()]
            }
            Self::Graph(problem) => problem.hints(),
            Self::Toml(_)
            | Self::MissingKey { .. }
            | Self::Kind { .. }
            | Self::Expr { .. }
            | Self::Pattern { .. }
            | Self::AnnotatedTwice { .. }
            | Self::WithoutEffect { .. }
            | Self::Arity { .. }
            | Self::Placeholder { .. }
            | Self::Overlap { .. }
            | Self::Cycle(_)
            | Self::Parent(_)
            | Self::Stem { .. }
            | Self::OtherKind
            | Self::ClassTwice { .. } => Vec::new(),
        }
    }
}
