//! Errors in cards, and errors in checkpoints that are resolved against their card.

use crate::eval::error::EvalError;
use crate::expr::ParseError;
use crate::graph::GraphProblem;
use crate::listing::first_few_names;
use crate::missing_input::MissingInput;
use crate::names::PatternError;
use crate::ops::OpError;
use crate::similarity::Similarity;
use gguf_core::similar::did_you_mean;
use gguf_core::text::escape;
use gguf_format::ValueType;

/// Error of the `arch` module.
#[derive(Debug, thiserror::Error)]
pub enum ArchError {
    /// Card that breaks a rule of the schema.
    #[error("card `{}`: {problem}", escape(card))]
    Card {
        /// The card (and variant, after a slash).
        card: String,
        /// The rule it breaks.
        problem: Box<CardProblem>,
    },
    /// No class in `architectures` of `config.json`.
    #[error("config.json: `architectures` names no model class")]
    NoClass {
        /// `model_type` of `config.json`: not enough to select a card, but a hint for the reader.
        model_type: Option<String>,
    },
    /// No card that converts the towers of the class.
    #[error("no card for the vision or audio tower of class `{}`", escape(class))]
    NoTower {
        /// The class.
        class: String,
        /// Known classes with similar names.
        nearest: Vec<String>,
    },
    /// No card that claims the class.
    #[error("no architecture card for class `{}`", escape(class))]
    UnknownClass {
        /// The class.
        class: String,
        /// Known classes with similar names.
        nearest: Vec<String>,
        /// Card that knows the largest part of the checkpoint.
        resembles: Option<Box<Similarity>>,
    },
    /// Class claimed by several cards, of which several conditions hold, or none.
    #[error("class `{}` is claimed by the cards {}, and {} of their conditions hold", escape(class), cards.join(", "), if *n_true == 0 { "none" } else { "several" })]
    AmbiguousClass {
        /// The class.
        class: String,
        /// The cards.
        cards: Vec<String>,
        /// Number of conditions that hold.
        n_true: usize,
    },
    /// Expression of the card without a value for this configuration.
    #[error("card `{card}`, {at}: {source}")]
    Eval {
        /// The card.
        card: String,
        /// Place in the card.
        at: String,
        /// Cause.
        source: EvalError,
    },
    /// Requirement of the card that does not hold.
    #[error("config.json: {message}")]
    Required {
        /// The card's message.
        message: String,
        /// Keys that it is about, with their values.
        found: Vec<String>,
    },
    /// Value of another kind than its key has.
    #[error("config.json: `{}` is {}, expected {expected}", escape(key), escape(value))]
    ConfigValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it may hold.
        expected: &'static str,
    },
    /// List by layer of another length than the model.
    #[error(
        "config.json: `{key}` has {n_entries} {}, and `{layers_key}` is {n_layers}: nothing says which entry belongs to \
         which layer",
        if *n_entries == 1 { "entry" } else { "entries" }
    )]
    LayerList {
        /// The key.
        key: String,
        /// Number of its entries.
        n_entries: u64,
        /// Key of the number of layers.
        layers_key: &'static str,
        /// Number of layers.
        n_layers: u64,
    },
    /// Missing key of `config.json` without which nothing can be converted.
    #[error("config.json: `{key}` is missing")]
    ConfigMissing {
        /// The key.
        key: &'static str,
    },
    /// Missing file, key or tensors of the checkpoint's directory.
    #[error(transparent)]
    MissingInput(#[from] MissingInput),
    /// Unknown rope type.
    #[error("config.json: unknown rope type `{}`", escape(found))]
    RopeType {
        /// The type.
        found: String,
        /// Known rope types.
        known: &'static [&'static str],
    },
    /// Value that does not fit the type of its GGUF key.
    #[error("`{key}`: {value} is not a {expected}")]
    KeyValue {
        /// The GGUF key.
        key: String,
        /// The value.
        value: String,
        /// Type of the key.
        expected: ValueType,
    },
    /// Tensors of the checkpoint that no entry of the card maps.
    #[error("{} of the checkpoint's tensors {} unknown to card `{card}`: {}", names.len(), if names.len() == 1 { "is" } else { "are" }, first_few(names))]
    Leftover {
        /// The card.
        card: String,
        /// Their names, each with the most similar name that the card knows.
        names: Vec<(String, Option<String>)>,
        /// Short regular expression that matches exactly these tensors of the checkpoint; `None` if there is none.
        drop: Option<String>,
    },
    /// Adapter matrices inside a checkpoint of the whole model.
    #[error("{} of the checkpoint's tensors belong to an adapter that is not merged: {}", names.len(), first_few_names(names))]
    Unmerged {
        /// The tensors.
        names: Vec<String>,
    },
    /// Tensors that the card requires and the checkpoint lacks.
    #[error("the checkpoint lacks {}{}", first_few_names(names), if *more { " and more" } else { "" })]
    Missing {
        /// Their names in the checkpoint, or their GGUF names if the former are not known.
        names: Vec<String>,
        /// True if the list is truncated.
        more: bool,
    },
    /// Tensor without another one that every model with it has.
    #[error("the checkpoint has `{}` without {}", escape(has), first_few_names(lacks))]
    Alone {
        /// The tensor.
        has: String,
        /// Names of the others in the checkpoint.
        lacks: Vec<String>,
    },
    /// Tensor that matches two entries of the card.
    #[error("tensor `{}`: matches `{first}` and `{second}` of card `{card}`", escape(tensor))]
    TwoEntries {
        /// The card.
        card: String,
        /// The tensor.
        tensor: String,
        /// Pattern of the first entry.
        first: String,
        /// Pattern of the second entry.
        second: String,
    },
    /// Two sources of the same target.
    #[error("tensors `{}` and `{}` both become `{target}`", escape(first), escape(second))]
    TwoSources {
        /// First source.
        first: String,
        /// Second source.
        second: String,
        /// The target.
        target: String,
    },
    /// Tensor of a block that is outside the configured block count.
    #[error("tensor `{}`: block {block} of a model with {n_blocks}", escape(tensor))]
    Block {
        /// The tensor.
        tensor: String,
        /// Its block.
        block: u64,
        /// Configured number of blocks.
        n_blocks: u64,
    },
    /// Stack with missing parts, or with more parts than the configuration declares.
    #[error("`{target}`: {}", if found > expected {
        format!("{found} parts where the configuration declares {expected}, `{}` is too many", escape(missing))
    } else {
        format!("{found} of {expected} parts present, `{}` is missing", escape(missing))
    })]
    Stack {
        /// The target.
        target: String,
        /// Parts present.
        found: u64,
        /// Parts expected.
        expected: u64,
        /// First missing part, or the last part if there are too many.
        missing: String,
    },
    /// Operation that does not fit the tensor's shape.
    #[error("tensor `{}` {shape}: {source}", escape(tensor))]
    Op {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: String,
        /// Cause.
        source: Box<OpError>,
    },
    /// Parts with different shapes, or whose joined shape overflows.
    #[error("`{target}`: shape {found} of `{}` does not join with {expected}", escape(tensor))]
    Join {
        /// The target.
        target: String,
        /// First part whose shape differs.
        tensor: String,
        /// Shape of that part.
        found: String,
        /// Shape of the first part.
        expected: String,
    },
    /// Tensor of integers or packed values where the card needs floats.
    #[error("tensor `{}`: element type {found} cannot be converted here", escape(tensor))]
    ElementType {
        /// The tensor.
        tensor: String,
        /// Its element type.
        found: gguf_core::ElementType,
    },
    /// Tensor that is to be left out because it has no effect, but has a non-zero element.
    #[error(
        "tensor `{}`: element {index} is not zero, and the architecture has no such tensor",
        escape(tensor)
    )]
    NotZero {
        /// The tensor.
        tensor: String,
        /// Index of the element.
        index: u64,
    },
    /// Invalid list of token ids.
    #[error("tensor `{}`: element {index} {problem}", escape(tensor))]
    Index {
        /// The tensor.
        tensor: String,
        /// Index of the element.
        index: u64,
        /// Description of the error.
        problem: &'static str,
    },
    /// Weight that cannot be read.
    #[error(transparent)]
    Source(#[from] gguf_core::SourceError),
    /// GGUF file of an architecture without a card.
    #[error("no architecture card for `general.architecture` `{}`", escape(arch))]
    UnknownArch {
        /// The architecture.
        arch: String,
    },
    /// Option that does not apply to the models of the card.
    #[error("`{option}` does not go with card `{}`: {why}", escape(card))]
    Option {
        /// The option.
        option: &'static str,
        /// The card.
        card: String,
        /// Reason.
        why: &'static str,
    },
    /// Checkpoint without draft heads, under `--mtp`.
    #[error("`--mtp`: the checkpoint has no draft heads: no tensor of a block after the model's own")]
    NoHeads,
    /// Checkpoint with nothing but draft heads, under `--no-mtp`.
    #[error("`--no-mtp`: the checkpoint holds nothing but a draft head")]
    OnlyHeads,
    /// Operation without an inverse, while a GGUF file is converted back.
    #[error("tensor `{}`: `{op}` cannot be undone", escape(tensor))]
    NoInverse {
        /// Tensor of the GGUF file.
        tensor: String,
        /// The operation.
        op: &'static str,
    },
    /// Shape with more dimensions than GGUF allows, or with a dimension of 0.
    #[error("`{target}`: shape {shape} cannot be stored")]
    Shape {
        /// The target.
        target: String,
        /// The shape.
        shape: String,
    },
}

/// Violation of a rule of the card schema.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CardProblem {
    /// Text that is not TOML.
    #[error("{0}")]
    Toml(String),
    /// Invalid `[graph]` table.
    #[error("[graph]: {0}")]
    Graph(GraphProblem),
    /// Key that the schema does not have.
    #[error("{at}: unknown key `{key}`")]
    UnknownKey {
        /// Place in the card.
        at: String,
        /// The key.
        key: String,
        /// Known key with a similar name.
        nearest: Option<String>,
    },
    /// Missing required key.
    #[error("{at}: `{key}` is missing")]
    MissingKey {
        /// Place in the card.
        at: String,
        /// The key.
        key: &'static str,
    },
    /// Value of the wrong kind.
    #[error("{at}: expected {expected}, found {found}")]
    Kind {
        /// Place in the card.
        at: String,
        /// Expected kind.
        expected: &'static str,
        /// Kind that was found.
        found: String,
    },
    /// Expression that does not parse.
    #[error("{at}: `{text}`: {source}")]
    Expr {
        /// Place in the card.
        at: String,
        /// The expression.
        text: String,
        /// Cause.
        source: ParseError,
    },
    /// Invalid pattern.
    #[error("{at}: {source}")]
    Pattern {
        /// Place in the card.
        at: String,
        /// Cause.
        source: PatternError,
    },
    /// Name in an expression that is neither a definition nor a known configuration key.
    #[error("{at}: unknown name `{name}`")]
    UnknownName {
        /// Place in the card.
        at: String,
        /// The name.
        name: String,
        /// Known name that is similar.
        nearest: Option<String>,
    },
    /// Unknown metadata key.
    #[error("{at}: unknown GGUF key `{key}`")]
    UnknownGgufKey {
        /// Place in the card.
        at: String,
        /// The key.
        key: String,
        /// Known key that is similar.
        nearest: Option<String>,
    },
    /// Key of `annotate` that `metadata` of the card writes already.
    #[error("annotate: `{key}` is a key that `metadata` writes")]
    AnnotatedTwice {
        /// The key.
        key: String,
    },
    /// Operation, mode or other word outside its closed list.
    #[error("{at}: unknown {what} `{name}`")]
    UnknownChoice {
        /// Place in the card.
        at: String,
        /// Kind of the word: `operation`, `mode` and so on.
        what: &'static str,
        /// The unknown word.
        name: String,
        /// Known word that is similar.
        nearest: Option<String>,
    },
    /// Reserved word of the card vocabulary that this program does not support yet.
    #[error("{at}: {what} `{}` is not supported yet", escape(word))]
    NotBuilt {
        /// Place in the card.
        at: String,
        /// Kind of the word.
        what: &'static str,
        /// The word.
        word: String,
        /// Replacement to write; empty if there is none.
        instead: &'static str,
    },
    /// Entry without operations for a target that the parent makes in several ways.
    #[error("{at}: the parent makes `{target}` by several operations")]
    OtherOps {
        /// Place in the card.
        at: String,
        /// The target.
        target: String,
    },
    /// Removal of a key that no parent has.
    #[error("{at}: `{key}` is not there to be removed")]
    NothingRemoved {
        /// Place in the card.
        at: String,
        /// The key.
        key: String,
        /// Existing key with a similar name.
        nearest: Option<String>,
    },
    /// Key without effect in its place.
    #[error("{at}: `{key}` has no effect here: {why}")]
    WithoutEffect {
        /// Place in the card.
        at: String,
        /// The key.
        key: &'static str,
        /// Reason.
        why: &'static str,
    },
    /// Operations whose number of results differs from the number of targets.
    #[error("{at}: the operations yield {outputs} tensors for {targets} targets")]
    Arity {
        /// Place in the card.
        at: String,
        /// Number of tensors that the operations yield.
        outputs: usize,
        /// Number of targets.
        targets: usize,
    },
    /// Placeholder of a target without a value, or of a pattern without a use.
    #[error("{at}: `{{{placeholder}}}` {problem}")]
    Placeholder {
        /// Place in the card.
        at: String,
        /// The placeholder.
        placeholder: &'static str,
        /// Description of the error.
        problem: &'static str,
    },
    /// Two patterns that match the same name.
    #[error("`{first}` and `{second}` match the same names, and not both have `when`")]
    Overlap {
        /// First pattern.
        first: String,
        /// Second pattern.
        second: String,
    },
    /// Definition that depends on itself.
    #[error("[let]: the definition of `{0}` needs itself")]
    Cycle(String),
    /// Parent that does not exist, or too many generations of parents.
    #[error("`extends`: {0}")]
    Parent(ParentProblem),
    /// Card file whose name differs from its architecture.
    #[error("`gguf` is `{gguf}`, but the file is named `{stem}`")]
    Stem {
        /// The architecture.
        gguf: String,
        /// Stem of the file name.
        stem: String,
    },
    /// Card whose `kind` differs from that of the registry.
    #[error("`kind`: cards of towers (`mmproj`) go with `--mmproj`, those of text models without it")]
    OtherKind,
    /// Class that another card claims too, without a condition to choose by.
    #[error("class `{class}` is claimed by `{other}` too, and neither has `when`")]
    ClassTwice {
        /// The class.
        class: String,
        /// The other card.
        other: String,
    },
}

/// Error in `extends`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParentProblem {
    /// Name that no card has.
    #[error("no card is named `{0}`")]
    Unknown(String),
    /// More than six generations, or a cycle.
    #[error("more than six generations")]
    TooDeep,
}

fn first_few(names: &[(String, Option<String>)]) -> String {
    first_few_names(&names.iter().take(9).map(|name| name.0.clone()).collect::<Vec<_>>())
}

impl ArchError {
    /// Returns true if names or shapes of the checkpoint's tensors are not those that the card expects.
    #[must_use]
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
    #[must_use]
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
