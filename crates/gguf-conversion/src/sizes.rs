//! Check of a configuration's sizes against the weights: no runtime loads a file whose tensors have other shapes than
//! its keys declare.

use std::collections::BTreeMap;
use std::fmt;

use gguf_arch::{Mapping, WrongShape, check_shapes};
use gguf_core::text::escape;
use gguf_core::{Hint, TensorMeta};
use gguf_format::{Metadata, Value};

/// Maximum number of tensors that a message names.
const MAX_EXAMPLES: usize = 3;
/// Maximum number of keys that a hint names.
const MAX_KEYS: usize = 2;

/// Weights whose shapes contradict the configuration, or need a size that it lacks.
#[derive(Debug, thiserror::Error)]
pub struct SizesError {
    problem: SizeProblem,
    examples: Vec<Contradiction>,
    n: usize,
    /// Keys of the configuration that explain most of them.
    keys: Vec<String>,
    /// Keys of the file among them that the user set.
    by_hand: Vec<String>,
    /// True if all shapes are right with their last two dimensions exchanged.
    is_turned: bool,
    /// True if the same tensor of other layers has the declared size.
    is_uneven: bool,
    /// Rows of embedding and head, if they differ in nothing but these.
    rows: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeProblem {
    /// The configuration declares another size.
    Contradicts,
    /// The configuration lacks a size that the file needs.
    Lacks,
}

/// A tensor whose shape is wrong or cannot be checked.
#[derive(Debug)]
struct Contradiction {
    /// Name of the tensor in the file.
    output: String,
    /// Names of the weights that it is made of.
    sources: Vec<String>,
    found: String,
    /// Shape expected from the keys, or the missing key, in words.
    expected: String,
    /// Keys that the expectation is derived from, with their values; empty if it is the same for all models.
    origins: Vec<String>,
}

impl SizesError {
    /// Compares the planned tensors with the keys. A tensor that needs a key that the card does not write is not
    /// checked.
    ///
    /// `sources` returns the names of a tensor's weights. `set` has the keys set by the user.
    pub(super) fn check(
        mapping: &Mapping,
        metadata: &Metadata,
        tensors: &[TensorMeta],
        sources: &dyn Fn(usize) -> Vec<String>,
        set: &[(String, Value)],
    ) -> Result<(), Box<Self>> {
        let mut check = check_shapes(metadata, tensors);
        // A key that the card does not write is its author's choice; no configuration can supply it.
        check.missing_keys.retain(|(_, key)| mapping.card.may_write(key));
        let is_turned = !check.wrong.is_empty() && check.wrong.iter().all(is_turned);
        let (problem, found) = match (check.wrong.is_empty(), check.missing_keys.is_empty()) {
            (false, _) => (
                SizeProblem::Contradicts,
                check.wrong.iter().map(ReportedTensor::of_wrong).collect::<Vec<_>>(),
            ),
            (true, false) => {
                let undeclared = check.missing_keys.iter();
                let found = undeclared.map(|(tensor, key)| ReportedTensor::of_undeclared(*tensor, key));
                (SizeProblem::Lacks, found.collect())
            }
            (true, true) => return Ok(()),
        };
        let is_wrong = |at: usize| check.wrong.iter().any(|wrong| wrong.tensor == at);
        let is_uneven = !check.wrong.is_empty()
            && check.wrong.iter().all(|wrong| {
                let own = tensors.get(wrong.tensor).and_then(|tensor| in_block(&tensor.name));
                let same = |(at, other): (usize, &TensorMeta)| in_block(&other.name) == own && !is_wrong(at);
                own.is_some() && tensors.iter().enumerate().any(same)
            });
        let rows = different_rows(&check.wrong, tensors);
        let is_set = |key: &str| set.iter().any(|(set, _)| set == key);
        let explained = |found: &ReportedTensor| -> Vec<(String, String)> {
            let of_key = |(key, value): &(String, String)| match mapping.origins.get(key) {
                Some(origins) if !is_set(key) && !origins.is_empty() => {
                    origins.iter().map(|origin| (origin.key.clone(), origin.to_string())).collect()
                }
                _ => vec![(key.clone(), format!("`{}`{value}", escape(key)))],
            };
            let mut all: Vec<(String, String)> = found.keys.iter().flat_map(of_key).collect();
            all.sort();
            all.dedup();
            all
        };
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let is_of_file = |key: &str| found.iter().any(|found| found.keys.iter().any(|(own, _)| own == key));
        for (key, _) in found.iter().flat_map(explained).filter(|(key, _)| !is_of_file(key)) {
            *counts.entry(key).or_default() += 1;
        }
        let by_hand =
            found.iter().flat_map(|found| &found.keys).map(|(key, _)| key).filter(|key| is_set(key));
        let mut by_hand: Vec<String> = by_hand.cloned().collect();
        by_hand.sort();
        by_hand.dedup();
        let most = counts.values().copied().max().unwrap_or(0);
        let keys = counts.into_iter().filter(|(_, n)| *n == most).map(|(key, _)| key).collect();
        let example = |found: &ReportedTensor| {
            let tensor = tensors.get(found.tensor)?;
            Some(Contradiction {
                output: tensor.name.clone(),
                sources: sources(found.tensor),
                found: tensor.shape.to_string(),
                expected: found.expected.clone(),
                origins: explained(found).into_iter().map(|(_, origin)| origin).collect(),
            })
        };
        let examples = found.iter().take(MAX_EXAMPLES).filter_map(example).collect();
        Err(Box::new(Self { problem, examples, n: found.len(), keys, by_hand, is_turned, is_uneven, rows }))
    }
}

/// Returns the rows of embedding and head if they differ and no other tensor is wrong: no configuration fits both.
fn different_rows(wrong: &[WrongShape], tensors: &[TensorMeta]) -> Option<(u64, u64)> {
    const OF_VOCABULARY: [&str; 2] = ["token_embd.weight", "output.weight"];
    let is_of_vocabulary = |wrong: &WrongShape| {
        tensors.get(wrong.tensor).is_some_and(|tensor| OF_VOCABULARY.contains(&tensor.name.as_str()))
    };
    let dims = OF_VOCABULARY
        .map(|name| tensors.iter().find(|tensor| tensor.name == name).map(|own| own.shape.dims()));
    match dims {
        [Some([embedding, width]), Some([head, inputs])] if width == inputs && embedding != head => {
            (!wrong.is_empty() && wrong.iter().all(is_of_vocabulary)).then_some((*embedding, *head))
        }
        _ => None,
    }
}

/// Returns the name of a block's tensor without the block.
fn in_block(name: &str) -> Option<&str> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    number.parse::<u64>().is_ok().then_some(rest)
}

/// Returns true for a matrix that is right with rows and columns exchanged.
fn is_turned(wrong: &WrongShape) -> bool {
    let mut dims = wrong.found.dims().to_vec();
    let n = dims.len();
    n >= 2 && {
        dims.swap(n - 2, n - 1);
        dims.iter()
            .zip(&wrong.expected)
            .all(|(dim, expected)| expected.is_none_or(|expected| expected == *dim))
    }
}

struct ReportedTensor {
    tensor: usize,
    expected: String,
    /// Keys of the file, with their values.
    keys: Vec<(String, String)>,
}

impl ReportedTensor {
    fn of_wrong(wrong: &WrongShape) -> Self {
        let keys = wrong.keys.iter().map(|(key, value)| (key.clone(), format!(" = {value}")));
        let by = if wrong.keys.is_empty() { "" } else { " by" };
        let expected = format!(", expected {}{by}", wrong.expected());
        Self { tensor: wrong.tensor, expected, keys: keys.collect() }
    }

    fn of_undeclared(tensor: usize, key: &str) -> Self {
        let keys = vec![(key.to_owned(), " is missing".to_owned())];
        Self { tensor, expected: format!(" and needs `{}`:", escape(key)), keys }
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", escape(&self.output))?;
        match self.sources.as_slice() {
            [] => {}
            [one] => write!(f, " (`{}`)", escape(one))?,
            [first, rest @ ..] => write!(f, " (`{}` and {} more)", escape(first), rest.len())?,
        }
        write!(f, " is {}{}", self.found, self.expected)?;
        if self.origins.is_empty() { Ok(()) } else { write!(f, " {}", self.origins.join(", ")) }
    }
}

impl fmt::Display for SizesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.n == 1 { "" } else { "s" };
        match self.problem {
            SizeProblem::Contradicts => {
                write!(f, "the shape{s} of {} tensor{s} and config.json contradict each other: ", self.n)?;
            }
            SizeProblem::Lacks => write!(f, "config.json lacks sizes that {} tensor{s} have: ", self.n)?,
        }
        let examples: Vec<String> = self.examples.iter().map(ToString::to_string).collect();
        f.write_str(&examples.join("; "))?;
        match self.n - self.examples.len() {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl Hint for SizesError {
    fn hints(&self) -> Vec<String> {
        let shown = |keys: &[String]| -> Vec<String> {
            keys.iter().take(MAX_KEYS).map(|key| format!("`{}`", escape(key))).collect()
        };
        let (keys, by_hand) = (shown(&self.keys), shown(&self.by_hand));
        if !by_hand.is_empty() {
            let keys = by_hand.join(" and ");
            return vec![format!("leave out {keys}, set by hand, or give the size that the weights have")];
        }
        if self.is_turned {
            return vec![
                "the matrices are stored as [inputs, outputs], as PaddlePaddle, TensorFlow and Flax do: convert what transformers \
                 saves for PyTorch"
                    .to_owned(),
            ];
        }
        if let Some((embedding, head)) = self.rows {
            return vec![format!(
                "the embedding has {embedding} rows and the head {head}, and runtimes have one vocabulary for both: load the model \
                 in transformers, give both the same rows with `resize_token_embeddings`, and save it again"
            )];
        }
        if self.is_uneven {
            return vec![
                "the other layers have the declared size, and the runtime has one for all: fill up the smaller matrices with zeros \
                 (rows of what goes in, columns of what comes out change nothing), or take the model before it was pruned"
                    .to_owned(),
            ];
        }
        if keys.is_empty() {
            vec!["take the config.json that was saved with these weights".to_owned()]
        } else {
            vec![format!(
                "set {} in config.json to the size that the weights have, or take the config.json that was saved with these weights",
                keys.join(" or ")
            )]
        }
    }
}
