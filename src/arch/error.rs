//! What can be wrong with a card, and with a checkpoint in the eyes of its card.

use crate::arch::eval::EvalError;
use crate::arch::expr::ParseError;
use crate::arch::graph::GraphProblem;
use crate::arch::lack::Lack;
use crate::arch::names::PatternError;
use crate::arch::ops::OpError;
use crate::arch::similar::Similarity;
use crate::core::Hint;
use crate::core::similar::did_you_mean;
use crate::core::text::escape;
use crate::gguf::ValueType;

/// An error of this module.
#[derive(Debug, thiserror::Error)]
pub enum ArchError {
    /// A card that breaks a rule of the schema.
    #[error("card `{}`: {problem}", escape(card))]
    Card {
        /// The card (and variant, after a slash).
        card: String,
        /// The rule it breaks.
        problem: Box<CardProblem>,
    },
    /// `config.json` names no class.
    #[error("config.json: `architectures` names no model class")]
    NoClass {
        /// `model_type`, which is not enough to go by but may help the reader.
        model_type: Option<String>,
    },
    /// No card converts the towers of the class.
    #[error("no card for the vision or audio tower of class `{}`", escape(class))]
    NoTower {
        /// The class.
        class: String,
        /// Known classes with similar names.
        nearest: Vec<String>,
    },
    /// No card claims the class.
    #[error("no architecture card for class `{}`", escape(class))]
    UnknownClass {
        /// The class.
        class: String,
        /// Known classes with similar names.
        nearest: Vec<String>,
        /// The card that knows most of the checkpoint.
        resembles: Option<Box<Similarity>>,
    },
    /// The conditions of several cards hold, or of none.
    #[error("class `{}` is claimed by the cards {}, and {} of their conditions hold", escape(class), cards.join(", "), if *n_true == 0 { "none" } else { "several" })]
    AmbiguousClass {
        /// The class.
        class: String,
        /// The cards.
        cards: Vec<String>,
        /// How many conditions hold.
        n_true: usize,
    },
    /// An expression of the card has no value for this configuration.
    #[error("card `{card}`, {at}: {source}")]
    Eval {
        /// The card.
        card: String,
        /// Where in the card.
        at: String,
        /// What is wrong.
        source: EvalError,
    },
    /// A requirement of the card does not hold.
    #[error("config.json: {message}")]
    Required {
        /// The card's message.
        message: String,
    },
    /// A key the conversion cannot do without.
    #[error("config.json: `{key}` is missing")]
    ConfigMissing {
        /// The key.
        key: &'static str,
    },
    /// Something that the folder of the checkpoint does not have.
    #[error(transparent)]
    Lack(#[from] Lack),
    /// A rope type nobody knows here.
    #[error("config.json: unknown rope type `{}`", escape(found))]
    RopeType {
        /// The type.
        found: String,
        /// Those that are known.
        known: &'static [&'static str],
    },
    /// A value that does not fit its GGUF key.
    #[error("`{key}`: {value} is not a {expected}")]
    KeyValue {
        /// The GGUF key.
        key: String,
        /// The value.
        value: String,
        /// Type of the key.
        expected: ValueType,
    },
    /// Tensors that no entry of the card maps.
    #[error("{} of the checkpoint's tensors {} unknown to card `{card}`: {}", names.len(), if names.len() == 1 { "is" } else { "are" }, first_few(names))]
    Leftover {
        /// The card.
        card: String,
        /// The tensors, each with the nearest name the card knows.
        names: Vec<(String, Option<String>)>,
        /// A regular expression that finds them and no other tensor of the checkpoint, where it can be short.
        drop: Option<String>,
    },
    /// Matrices of an adapter in a checkpoint of the whole model.
    #[error("{} of the checkpoint's tensors belong to an adapter that is not merged: {}", names.len(), first_few_names(names))]
    Unmerged {
        /// The tensors.
        names: Vec<String>,
    },
    /// Tensors the card asks for and the checkpoint lacks.
    #[error("the checkpoint lacks {}{}", first_few_names(names), if *more { " and more" } else { "" })]
    Missing {
        /// Their names in the checkpoint, or in GGUF where the former is not known.
        names: Vec<String>,
        /// True if the list is cut.
        more: bool,
    },
    /// Two entries of the card match one tensor.
    #[error("tensor `{}`: matches `{first}` and `{second}` of card `{card}`", escape(tensor))]
    TwoEntries {
        /// The card.
        card: String,
        /// The tensor.
        tensor: String,
        /// One pattern.
        first: String,
        /// The other.
        second: String,
    },
    /// Two sources yield one target.
    #[error("tensors `{}` and `{}` both become `{target}`", escape(first), escape(second))]
    TwoSources {
        /// One source.
        first: String,
        /// The other.
        second: String,
        /// The target.
        target: String,
    },
    /// A block the configuration does not have.
    #[error("tensor `{}`: block {block} of a model with {n_blocks}", escape(tensor))]
    Block {
        /// The tensor.
        tensor: String,
        /// Its block.
        block: u64,
        /// How many there are.
        n_blocks: u64,
    },
    /// A stack with holes, or of another size than the configuration says.
    #[error("`{target}`: {}", if found > expected {
        format!("{found} parts where the configuration says {expected}, `{}` is too many", escape(missing))
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
        /// A missing one, or the last where there are too many.
        missing: String,
    },
    /// An operation that does not fit the tensor's shape.
    #[error("tensor `{}` {shape}: {source}", escape(tensor))]
    Op {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: String,
        /// What is wrong.
        source: Box<OpError>,
    },
    /// Parts with different shapes, or parts whose join overflows.
    #[error("`{target}`: shape {found} of `{}` does not join with {expected}", escape(tensor))]
    Join {
        /// The target.
        target: String,
        /// The part that differs.
        tensor: String,
        /// Its shape.
        found: String,
        /// The first part's shape.
        expected: String,
    },
    /// A tensor of integers or packed values where the card wants floats.
    #[error("tensor `{}`: element type {found} cannot be converted here", escape(tensor))]
    ElementType {
        /// The tensor.
        tensor: String,
        /// Its element type.
        found: crate::core::ElementType,
    },
    /// A tensor that is left out because it has no effect, and has one.
    #[error(
        "tensor `{}`: element {index} is not zero, and the architecture has no such tensor",
        escape(tensor)
    )]
    NotZero {
        /// The tensor.
        tensor: String,
        /// The element.
        index: u64,
    },
    /// A list of numbers of tokens that is broken.
    #[error("tensor `{}`: element {index} {problem}", escape(tensor))]
    Index {
        /// The tensor.
        tensor: String,
        /// The element.
        index: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A weight that could not be read.
    #[error(transparent)]
    Source(#[from] crate::core::SourceError),
    /// A GGUF of an architecture without a card.
    #[error("no architecture card for `general.architecture` `{}`", escape(arch))]
    UnknownArch {
        /// The architecture.
        arch: String,
    },
    /// An option that the card's models do not go with.
    #[error("`{option}` does not go with card `{}`: {why}", escape(card))]
    Option {
        /// The option.
        option: &'static str,
        /// The card.
        card: String,
        /// Why.
        why: &'static str,
    },
    /// Draft heads were asked for, and there are none.
    #[error("`--mtp`: the checkpoint has no draft heads: no tensor of a block after the model's own")]
    NoHeads,
    /// Draft heads were to be left out, and there is nothing else.
    #[error("`--no-mtp`: the checkpoint holds nothing but a draft head")]
    OnlyHeads,
    /// An operation that cannot be undone.
    #[error("tensor `{}`: `{op}` cannot be undone", escape(tensor))]
    NoInverse {
        /// The tensor of the GGUF.
        tensor: String,
        /// The operation.
        op: &'static str,
    },
    /// More dimensions than GGUF has, or an empty one.
    #[error("`{target}`: shape {shape} cannot be stored")]
    Shape {
        /// The target.
        target: String,
        /// The shape.
        shape: String,
    },
}

/// A rule of the card schema that is broken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CardProblem {
    /// Not TOML.
    #[error("{0}")]
    Toml(String),
    /// A graph that cannot be what is meant.
    #[error("[graph]: {0}")]
    Graph(GraphProblem),
    /// A key the schema does not have.
    #[error("{at}: unknown key `{key}`")]
    UnknownKey {
        /// Where.
        at: String,
        /// The key.
        key: String,
        /// A known key with a similar name.
        nearest: Option<String>,
    },
    /// A key that must be there.
    #[error("{at}: `{key}` is missing")]
    MissingKey {
        /// Where.
        at: String,
        /// The key.
        key: &'static str,
    },
    /// A value of the wrong kind.
    #[error("{at}: expected {expected}, found {found}")]
    Kind {
        /// Where.
        at: String,
        /// What may stand there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A broken expression.
    #[error("{at}: `{text}`: {source}")]
    Expr {
        /// Where.
        at: String,
        /// The expression.
        text: String,
        /// What is wrong.
        source: ParseError,
    },
    /// A broken pattern.
    #[error("{at}: {source}")]
    Pattern {
        /// Where.
        at: String,
        /// What is wrong.
        source: PatternError,
    },
    /// A name in an expression that is neither defined nor a known configuration key.
    #[error("{at}: unknown name `{name}`")]
    UnknownName {
        /// Where.
        at: String,
        /// The name.
        name: String,
        /// A known name that is similar.
        nearest: Option<String>,
    },
    /// A metadata key nobody knows.
    #[error("{at}: unknown GGUF key `{key}`")]
    UnknownGgufKey {
        /// Where.
        at: String,
        /// The key.
        key: String,
        /// A known key that is similar.
        nearest: Option<String>,
    },
    /// A key of `annotate` that the card's `metadata` writes already.
    #[error("annotate: `{key}` is a key that `metadata` writes")]
    AnnotatedTwice {
        /// The key.
        key: String,
    },
    /// An operation, mode or kind outside the closed lists.
    #[error("{at}: unknown {what} `{name}`")]
    UnknownChoice {
        /// Where.
        at: String,
        /// What is chosen.
        what: &'static str,
        /// The choice.
        name: String,
        /// A known one that is similar.
        nearest: Option<String>,
    },
    /// A word of the vocabulary of cards that this program does not act on yet.
    #[error("{at}: {what} `{}` is not supported yet", escape(word))]
    NotBuilt {
        /// Where.
        at: String,
        /// What kind of word.
        what: &'static str,
        /// The word.
        word: String,
        /// What to write instead; empty if there is nothing.
        instead: &'static str,
    },
    /// A removal of what no parent has.
    #[error("{at}: `{key}` is not there to be removed")]
    NothingRemoved {
        /// Where.
        at: String,
        /// The key.
        key: String,
        /// A key that is there, with a similar name.
        nearest: Option<String>,
    },
    /// A key that changes nothing where it stands.
    #[error("{at}: `{key}` has no effect here: {why}")]
    WithoutEffect {
        /// Where.
        at: String,
        /// The key.
        key: &'static str,
        /// Why.
        why: &'static str,
    },
    /// Operations that yield another number of tensors than there are targets.
    #[error("{at}: the operations yield {outputs} tensors for {targets} targets")]
    Arity {
        /// Where.
        at: String,
        /// Tensors.
        outputs: usize,
        /// Targets.
        targets: usize,
    },
    /// A placeholder in a target without a value, or one in a pattern that nothing uses up.
    #[error("{at}: `{{{placeholder}}}` {problem}")]
    Placeholder {
        /// Where.
        at: String,
        /// The placeholder.
        placeholder: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Two patterns that match the same name.
    #[error("`{first}` and `{second}` match the same names, and not both have `when`")]
    Overlap {
        /// One pattern.
        first: String,
        /// The other.
        second: String,
    },
    /// A definition that needs itself.
    #[error("[let]: the definition of `{0}` needs itself")]
    Cycle(String),
    /// A parent that does not exist, or too many generations of them.
    #[error("`extends`: {0}")]
    Parent(ParentProblem),
    /// A file named otherwise than its architecture.
    #[error("`gguf` is `{gguf}`, but the file is named `{stem}`")]
    Stem {
        /// The architecture.
        gguf: String,
        /// The file's stem.
        stem: String,
    },
    /// A card among those of another kind.
    #[error("`kind`: cards of towers (`mmproj`) go with `--mmproj`, those of text models without it")]
    OtherKind,
    /// A class that another card claims, without a condition to choose by.
    #[error("class `{class}` is claimed by `{other}` too, and neither has `when`")]
    ClassTwice {
        /// The class.
        class: String,
        /// The other card.
        other: String,
    },
}

/// What is wrong with a parent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParentProblem {
    /// No card of this name.
    #[error("no card is named `{0}`")]
    Unknown(String),
    /// More than six generations, or a cycle.
    #[error("more than six generations")]
    TooDeep,
}

fn first_few(names: &[(String, Option<String>)]) -> String {
    first_few_names(&names.iter().take(9).map(|name| name.0.clone()).collect::<Vec<_>>())
}

/// The first of several names, in backticks.
pub(super) fn first_few_names(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(8).map(|name| format!("`{}`", escape(name))).collect();
    let more = if names.len() > 8 { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

impl Hint for ArchError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Card { problem, .. } => problem.hints(),
            Self::NoClass { model_type } => match model_type {
                Some(model_type) => vec![format!(
                    "`model_type` is `{}`; add the class it belongs to as `architectures`",
                    escape(model_type)
                )],
                None => vec!["add the model's class as `architectures`".to_owned()],
            },
            Self::NoTower { nearest, .. } => {
                let similar = Some(format!("similar classes: {}", nearest.join(", ")));
                let way = "a card with `kind = \"mmproj\"` says what becomes of the towers' tensors: `--card FILE`";
                similar.filter(|_| !nearest.is_empty()).into_iter().chain([way.to_owned()]).collect()
            }
            Self::UnknownClass { nearest, resembles, .. } => {
                let resembles = resembles.as_ref().map(|card| format!("the checkpoint is most like {card}"));
                let similar = Some(format!("similar classes: {}", nearest.join(", ")));
                let draft = "write a first card with `gguf-convert draft DIR > my.toml`, convert with `--card my.toml`";
                let list = "list all classes with `gguf-convert archs`".to_owned();
                let hints = [resembles, similar.filter(|_| !nearest.is_empty())];
                hints.into_iter().flatten().chain([list, draft.to_owned()]).collect()
            }
            Self::Unmerged { .. } => vec![
                "merge the adapter with PEFT's `merge_and_unload()`, save the model, and convert that; or save the adapter \
                 alone, which `gguf-convert merge-lora BASE ADAPTER` merges"
                    .to_owned(),
            ],
            Self::Leftover { names, drop, .. } => {
                let near = names.iter().take(8).filter_map(|(name, nearest)| {
                    Some(format!("`{}` is nearest to `{}`", escape(name), escape(nearest.as_ref()?)))
                });
                let way = "add entries or ignore rules in a card of your own with `--card FILE`; `gguf-convert draft` writes one";
                let drop = drop.as_ref().map(|pattern| {
                    format!(
                        "if they are no part of the model, `--drop '{}'` of gguf-convert leaves them out",
                        escape(pattern)
                    )
                });
                near.chain(drop).chain([way.to_owned()]).collect()
            }
            Self::Stack { found, expected, .. } if found > expected => {
                vec!["check that config.json belongs to these weights".to_owned()]
            }
            Self::Missing { .. } | Self::Stack { .. } => {
                vec!["check that all shards of the checkpoint are there".to_owned()]
            }
            Self::Lack(lack) => lack.hints(),
            Self::TwoEntries { .. } => {
                vec!["take one of them out in a card of your own: `\"NAME\" = false`, with `--card FILE`".to_owned()]
            }
            Self::TwoSources { .. } => {
                vec!["leave one of them out by a rule of [ignore] in a card of your own, with `--card FILE`".to_owned()]
            }
            Self::Block { .. } => vec![
                "check that config.json belongs to these weights, or leave the block out by a rule of [ignore] in a card of \
                 your own, with `--card FILE`"
                    .to_owned(),
            ],
            Self::RopeType { known, .. } => vec![format!("known rope types: {}", known.join(", "))],
            Self::Source(_)
            | Self::AmbiguousClass { .. }
            | Self::NotZero { .. }
            | Self::Index { .. }
            | Self::Eval { .. }
            | Self::Required { .. }
            | Self::ConfigMissing { .. }
            | Self::KeyValue { .. }
            | Self::Op { .. }
            | Self::Join { .. }
            | Self::ElementType { .. }
            | Self::UnknownArch { .. }
            | Self::Option { .. }
            | Self::NoHeads
            | Self::OnlyHeads
            | Self::NoInverse { .. }
            | Self::Shape { .. } => Vec::new(),
        }
    }
}

impl CardProblem {
    /// What to try.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::UnknownKey { nearest, .. }
            | Self::UnknownName { nearest, .. }
            | Self::UnknownGgufKey { nearest, .. }
            | Self::UnknownChoice { nearest, .. }
            | Self::NothingRemoved { nearest, .. } => did_you_mean(nearest.as_deref()).into_iter().collect(),
            Self::NotBuilt { instead, .. } if !instead.is_empty() => vec![(*instead).to_owned()],
            Self::NotBuilt { .. } => {
                vec!["leave it out: a card of this version cannot say it".to_owned()]
            }
            Self::Toml(_)
            | Self::Graph(_)
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
