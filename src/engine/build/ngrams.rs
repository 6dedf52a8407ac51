//! Builds what n-grams of tokens add to the streams.

use crate::core::Shape;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{NgramTable, Ngrams, Norm};

const LAYERS: &str = "ple.layers";
const SIZE: &str = "ple.ngram_size";
const OFFSETS: &str = "ple.head_offsets";
const SIZES: &str = "ple.head_vocab_sizes";
const MULTIPLIERS: &str = "ple.layer_multipliers";
/// Longer n-grams than any model has.
const MOST_TOKENS: usize = 64;

impl Builder<'_> {
    /// What n-grams add to the `n_streams` streams of a layer, if it is the one that the file names.
    pub(super) fn ngrams(
        &mut self,
        layer: usize,
        n_streams: usize,
    ) -> Result<Option<Box<Ngrams>>, EngineError> {
        let Some(layers) = self.keys.counts(LAYERS)? else { return Ok(None) };
        if layers.len() > 1 {
            // There is one table, and one row of hashes.
            return Err(self.keys.unknown(LAYERS, "one layer", &format!("{} layers", layers.len())));
        }
        if !layers.contains(&layer) {
            return Ok(None);
        }
        let at = |name: &str| format!("blk.{layer}.ple_{name}");
        let n_embd = self.n_embd;
        let all = n_embd.saturating_mul(n_streams);
        let table = self.ngram_table()?;
        let n_cols = table.parts.len().saturating_mul(table.rows.n_cols);
        let n_taps = self.keys.need_count("ple.conv_kernel")?;
        let mut norm = |name: &str| -> Result<Norm, EngineError> {
            let found = self.norm_of(&at(name), all)?;
            found.ok_or_else(|| EngineError::MissingTensor { tensor: format!("{}.weight", at(name)) })
        };
        let (key_norm, query_norm, conv_norm) = (norm("norm_key")?, norm("norm_query")?, norm("norm_conv")?);
        Ok(Some(Box::new(Ngrams {
            key: self.tensors.need_matrix(&at("key"), all, n_cols)?,
            value: self.tensors.need_matrix(&at("value"), n_embd, n_cols)?,
            key_norm,
            query_norm,
            conv_norm,
            conv: self.need_vector(&format!("{}.weight", at("conv1d")), all.saturating_mul(n_taps))?,
            n_taps,
            dilation: table.multipliers.len(),
            table,
        })))
    }

    fn ngram_table(&mut self) -> Result<NgramTable, EngineError> {
        let n_tokens = self.keys.need_count(SIZE)?;
        if !(2..=MOST_TOKENS).contains(&n_tokens) {
            return Err(self.keys.unknown(SIZE, "from 2 to 64", &n_tokens.to_string()));
        }
        let n_per_length = self.keys.need_count("ple.heads_per_ngram")?;
        let n_parts = n_per_length.saturating_mul(n_tokens - 1);
        let list = |key: &'static str, len: usize, expected| {
            let found = self.keys.counts(key)?.ok_or_else(|| self.keys.missing(key))?;
            let n = found.len();
            if n == len { Ok(found) } else { Err(self.keys.unknown(key, expected, &n.to_string())) }
        };
        let multipliers = list(MULTIPLIERS, n_tokens, "as many as `ple.ngram_size`")?;
        let expected = "`ple.heads_per_ngram` for each length of n-grams";
        let (offsets, sizes) = (list(OFFSETS, n_parts, expected)?, list(SIZES, n_parts, expected)?);
        let end = "ple.eos_token_id";
        let end = self.keys.count(end)?.ok_or_else(|| self.keys.missing(end))?;
        let width = self.keys.need_count("embedding_length_per_layer_input")?;
        let name = "per_layer_token_embd";
        let n_rows = self.tensors.shape(&format!("{name}.weight")).map_or(0, Shape::n_rows);
        let rows = self.tensors.need_matrix(name, usize::try_from(n_rows).unwrap_or(usize::MAX), width)?;
        for (&first, &n) in offsets.iter().zip(&sizes) {
            if n == 0 || first.checked_add(n).is_none_or(|end| end > rows.n_rows) {
                let found = format!("{n} from {first} on, of {}", rows.n_rows);
                return Err(self.keys.unknown(SIZES, "rows of the table", &found));
            }
        }
        Ok(NgramTable {
            rows,
            multipliers: multipliers.into_iter().map(|factor| factor as u64).collect(),
            parts: offsets.into_iter().zip(sizes).collect(),
            n_per_length,
            end: u32::try_from(end).unwrap_or(u32::MAX),
        })
    }
}
