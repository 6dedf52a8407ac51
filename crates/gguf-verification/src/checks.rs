//! Checks: one file each below `checks/`, one row each in the table below.
//!
//! A check finds what is wrong with a file. The rows are in the order in which the checks run.

pub(super) mod adapter;
pub(super) mod baseline_keys;
mod blocks;
pub(super) mod chat_template;
pub(super) mod control_vector;
mod foreign;
pub(super) mod graph;
pub(super) mod header;
pub(super) mod images;
pub(super) mod input;
mod keys;
pub(super) mod label;
mod operands;
mod required_keys;
mod round_trip;
mod shapes;
pub(super) mod source_tokenizer;
pub(super) mod towers;
mod trailing_bytes;
pub(super) mod vocabulary;

use std::fmt;

use serde::{Serialize, Serializer};

use crate::checks::input::{CheckedFile, CheckedTexts};
use crate::{Figure, Finding, Model, Report, VerifyError};

/// Part of a file, or its use, that a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilePart {
    Structure,
    Keys,
    Label,
    Weights,
    Tokenizer,
    ChatTemplate,
    Predictions,
}

impl FilePart {
    /// Returns the part in a reader's words.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Structure => "the structure",
            Self::Keys => "the keys",
            Self::Label => "its label",
            Self::Weights => "the weights",
            Self::Tokenizer => "the tokenizer",
            Self::ChatTemplate => "the chat template",
            Self::Predictions => "the predictions",
        }
    }
}

/// Function of a check, by what it needs.
enum Run {
    /// Needs the file alone.
    File(fn(&CheckedFile<'_>) -> Result<Vec<Finding>, VerifyError>),
    /// Needs a model and its baseline.
    Baseline(fn(&Model<'_>, &Model<'_>) -> Vec<Finding>),
    /// Needs a model and texts for its tokenizer.
    Texts(fn(&CheckedTexts<'_>) -> Vec<Finding>),
    /// Belongs to a step of the verification that has other results too: the graph, the weights, figures.
    Step,
}

struct CheckRow {
    check: Check,
    name: &'static str,
    part: FilePart,
    /// True if figures are measured in spite of an error: they show how much it costs.
    is_measured: bool,
    run: Run,
}

/// Declares the checks: the variants of [`Check`] and their rows.
macro_rules! checks {
    ($($(#[$doc:meta])+ $variant:ident { $($field:ident: $value:expr,)+ })+) => {
        /// Check that has findings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Check {
            $($(#[$doc])+ $variant,)+
            /// Limit of a figure.
            Limit(Figure),
        }

        static ROWS: &[CheckRow] = &[$(CheckRow { check: Check::$variant, $($field: $value,)+ },)+];
    };
}

checks! {
    /// Flaws of the header that readers tolerate; a file that cannot be read.
    Header {
        name: "header",
        part: FilePart::Structure,
        is_measured: false,
        run: Run::File(|file| Ok(file.gguf.map(header::check).unwrap_or_default())),
    }
    /// Bytes after the last tensor.
    TrailingBytes {
        name: "trailing-bytes",
        part: FilePart::Structure,
        is_measured: false,
        run: Run::File(|file| Ok(file.gguf.and_then(trailing_bytes::check).into_iter().collect())),
    }
    /// Tensors of vision and audio towers.
    Towers {
        name: "towers",
        part: FilePart::Structure,
        is_measured: false,
        run: Run::File(|file| Ok(towers::check(file))),
    }
    /// Keys that every reader needs.
    RequiredKeys {
        name: "required-keys",
        part: FilePart::Keys,
        is_measured: false,
        run: Run::File(|file| Ok(required_keys::check(file))),
    }
    /// Types, lengths and numbers of well-known keys.
    Keys {
        name: "keys",
        part: FilePart::Keys,
        is_measured: false,
        run: Run::File(|file| Ok(keys::check(file))),
    }
    /// Blocks that decode to finite numbers.
    NonFinite {
        name: "non-finite",
        part: FilePart::Weights,
        is_measured: false,
        run: Run::File(blocks::check),
    }
    /// Tensors without any value; found with [`Check::NonFinite`].
    AllZero {
        name: "all-zero",
        part: FilePart::Weights,
        is_measured: true,
        run: Run::Step,
    }
    /// Agreement of the keys of the tokenizer with one another.
    Tokenizer {
        name: "tokenizer",
        part: FilePart::Tokenizer,
        is_measured: false,
        run: Run::File(|file| Ok(vocabulary::check(file.metadata))),
    }
    /// Tensors that the architecture's loader takes.
    Tensors {
        name: "tensors",
        part: FilePart::Structure,
        is_measured: false,
        run: Run::File(|file| {
            let found = foreign::check(file).into_iter().chain(operands::check(file));
            Ok(found.chain(images::check_tensors(file)).chain(control_vector::check(file)).collect())
        }),
    }
    /// Shapes of tensors that follow from the keys.
    Shapes {
        name: "shapes",
        part: FilePart::Structure,
        is_measured: false,
        run: Run::File(|file| Ok(shapes::check(file).into_iter().collect())),
    }
    /// Pairs of matrices of an adapter.
    Adapter {
        name: "adapter",
        part: FilePart::Structure,
        is_measured: false,
        run: Run::File(|file| Ok(adapter::check(file))),
    }
    /// Types that the file and its name declare.
    Label {
        name: "label",
        part: FilePart::Label,
        is_measured: true,
        run: Run::Step,
    }
    /// Graph that can be run.
    Graph {
        name: "graph",
        part: FilePart::Structure,
        is_measured: false,
        run: Run::Step,
    }
    /// Numbers of the architecture, compared with the baseline's.
    Hparams {
        name: "hparams",
        part: FilePart::Keys,
        is_measured: true,
        run: Run::Baseline(|model, baseline| baseline_keys::compare(model, baseline.metadata)),
    }
    /// Keys of the tokenizer and ids of texts, compared with the baseline's; keys are compared with
    /// [`Check::Hparams`].
    TokenizerParity {
        name: "tokenizer-parity",
        part: FilePart::Tokenizer,
        is_measured: true,
        run: Run::Step,
    }
    /// Keys around the model, compared with the baseline's; found with [`Check::Hparams`].
    Metadata {
        name: "metadata",
        part: FilePart::Keys,
        is_measured: false,
        run: Run::Step,
    }
    /// Weights, compared with the baseline's.
    Weights {
        name: "weights",
        part: FilePart::Weights,
        is_measured: true,
        run: Run::Step,
    }
    /// Names in chat templates, and the chats that they render.
    ChatTemplate {
        name: "chat-template",
        part: FilePart::ChatTemplate,
        is_measured: true,
        run: Run::Texts(|texts| chat_template::check(texts.model.metadata, texts.model.template)),
    }
    /// Texts that become tokens and text again.
    RoundTrip {
        name: "round-trip",
        part: FilePart::Tokenizer,
        is_measured: true,
        run: Run::Texts(|texts| round_trip::check(texts.model, texts.texts).into_iter().collect()),
    }
    /// Ids and tokens, compared with those of the original tokenizer.
    SourceTokenizer {
        name: "source-tokenizer",
        part: FilePart::Tokenizer,
        is_measured: true,
        run: Run::Texts(|texts| source_tokenizer::check(texts.model, texts.texts, texts.earlier)),
    }
    /// Limits that the model has no figure for, or that are not based on its own cost.
    Limits {
        name: "limits",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Options without use for an encoder.
    Encoder {
        name: "encoder",
        part: FilePart::Structure,
        is_measured: false,
        run: Run::Step,
    }
    /// Outputs that can be compared with the baseline's.
    Baseline {
        name: "baseline",
        part: FilePart::Keys,
        is_measured: false,
        run: Run::Step,
    }
    /// Tasks that can be scored.
    Tasks {
        name: "tasks",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Text that can be scored.
    Perplexity {
        name: "perplexity",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Length of texts that the model was trained on.
    Context {
        name: "context",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Vectors of finite numbers.
    Embeddings {
        name: "embeddings",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Predictions of masked tokens.
    Masked {
        name: "masked",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Predictions that are better than guessing.
    WorseThanChance {
        name: "worse-than-chance",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Prompts that are run.
    Prompts {
        name: "prompts",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Tensors of the graph that were asked for.
    Trace {
        name: "trace",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Figures that are not worse than those of an earlier report.
    Against {
        name: "against",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
    /// Quality that was asked for.
    MinQuality {
        name: "min-quality",
        part: FilePart::Predictions,
        is_measured: false,
        run: Run::Step,
    }
}

impl Check {
    /// Returns the description; limits are described by their figures.
    fn row(self) -> Option<&'static CheckRow> {
        ROWS.iter().find(|row| row.check == self)
    }

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit(figure) => figure.row().option,
            _ => self.row().map_or("", |row| row.name),
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        let limits = Figure::ALL.into_iter().map(Self::Limit);
        ROWS.iter().map(|row| row.check).chain(limits).find(|check| check.name() == name)
    }

    /// Returns the part of a file that the check is about.
    pub(super) fn part(self) -> FilePart {
        self.row().map_or(FilePart::Predictions, |row| row.part)
    }

    /// Returns true if figures are measured in spite of an error.
    pub(super) fn is_measured(self) -> bool {
        self.row().is_some_and(|row| row.is_measured)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Runs the checks that need a file alone.
pub(super) fn check_file(file: &CheckedFile<'_>) -> Result<Vec<Finding>, VerifyError> {
    let mut findings = Vec::new();
    for row in ROWS {
        if let Run::File(run) = row.run {
            findings.extend(run(file)?);
        }
    }
    Ok(findings)
}

/// Runs the checks that compare a model with its baseline, except for the weights.
pub(super) fn check_baseline(model: &Model<'_>, baseline: &Model<'_>) -> Vec<Finding> {
    let of_row = |row: &CheckRow| match row.run {
        Run::Baseline(run) => run(model, baseline),
        _ => Vec::new(),
    };
    ROWS.iter().flat_map(of_row).collect()
}

/// Runs the checks that need texts, and adds their findings to the report.
pub(super) fn check_texts(model: &Model<'_>, texts: &[&str], report: &mut Report) {
    for row in ROWS {
        if let Run::Texts(run) = row.run {
            let found = run(&CheckedTexts { model, texts, earlier: &report.findings });
            report.extend(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_name_of_its_own() {
        for row in ROWS {
            assert_eq!(Check::named(row.name), Some(row.check), "{}", row.name);
            assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", row.name);
        }
        for figure in Figure::ALL {
            assert_eq!(Check::named(figure.row().option), Some(Check::Limit(figure)));
        }
        assert_eq!(Check::named("max-kld"), Some(Check::Limit(Figure::Kld)));
        assert_eq!(Check::named("max-kl"), None);
    }
}
