//! A card as typed data. [`super::read`] makes it from TOML, [`super::load`] checks it.

use indexmap::IndexMap;
use serde_json::Value as Json;

use crate::arch::expr::Expr;
use crate::arch::fuse::Fusion;
use crate::arch::graph::GraphFeatures;
use crate::arch::hparams;
use crate::arch::names::{Pattern, Placeholder, SUFFIXES};
use crate::arch::ops::OpSpec;
use crate::gguf::{Mode, RankCode, SpecialToken, Template};

/// What a card makes of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CardKind {
    /// The text model, with its vocabulary.
    #[default]
    Text,
    /// Vision and audio towers, with what joins them to the text model: a file of its own beside the text model's.
    Mmproj,
}

/// `general.architecture` of all files of towers.
pub(super) const CLIP: &str = "clip";

/// An architecture: one card with its parents merged in, or one variant of it.
#[derive(Clone, Debug)]
pub struct Card {
    /// What it makes.
    pub kind: CardKind,
    /// Name of the card's file, without its ending.
    pub stem: String,
    /// `general.architecture`.
    pub gguf: String,
    /// The variant's name, for a variant.
    pub variant: Option<String>,
    /// Only a parent of other cards.
    pub is_abstract: bool,
    /// Model classes (`architectures[0]` of `config.json`).
    pub classes: Vec<String>,
    /// Public repositories this card converts.
    pub examples: Vec<String>,
    /// Selected only if this holds.
    pub when: Option<Expr>,
    /// The configuration gets no defaults.
    pub raw_config: bool,
    /// Tensors of other modalities are kept, not dropped.
    pub keep_multimodal: bool,
    /// How the names of a tower's tensors start, after rewriting; others belong to the text model. Empty: all belong to
    /// the tower.
    pub parts: Vec<String>,
    /// Draft heads can be left out, or written to a file of their own.
    pub mtp_export: bool,
    /// Tensors that such a file has besides the heads' own, by their names after rewriting.
    pub mtp_keep: Vec<String>,
    /// Joins after mapping whose result the runtime reads.
    pub fuse: Vec<Fusion>,
    /// Conditions with messages.
    pub require: Vec<(Expr, String)>,
    /// Changes of the configuration.
    pub set: Vec<(String, Expr)>,
    /// Keys removed from the configuration.
    pub drop_config: Vec<String>,
    /// Changes that only metadata sees.
    pub metadata_set: Vec<(String, Expr)>,
    /// Removals that only metadata sees.
    pub metadata_drop: Vec<String>,
    /// Rows written before everything but the architecture.
    pub early: Vec<Row>,
    /// The hyper-parameters.
    pub metadata: Vec<Row>,
    /// Numbers without a key in GGUF, written behind `gguf_foundry.` on request.
    pub annotate: Vec<Row>,
    /// Definitions.
    pub lets: IndexMap<String, Expr>,
    /// Tables for `lookup`.
    pub tables: IndexMap<String, IndexMap<String, i64>>,
    /// Defaults by model type and key.
    pub defaults: IndexMap<String, IndexMap<String, ConfigDefault>>,
    /// Other names of keys, by model type: name, canonical key.
    pub aliases: IndexMap<String, IndexMap<String, String>>,
    /// Rewriting of tensor names.
    pub rewrite: Vec<Rewrite>,
    /// Tensor entries, in card order.
    pub entries: Vec<Entry>,
    /// Tensors left out, with the reason.
    pub ignore: Vec<Ignore>,
    /// Targets that must exist.
    pub outputs: Vec<Pattern>,
    /// Targets that a tower's file must have besides those of its entries: biases, and parts that a number tells apart.
    pub required: Vec<Required>,
    /// Tensors beside which the runtime reads a factor: targets without block and ending.
    pub companions: Vec<String>,
    /// Tensors without a source.
    pub generate: Vec<Generate>,
    /// The tokenizer.
    pub tokenizer: TokenizerSpec,
    /// How the way back rebuilds configuration keys that rows do not give.
    pub inverse: IndexMap<String, InverseRule>,
    /// What the engine builds, where the card describes it.
    pub graph: Option<GraphFeatures>,
    /// Attributes of the configuration that no key or tensor carries, with the values for which the runtime's computation
    /// is right.
    pub assumes: IndexMap<String, Vec<Expr>>,
}

impl Card {
    /// The card's name in messages: `llama`, `llama/internlm3`.
    #[must_use]
    pub fn name(&self) -> String {
        let base = self.base();
        match &self.variant {
            Some(variant) => format!("{base}/{variant}"),
            None => base.to_owned(),
        }
    }

    /// The name that it shares with its variants, by which other cards extend it.
    #[must_use]
    pub fn base(&self) -> &str {
        match self.kind {
            CardKind::Text => &self.gguf,
            CardKind::Mmproj => &self.stem,
        }
    }

    /// Whether one of its rows may write a key of its files.
    pub(crate) fn may_write(&self, key: &str) -> bool {
        hparams::has_row(self, key)
    }

    /// The first name of the configuration of which a key of its files is made.
    pub(crate) fn name_in_row(&self, key: &str) -> Option<String> {
        hparams::name_in_row(self, key)
    }

    /// The checkpoint's name of a tensor of the file, where an entry yields it; else the tensor's own.
    pub(crate) fn source_of(&self, target: &str) -> String {
        let found = self.entries.iter().find_map(|entry| {
            let pattern = entry.patterns.first()?;
            entry.targets.iter().find_map(|to| {
                if to.name.is_complete() {
                    return pattern.render(to.name.matches(target)?);
                }
                let suffix = SUFFIXES.into_iter().find(|suffix| target.ends_with(suffix))?;
                Some(pattern.render(to.name.matches(target.strip_suffix(suffix)?)?)? + suffix)
            })
        });
        found.unwrap_or_else(|| target.to_owned())
    }
}

/// What leads, in the name of an inverse key, into the object of each block: `block_configs[bid].width`.
pub(super) const EACH_BLOCK: &str = "[bid].";

/// A key of the configuration on the way back, or a tensor; points in a key's name lead into objects.
#[derive(Clone, Debug, PartialEq)]
pub struct InverseRule {
    /// Its value.
    pub value: Expr,
    /// Null is written; else it takes the key out.
    pub writes_null: bool,
    /// The tensor's name, where the value is one of these: a number, or a list of them. Null leaves it out.
    pub tensor: Option<Pattern>,
}

/// One metadata row.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// `["include", "base"]`: the rows most decoders share.
    Base,
    /// `[key, expression, condition]`.
    Key {
        /// GGUF key, with or without the architecture before it.
        key: String,
        /// Its value; null writes nothing.
        value: Expr,
        /// Written only if this holds.
        when: Option<Expr>,
    },
}

/// What an absent configuration key means.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigDefault {
    /// The value of an absent key.
    pub value: DefaultValue,
    /// The value of a key that is null, if that differs from null.
    pub null: Option<DefaultValue>,
    /// The text `auto` counts as absent.
    pub auto: bool,
}

/// A default: given, or computed from other keys.
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultValue {
    /// A literal.
    Literal(Json),
    /// An expression.
    Expr(Expr),
}

/// One step of name rewriting.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewrite {
    /// What it does.
    pub step: RewriteStep,
    /// Done only if this holds.
    pub when: Option<Expr>,
}

/// What a rewriting step does.
#[derive(Clone, Debug, PartialEq)]
pub enum RewriteStep {
    /// Removes all occurrences.
    Strip(String),
    /// Replaces at the start.
    Head(String, String),
    /// Replaces at the end.
    Tail(String, String),
    /// Replaces all occurrences.
    Replace(String, String),
    /// Puts a prefix in front unless it is there.
    Prefix(String),
    /// `Head` for names with an index behind it, to which a number is added.
    Shift(String, String, Expr),
}

/// How a checkpoint's tensors become GGUF tensors.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own in cards")]
pub struct Entry {
    /// Names of the source.
    pub patterns: Vec<Pattern>,
    /// Names of further sources; all are joined.
    pub with: Vec<Pattern>,
    /// Patterns match whole names: the target (or the pattern) has an ending of its own.
    pub exact: bool,
    /// Targets, one per tensor that the operations yield.
    pub targets: Vec<Target>,
    /// Operations on each source.
    pub pre: Vec<OpSpec>,
    /// Operations after joining.
    pub ops: Vec<OpSpec>,
    /// How several sources become one.
    pub join: Option<Join>,
    /// Expected number of stacked or concatenated parts.
    pub n: Option<Expr>,
    /// Entries of one group wait for one another, per block.
    pub group: Option<String>,
    /// Further names of the same tensor.
    pub also: Vec<Pattern>,
    /// The target goes without the source's ending.
    pub drops_ending: bool,
    /// The bounds of the layer's inputs and outputs are carried as weight and bias are.
    pub clamped: bool,
    /// Which blocks it counts in.
    pub domain: Domain,
    /// The target's block, if not the source's.
    pub bid: Option<Expr>,
    /// The target comes for so many blocks from there on.
    pub repeat: Option<Expr>,
    /// Applies only if this holds.
    pub when: Option<Expr>,
    /// In which blocks it may be missing.
    pub optional: Optional,
    /// Type rule.
    pub ty: EntryType,
    /// When it is written.
    pub phase: Phase,
    /// A second source of the same target is dropped, not an error.
    pub drop_duplicates: bool,
    /// The pattern captures a number that the target has not: of several sources the second is an error.
    pub sole: bool,
    /// The rule for router names does not see this entry's block.
    pub untyped_bid: bool,
}

impl Entry {
    /// The entry's first pattern, which names it in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        self.patterns.first().map_or("", Pattern::text)
    }
}

/// Where a tensor may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optional {
    /// In no block.
    #[default]
    Never,
    /// In all blocks together: a part that models of the class have or have not.
    Everywhere,
    /// In any block.
    Anywhere,
}

/// The blocks that an entry's `{bid}` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Those of the model, or of the vision tower: below `block_limit`.
    Blocks,
    /// Those of the audio tower: below `audio_block_limit`.
    AudioBlocks,
}

impl Domain {
    /// The definition that bounds it.
    pub(super) fn limit(self) -> &'static str {
        match self {
            Self::Blocks => "block_limit",
            Self::AudioBlocks => "audio_block_limit",
        }
    }
}

/// One target of an entry.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name, with the suffix carried from the source unless it has its own.
    pub name: Pattern,
    /// Operations on this part alone.
    pub ops: Vec<OpSpec>,
}

/// How several sources become one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Parts numbered by a placeholder, stacked along a new first axis.
    StackBy(Placeholder),
    /// Parts numbered by a placeholder, one after the other along the first axis.
    ConcatBy(Placeholder),
    /// Named parts, stacked along a new first axis.
    Stack,
    /// Named parts, one after the other along an axis.
    Concat {
        /// The axis: 0 or 1.
        axis: usize,
    },
    /// Named parts, multiplied element by element.
    Mul,
}

/// Which type rule an entry follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryType {
    /// By name, then the file type.
    Auto,
    /// F32.
    F32,
    /// F16.
    F16,
    /// F16 in files of that type, else F32: what runtimes convolve with.
    Conv,
    /// The file type, whatever the name.
    File,
    /// As the source stores it.
    Source,
    /// I32.
    I32,
    /// I64.
    I64,
    /// The blocks of a quantized weight, where a block type holds them exactly; else by name, then the file type.
    Blocks,
}

/// When an entry is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Before everything.
    First,
    /// Before the entries: tensors without a source.
    Generated,
    /// In the order of the sources.
    Normal,
    /// After everything.
    Last,
}

/// A target that must exist.
#[derive(Clone, Debug)]
pub struct Required {
    /// Its name; one with `{bid}` must exist in every block.
    pub target: Pattern,
    /// It must exist wherever this target does, with the same numbers.
    pub with: Option<Pattern>,
    /// Only if this holds.
    pub when: Option<Expr>,
}

/// Tensors that are left out.
#[derive(Clone, Debug)]
pub struct Ignore {
    /// Their names.
    pub pattern: Pattern,
    /// Why.
    pub why: String,
    /// Only if this holds.
    pub when: Option<Expr>,
    /// It is an error if the tensor has anything but zeros.
    pub require_zero: bool,
    /// Only if it has the numbers of this tensor.
    pub drop_if_equal: Option<Pattern>,
}

impl Ignore {
    /// Whether more than the name decides.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.when.is_some() || self.require_zero || self.drop_if_equal.is_some()
    }
}

/// A tensor without a source.
#[derive(Clone, Debug)]
pub struct Generate {
    /// What it is.
    pub kind: GenerateKind,
    /// Its name; placeholders have the values of the weight it stands in front of.
    pub to: Pattern,
    /// Only if this holds.
    pub when: Option<Expr>,
}

impl Generate {
    /// Whether it may stand in front of weights.
    #[must_use]
    pub fn is_fill(&self) -> bool {
        matches!(self.kind, GenerateKind::Fill(Fill { before: Some(_), .. }))
    }
}

/// The closed list of generated tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerateKind {
    /// Frequency factors of Llama 3's rope, if the configuration has that rope type.
    RopeFreqsLlama3(Box<Llama3Rope>),
    /// Ones for the rotary pairs that turn, and a divisor that stops the others.
    RopeFreqsProportional {
        /// Size of a head; the tensor has half as many elements.
        dim: Expr,
        /// How much of it turns.
        fraction: Expr,
    },
    /// A list of the configuration.
    RopeFactors {
        /// The list.
        values: Expr,
    },
    /// Positions as sines, then as cosines, of falling frequencies.
    Sinusoids {
        /// Number of positions.
        length: Expr,
        /// Numbers of a position.
        width: Expr,
    },
    /// One number everywhere.
    Fill(Fill),
}

impl GenerateKind {
    /// Its expressions.
    pub(super) fn exprs(&self) -> Vec<&Expr> {
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

/// Parameters of Llama 3's rope: what the configuration does not say.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama3Rope {
    /// Rotary dimension; the tensor has half as many elements.
    pub dim: Expr,
    /// Base of the frequencies, instead of the rope's own.
    pub theta: Option<Expr>,
    /// Factor where the configuration has none.
    pub factor: f64,
    /// The same for `low_freq_factor`.
    pub low: f64,
    /// The same for `high_freq_factor`.
    pub high: f64,
    /// The same for the first context length.
    pub context: f64,
    /// Size of a head: ones follow up to half as many elements, and wavelengths are computed in F64.
    pub pad_to: Option<Expr>,
}

/// A tensor of one number.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// Its dimensions.
    pub shape: Vec<Expr>,
    /// The number.
    pub value: Expr,
    /// The tensor stands in front of each weight of these names, else with the generated ones.
    pub before: Option<Pattern>,
}

/// The `[tokenizer]` table: a [`TokenizerRequest`](crate::gguf::TokenizerRequest) whose values are expressions still.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSpec {
    /// Modes; the first whose files exist and parse is taken.
    pub modes: Vec<TokenizerMode>,
    /// Whose files are read, if not the model's own.
    pub from: Option<TokenizerFrom>,
    /// Size of the vocabulary.
    pub size: Option<Expr>,
    /// The size is rounded up to a multiple of this.
    pub pad_multiple: Option<u64>,
    /// `tokenizer.ggml.token_type_count`.
    pub token_type_count: Option<Expr>,
    /// Special tokens by role, unless the files set them.
    pub special: Vec<(String, SpecialToken)>,
    /// Special tokens by role, whatever the files say.
    pub force: Vec<(String, SpecialToken)>,
    /// Special tokens by role, behind everything else.
    pub last: Vec<(String, SpecialToken)>,
    /// Roles loaded from the configurations; all by default.
    pub types: Option<Vec<String>>,
    /// Tokens that become control tokens.
    pub control: Vec<String>,
    /// Tokens that become user-defined tokens.
    pub user_defined: Vec<String>,
    /// The code of vocabularies of ranks, for modes that name none of their own.
    pub rank_code: Option<RankCode>,
    /// Where the chat template comes from.
    pub template: Template,
    /// Rows before the tokenizer's own keys.
    pub before: Vec<Row>,
    /// Rows after them.
    pub after: Vec<Row>,
}

/// Where the vocabulary of a draft model comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerFrom {
    /// The target model's files, read in the modes of this card.
    Target,
    /// The target model's files, read as its own card says, with this card's `after` rows behind.
    TargetCard,
}

/// One way to read a tokenizer.
#[derive(Clone, Debug)]
pub struct TokenizerMode {
    /// The mode.
    pub mode: Mode,
    /// Tried only if this holds.
    pub when: Option<Expr>,
    /// File names instead of the mode's own.
    pub files: Vec<String>,
    /// Special tokens by role, unless the files set them; before those of the table.
    pub special: Vec<(String, SpecialToken)>,
    /// The code of vocabularies of ranks.
    pub rank_code: Option<RankCode>,
    /// Rows after the tokenizer's own keys, in this mode.
    pub after: Vec<Row>,
}
