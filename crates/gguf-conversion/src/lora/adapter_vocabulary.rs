//! Adapters with another number of tokens than their base model: embedding and output have rows of their own.

use std::fmt;

use serde_json::{Map, Value as Json};

use crate::lora::AdapterError;
use gguf_checkpoint::ModelDir;
use gguf_core::WeightMeta;
use gguf_dequant::Replaced;

/// Configuration key of the number of tokens.
const SIZE: &str = "vocab_size";

/// Number of tokens that differs from the base model's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResizedVocabulary {
    tensor: String,
    base_rows: u64,
    rows: u64,
}

impl fmt::Display for ResizedVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, base_rows, rows } = self;
        write!(
            f,
            "`{tensor}` has {rows} rows in the adapter and {base_rows} in the base model: the vocabulary has {rows} tokens"
        )
    }
}

impl ResizedVocabulary {
    /// Sets the number of tokens in the configuration of the base model's directory.
    pub(super) fn configured(&self, dir: ModelDir) -> ModelDir {
        let mut config = dir.config().clone();
        self.set(&mut config);
        if let Some(text) = config.get_mut("text_config").and_then(Json::as_object_mut) {
            self.set(text);
        }
        dir.with_config(config)
    }

    fn set(&self, config: &mut Map<String, Json>) {
        if let Some(size) = config.get_mut(SIZE) {
            *size = self.rows.into();
        }
    }
}

/// Allows tensors of the vocabulary to have another number of rows: tensors with one row per token, outside all blocks.
///
/// # Errors
/// [`AdapterError::Resized`]: another tensor of the vocabulary keeps its rows, or has a third number of rows.
pub(super) fn resize(
    replaced: &mut [Replaced],
    base: &[WeightMeta],
    adapter: &[WeightMeta],
    is_tied: bool,
) -> Result<Option<ResizedVocabulary>, AdapterError> {
    let mut found: Option<ResizedVocabulary> = None;
    for row in replaced.iter_mut() {
        // An output that was tied to the embeddings is none of the base's tensors.
        let Some(own) = base.get(row.base) else { continue };
        let by = &adapter[row.by];
        let (&[base_rows, base_cols], &[rows, cols]) = (own.shape.dims(), by.shape.dims()) else { continue };
        if base_cols != cols || rows == base_rows || is_of_block(&own.name) {
            continue;
        }
        row.resizes = true;
        match &found {
            None => found = Some(ResizedVocabulary { tensor: own.name.clone(), base_rows, rows }),
            Some(first) if (first.base_rows, first.rows) != (base_rows, rows) => {
                let (resized, kept) = (own.name.clone(), first.tensor.clone());
                return Err(AdapterError::Resized { resized, kept, rows, base_rows });
            }
            Some(_) => {}
        }
    }
    let Some(found) = found else { return Ok(None) };
    let n_cols = base.iter().find(|meta| meta.name == found.tensor).map_or(0, |meta| meta.shape.n_cols());
    // An output that shares the embeddings' weights is not read.
    let kept =
        base.iter().enumerate().filter(|(at, _)| !is_tied && !replaced.iter().any(|row| row.base == *at));
    let mut kept = kept.map(|(_, meta)| meta).filter(|meta| !is_of_block(&meta.name));
    if let Some(kept) = kept.find(|meta| *meta.shape.dims() == [found.base_rows, n_cols]) {
        let (resized, kept) = (found.tensor.clone(), kept.name.clone());
        let (rows, base_rows) = (found.rows, found.base_rows);
        return Err(AdapterError::Resized { resized, kept, rows, base_rows });
    }
    Ok(Some(found))
}

/// Returns true if a tensor belongs to a numbered block.
fn is_of_block(name: &str) -> bool {
    name.split('.').any(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{ElementType, Shape};

    fn metas(rows: &[(&str, &[u64])]) -> Vec<WeightMeta> {
        let meta = |(name, dims): &(&str, &[u64])| WeightMeta {
            name: (*name).to_owned(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: ElementType::F32,
        };
        rows.iter().map(meta).collect()
    }

    #[test]
    fn all_tensors_of_the_vocabulary_change_or_none() {
        let base = metas(&[("embed", &[8, 4]), ("head", &[8, 4]), ("layers.0.up", &[8, 4]), ("norm", &[4])]);
        let row = |base, by| Replaced { base, by, resizes: false };
        let run = |adapter: &[(&str, &[u64])], replaced: &[Replaced], is_tied| {
            let mut replaced = replaced.to_vec();
            let found = resize(&mut replaced, &base, &metas(adapter), is_tied);
            found.map(|found| {
                (found.map(|found| found.rows), replaced.iter().filter(|row| row.resizes).count())
            })
        };
        let both: &[(&str, &[u64])] = &[("e", &[9, 4]), ("h", &[9, 4])];
        assert_eq!(run(both, &[row(0, 0), row(1, 1)], false).unwrap(), (Some(9), 2));
        assert_eq!(run(both, &[row(0, 0)], true).unwrap(), (Some(9), 1));
        assert_eq!(
            run(both, &[row(0, 0)], false).unwrap_err().to_string(),
            "tensor `embed`: 9 rows in the adapter in place of 8, but `head` of the base model keeps 8"
        );
        assert!(run(&[("e", &[9, 4]), ("h", &[10, 4])], &[row(0, 0), row(1, 1)], false).is_err());
        // A tensor that is not part of the vocabulary is refused later because of its shape.
        assert_eq!(run(&[("u", &[9, 4])], &[row(2, 0)], false).unwrap(), (None, 0));
        assert_eq!(run(&[("e", &[8, 5])], &[row(0, 0)], false).unwrap(), (None, 0));
        assert_eq!(run(&[("e", &[8, 4])], &[row(0, 0)], false).unwrap(), (None, 0));
    }
}
