//! A card as typed data. `read` builds it from TOML, `check` checks it.

use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value as Json;

use crate::graph::GraphFeatures;
use crate::language::expr::Expr;
use crate::language::names::{Pattern, Placeholder, SUFFIXES, as_before_sharing};
use crate::language::ops::OpSpec;
use crate::read::fusion::Fusion;
use gguf_format::{Mode, RankCode, SpecialToken, Template};

/// Kind of file that a card writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CardKind {
    /// The text model, with its vocabulary.
    #[default]
    Text,
    /// Vision and audio towers, and their projector to the text model: a separate file next to the text model's.
    Mmproj,
}

/// `general.architecture` of all tower files.
pub(crate) const CLIP: &str = "clip";

/// One card with its parents merged in, or one variant of it.
#[derive(Clone, Debug)]
pub struct Card {
    /// Kind of file that it writes.
    pub kind: CardKind,
    /// File name of the card without its extension.
    pub stem: String,
    /// Value of `general.architecture`.
    pub gguf: String,
    /// Name of the variant; `None` for the main card.
    pub variant: Option<String>,
    /// True if the card is only a parent of other cards.
    pub is_abstract: bool,
    /// Model classes (`architectures[0]` of `config.json`).
    pub classes: Vec<String>,
    /// Public repositories this card converts.
    pub examples: Vec<String>,
    /// Condition under which the card is selected.
    pub when: Option<Expr>,
    /// Configuration keys that the card is the first to read: its expressions and those of all cards may name them.
    pub config_keys: Vec<String>,
    /// True if the configuration gets no defaults.
    pub(crate) raw_config: bool,
    /// True if tensors of other modalities are kept, not dropped.
    pub(crate) keep_multimodal: bool,
    /// Prefixes of the names of a tower's tensors, after rewriting; other tensors belong to the text model. Empty: all
    /// tensors belong to the tower.
    pub parts: Vec<String>,
    /// True if draft heads can be left out, or written to a file of their own.
    pub mtp_export: bool,
    /// Tensors in a file of draft heads in addition to the heads' own, by their names after rewriting.
    pub(crate) mtp_keep: Vec<String>,
    /// Joins of output tensors whose result the runtime can read.
    pub fuse: Vec<Fusion>,
    /// Conditions that must hold, with error messages.
    pub(crate) require: Vec<(Expr, String)>,
    /// Conditions under which runtimes compute something else than transformers, with warnings.
    pub(crate) differs: Vec<(Expr, String)>,
    /// Changes of the configuration: keys and their new values.
    pub set: Vec<(String, Expr)>,
    /// Keys removed from the configuration.
    pub(crate) drop_config: Vec<String>,
    /// Further changes of the configuration that only metadata rows see.
    pub(crate) metadata_set: Vec<(String, Expr)>,
    /// Further keys removed from the configuration that only metadata rows see.
    pub metadata_drop: Vec<String>,
    /// Rows that are written before everything but the architecture.
    pub early: Vec<MetadataRow>,
    /// Rows of the hyper-parameters.
    pub metadata: Vec<MetadataRow>,
    /// Rows of values without a standard GGUF key, written under `gguf_foundry.` by `--annotate`.
    pub annotate: Vec<MetadataRow>,
    /// Definitions (`[let]`) that expressions can use.
    pub lets: IndexMap<String, Expr>,
    /// Tables for the function `lookup`.
    pub tables: IndexMap<String, IndexMap<String, i64>>,
    /// Defaults of absent configuration keys, by model type and key.
    pub defaults: IndexMap<String, IndexMap<String, ConfigDefault>>,
    /// Alternative names of configuration keys, by model type: alias, canonical key.
    pub aliases: IndexMap<String, IndexMap<String, String>>,
    /// Steps that rewrite tensor names.
    pub rewrite: Vec<Rewrite>,
    /// Tensor entries, in card order.
    pub entries: Vec<TensorEntry>,
    /// Rules for tensors that are left out, with reasons.
    pub ignore: Vec<Ignore>,
    /// Targets that must exist.
    pub outputs: Vec<Pattern>,
    /// Targets that a tower file must have in addition to those of its entries: biases, and parts told apart by a
    /// number.
    pub required: Vec<Required>,
    /// Tensors for which the runtime reads a `.scale` tensor: target names without block and ending.
    pub companions: Vec<String>,
    /// Tensors without a source.
    pub generate: Vec<Generate>,
    /// The `[tokenizer]` table.
    pub tokenizer: TokenizerSpec,
    /// Rules that rebuild configuration keys from a GGUF file where the rows do not determine them.
    pub inverse: IndexMap<String, InverseRule>,
    /// Graph of the architecture for the reference engine, if the card describes it.
    pub graph: Option<GraphFeatures>,
    /// Configuration attributes that no key or tensor carries, with the values for which the runtime computes
    /// correctly.
    pub(crate) assumes: IndexMap<String, Vec<Expr>>,
}

impl Card {
    /// Returns the card's name in messages: `llama`, `llama/internlm3`.
    pub fn name(&self) -> String {
        let base = self.base();
        match &self.variant {
            Some(variant) => format!("{base}/{variant}"),
            None => base.to_owned(),
        }
    }

    /// Returns the name that the card shares with its variants, by which other cards extend it.
    pub fn base(&self) -> &str {
        match self.kind {
            CardKind::Text => &self.gguf,
            CardKind::Mmproj => &self.stem,
        }
    }

    /// Returns the checkpoint's name of a tensor of the file if an entry yields it, else `target` itself.
    pub fn source_of(&self, target: &str) -> String {
        let found = self.entries.iter().find_map(|entry| {
            let pattern = entry.patterns.first()?;
            entry.targets.iter().find_map(|to| {
                if to.name.is_complete() {
                    return pattern.render(to.name.matches(target)?);
                }
                let suffix = SUFFIXES.into_iter().find(|suffix| target.ends_with(suffix)).unwrap_or("");
                Some(pattern.render(to.name.matches(target.strip_suffix(suffix)?)?)? + suffix)
            })
        });
        found.map_or_else(|| target.to_owned(), as_before_sharing)
    }
}

/// Part of an inverse key's name that leads into the object of each block: `block_configs[bid].width`.
pub(crate) const EACH_BLOCK: &str = "[bid].";

/// Rule that rebuilds a configuration key or a tensor from a GGUF file. Dots in a key's name lead into objects.
#[derive(Clone, Debug, PartialEq)]
pub struct InverseRule {
    /// Expression of the value.
    pub value: Expr,
    /// True if a null value is written; else null removes the key.
    pub(crate) writes_null: bool,
    /// Name of the tensor, if the rule builds one: a number, or a list of numbers. Null leaves it out.
    pub tensor: Option<Pattern>,
}

/// Metadata row.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataRow {
    /// `["include", "base"]`: the rows that most decoders share.
    Base,
    /// `[key, expression, condition]`.
    Key {
        /// GGUF key, with or without the architecture as prefix.
        key: String,
        /// Expression of the value; null writes nothing.
        value: Expr,
        /// Condition under which the row is written.
        when: Option<Expr>,
    },
}

/// Default of a configuration key.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigDefault {
    /// Value if the key is absent.
    pub value: DefaultValue,
    /// Value if the key is null; `None` keeps the null.
    pub null: Option<DefaultValue>,
    /// True if the string `auto` counts as absent.
    pub auto: bool,
}

/// Default value: literal, or computed from other keys.
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultValue {
    /// A literal.
    Literal(Json),
    /// An expression.
    Expr(Expr),
}

/// Step of name rewriting.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewrite {
    /// The change.
    pub step: RewriteStep,
    /// Condition under which it is applied.
    pub when: Option<Expr>,
}

/// Change that a rewriting step makes to a name.
#[derive(Clone, Debug, PartialEq)]
pub enum RewriteStep {
    /// Removes all occurrences of a text.
    Strip(String),
    /// Replaces a prefix.
    Head(String, String),
    /// Replaces a suffix.
    Tail(String, String),
    /// Replaces all occurrences.
    Replace(String, String),
    /// Adds a prefix unless the name starts with it.
    Prefix(String),
    /// Replaces a prefix that an index follows, and adds a number to the index.
    Shift(String, String, Expr),
}

/// Mapping from tensors of a checkpoint to GGUF tensors.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own in cards")]
pub struct TensorEntry {
    /// Patterns of the source's name.
    pub patterns: Vec<Pattern>,
    /// Patterns of further sources; all sources are joined.
    pub with: Vec<Pattern>,
    /// True if patterns match whole names, because the targets or a pattern include an ending.
    pub exact: bool,
    /// Targets, one per tensor that the operations yield.
    pub targets: Vec<EntryTarget>,
    /// Operations on each source.
    pub pre: Vec<OpSpec>,
    /// Operations after joining.
    pub ops: Vec<OpSpec>,
    /// Join of several sources.
    pub join: Option<Join>,
    /// Expected number of stacked or concatenated parts.
    pub n: Option<Expr>,
    /// Group of entries whose tensors are written together per block, after the last source of the group.
    pub group: Option<String>,
    /// Further target names under which the same tensor is written.
    pub also: Vec<Pattern>,
    /// True if targets are named without the source's ending.
    pub(crate) drops_ending: bool,
    /// True if the bounds of the layer's inputs and outputs are mapped like weight and bias.
    pub clamped: bool,
    /// Model or tower whose blocks `{bid}` counts.
    pub(crate) domain: Domain,
    /// Block of the target, if it differs from the source's.
    pub bid: Option<Expr>,
    /// Number of consecutive blocks for which the target is written.
    pub repeat: Option<Expr>,
    /// Condition under which the entry applies.
    pub when: Option<Expr>,
    /// Blocks in which the tensor may be missing.
    pub optional: Optional,
    /// Rule for the tensor's type.
    pub ty: EntryType,
    /// Position in the file.
    pub phase: Phase,
    /// True if a second source of the same target is dropped; else it is an error.
    pub(crate) drop_duplicates: bool,
    /// True if the pattern captures a number that the target lacks, so that a second source is an error.
    pub(crate) sole: bool,
    /// True if the block is hidden from the rule that keeps routers and similar tensors in F32 by name.
    pub(crate) untyped_bid: bool,
}

impl TensorEntry {
    /// Returns the entry's first pattern, which identifies it in messages.
    pub fn name(&self) -> &str {
        self.patterns.first().map_or("", Pattern::text)
    }
}

/// Blocks in which a tensor may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optional {
    /// The tensor must exist in every block.
    #[default]
    Never,
    /// The tensor exists in all blocks or in none.
    Everywhere,
    /// The tensor may be missing in any block.
    Anywhere,
}

/// Blocks that an entry's `{bid}` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Domain {
    /// Blocks of the text model or of the vision tower: below `block_limit`.
    Blocks,
    /// Blocks of the audio tower: below `audio_block_limit`.
    AudioBlocks,
}

impl Domain {
    /// Returns the name of the definition that bounds the block numbers.
    pub(crate) fn limit(self) -> &'static str {
        match self {
            Self::Blocks => "block_limit",
            Self::AudioBlocks => "audio_block_limit",
        }
    }
}

/// Target of an entry.
#[derive(Clone, Debug)]
pub struct EntryTarget {
    /// Name; the source's suffix is appended unless the name has one.
    pub name: Pattern,
    /// Operations on this part alone.
    pub ops: Vec<OpSpec>,
}

/// Join of several sources to one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Parts numbered by a placeholder, stacked along a new first axis.
    StackBy(Placeholder),
    /// Parts numbered by a placeholder, concatenated along the first axis.
    ConcatBy(Placeholder),
    /// Named parts, stacked along a new first axis.
    Stack,
    /// Named parts, concatenated along an axis.
    Concat {
        /// The axis: 0 or 1.
        axis: usize,
    },
    /// Named parts, multiplied element by element.
    Mul,
}

/// Type rule of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryType {
    /// Type by the tensor's name, else the file type.
    Auto,
    /// F32.
    F32,
    /// F16.
    F16,
    /// F16 in F16 files, else F32: kernels of convolutions.
    Conv,
    /// The file type, regardless of the name.
    File,
    /// Type of the source.
    Source,
    /// I32.
    I32,
    /// I64.
    I64,
    /// Blocks of a quantized weight if a block type holds them exactly; else as `Auto`.
    Blocks,
}

impl EntryType {
    /// Returns true if the type of the file does not decide: what computes with the tensor takes no other type.
    pub(crate) fn is_fixed(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Conv | Self::I32 | Self::I64)
    }
}

/// Position of an entry's tensors in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Before all other tensors.
    First,
    /// After `First`: tensors without a source.
    Generated,
    /// In the order of the sources.
    Normal,
    /// After all other tensors.
    Last,
}

/// Target that must exist.
#[derive(Clone, Debug)]
pub struct Required {
    /// Name of the target; with `{bid}`, it must exist in every block.
    pub target: Pattern,
    /// Target that requires this one: both must exist with the same numbers.
    pub with: Option<Pattern>,
    /// Condition of the requirement.
    pub when: Option<Expr>,
}

/// Rule for tensors that are left out.
#[derive(Clone, Debug)]
pub struct Ignore {
    /// Pattern of their names.
    pub pattern: Pattern,
    /// Reason.
    pub why: String,
    /// Condition of the rule.
    pub when: Option<Expr>,
    /// True if any non-zero element is an error.
    pub(crate) require_zero: bool,
    /// Tensor that must have the same values, else the rule does not apply.
    pub(crate) drop_if_equal: Option<Pattern>,
}

impl Ignore {
    /// Returns true if more than the name decides.
    pub fn is_conditional(&self) -> bool {
        self.when.is_some() || self.require_zero || self.drop_if_equal.is_some()
    }
}

/// Tensor without a source.
#[derive(Clone, Debug)]
pub struct Generate {
    /// Kind of the tensor.
    pub kind: GenerateKind,
    /// Name of the tensor. Placeholders take the values of the weight that the tensor precedes.
    pub to: Pattern,
    /// Condition under which it is written.
    pub when: Option<Expr>,
}

impl Generate {
    /// Returns true if it precedes weights.
    pub(crate) fn is_fill(&self) -> bool {
        matches!(self.kind, GenerateKind::Fill(Fill { before: Some(_), .. }))
    }
}

/// Closed list of generated tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerateKind {
    /// Frequency factors of Llama 3's rope, if the configuration has that rope type.
    RopeFreqsLlama3(Box<Llama3Rope>),
    /// Proportional rope factors: 1 for rotated pairs, a huge divisor (1e30) for the others.
    RopeFreqsProportional {
        /// Head size; the tensor has half as many elements.
        dim: Expr,
        /// Fraction of the head that is rotated.
        fraction: Expr,
    },
    /// List of factors from the configuration.
    RopeFactors {
        /// Expression of the list.
        values: Expr,
    },
    /// Sinusoidal positions: sines, then cosines, of falling frequencies.
    Sinusoids {
        /// Number of positions.
        length: Expr,
        /// Number of values per position.
        width: Expr,
    },
    /// One value in all elements.
    Fill(Fill),
}

impl GenerateKind {
    pub(crate) fn exprs(&self) -> Vec<&Expr> {
        match self {
            Self::RopeFreqsLlama3(rule) => {
                std::iter::once(&rule.dim).chain(&rule.theta).chain(&rule.pad_to).collect()
            }
            Self::RopeFreqsProportional { dim, fraction } => vec![dim, fraction],
            Self::RopeFactors { values } => vec![values],
            Self::Sinusoids { length, width } => vec![length, width],
            Self::Fill(fill) => fill.shape.iter().chain(std::iter::once(&fill.value)).collect(),
        }
    }
}

/// Parameters of Llama 3's rope that the configuration may lack.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama3Rope {
    /// Rotary dimension; the tensor has half as many elements.
    pub dim: Expr,
    /// Base of the frequencies, instead of that of the rope parameters.
    pub theta: Option<Expr>,
    /// Default of `factor`.
    pub factor: f64,
    /// Default of `low_freq_factor`.
    pub low: f64,
    /// Default of `high_freq_factor`.
    pub high: f64,
    /// Default of `original_max_position_embeddings`.
    pub context: f64,
    /// Head size: ones pad the tensor to half as many elements, and wavelengths are computed in F64.
    pub(crate) pad_to: Option<Expr>,
}

/// Tensor with one value in all elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// Dimensions.
    pub shape: Vec<Expr>,
    /// The value.
    pub value: Expr,
    /// Weights that the tensor precedes, by name; `None` writes it with the other generated tensors.
    pub before: Option<Pattern>,
}

/// The `[tokenizer]` table: a [`TokenizerRequest`](gguf_format::TokenizerRequest) with unevaluated expressions.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSpec {
    /// Modes; the first whose files exist and parse is used.
    pub modes: Vec<TokenizerMode>,
    /// Source of the tokenizer files, if not the model's own directory.
    pub from: Option<TokenizerFrom>,
    /// Size of the vocabulary.
    pub size: Option<Expr>,
    /// Number to a multiple of which the size is rounded up.
    pub pad_multiple: Option<u64>,
    /// `tokenizer.ggml.token_type_count`.
    pub token_type_count: Option<Expr>,
    /// Special tokens by role, used if the files do not set them.
    pub special: Vec<(String, SpecialToken)>,
    /// Special tokens by role that override the files.
    pub force: Vec<(String, SpecialToken)>,
    /// Special tokens by role that are written after everything else.
    pub last: Vec<(String, SpecialToken)>,
    /// Roles that are loaded from the configurations; `None`: all.
    pub types: Option<Vec<String>>,
    /// Tokens that become control tokens.
    pub control: Vec<String>,
    /// Tokens that become user-defined tokens.
    pub user_defined: Vec<String>,
    /// Python tokenizer whose built-in special tokens rank vocabularies get, for modes without their own.
    pub rank_code: Option<RankCode>,
    /// Source of the chat template.
    pub template: Template,
    /// Rows before the tokenizer's keys.
    pub before: Vec<MetadataRow>,
    /// Rows after the tokenizer's keys.
    pub after: Vec<MetadataRow>,
}

/// Source of the vocabulary of a draft model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerFrom {
    /// The target model's files, read in the modes of this card.
    Target,
    /// The target model's files, read by the rules of its own card; this card's `after` rows follow.
    TargetCard,
}

/// Mode of reading a tokenizer.
#[derive(Clone, Debug)]
pub struct TokenizerMode {
    /// The mode.
    pub mode: Mode,
    /// Condition under which it is tried.
    pub when: Option<Expr>,
    /// File names that replace those of the mode.
    pub files: Vec<String>,
    /// Special tokens by role, used if the files do not set them; they precede those of the table.
    pub special: Vec<(String, SpecialToken)>,
    /// Python tokenizer whose built-in special tokens a rank vocabulary gets.
    pub rank_code: Option<RankCode>,
    /// Rows after the tokenizer's keys, in this mode.
    pub after: Vec<MetadataRow>,
}
