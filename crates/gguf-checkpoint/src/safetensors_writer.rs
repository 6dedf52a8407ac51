//! Writes a checkpoint: safetensors shards and their index, streamed from any [`WeightSource`].
//!
//! Each shard is planned first: its header and the position of every tensor follow from names, shapes and types. Then
//! row ranges are written to their positions from all cores, in bounded memory.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use rayon::prelude::*;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use gguf_core::output::{NewDirectory, OutputError, OutputFile, WriteBack, io_hints};
use gguf_core::progress::Progress;
use gguf_core::{ElementType, Hint, SourceError, WeightMeta, WeightSource};

/// Reasons why a checkpoint cannot be written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum WriteCheckpointError {
    #[error("tensor `{tensor}`: element type {ty} cannot be written to safetensors")]
    ElementType { tensor: String, ty: ElementType },
    #[error("tensor `{tensor}`: size overflows")]
    Overflow { tensor: String },
    #[error("{file}: {source}")]
    Header { file: String, source: safetensors::SafeTensorError },
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("interrupted")]
    Cancelled,
}

impl Hint for WriteCheckpointError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Output(error) => error.hints(),
            Self::Io(error) => io_hints(error),
            Self::ElementType { .. }
            | Self::Overflow { .. }
            | Self::Header { .. }
            | Self::Source(_)
            | Self::Cancelled => Vec::new(),
        }
    }
}

/// Options of [`write_checkpoint`].
#[derive(Clone, Copy, Debug)]
pub struct WriteCheckpointOptions {
    /// Largest shard, in bytes of tensor data.
    ///
    /// A single tensor may exceed it.
    pub max_shard_bytes: u64,
    /// Memory for buffers in bytes, over all threads.
    pub memory_bytes: u64,
    /// True to flush files to disk before they are renamed to their final names.
    pub sync: bool,
}

/// A small file of the checkpoint in addition to the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideFile {
    /// Path within the directory; at most one directory below it.
    pub name: &'static str,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

/// The plan of one weight file.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    /// File name within the directory.
    pub file_name: String,
    /// Tensors: index into the source, offset in the file.
    pub tensors: Vec<(usize, u64)>,
    /// Length word and JSON header.
    pub header: Vec<u8>,
    /// Size of the file.
    pub n_bytes: u64,
}

/// Distributes tensors over shards, in their order, and plans each file.
///
/// # Errors
/// Types that safetensors does not support, sizes that overflow.
pub fn plan_shards(
    weights: &[WeightMeta],
    max_shard_bytes: u64,
) -> Result<Vec<ShardPlan>, WriteCheckpointError> {
    let mut groups: Vec<Vec<(usize, u64)>> = vec![Vec::new()];
    let mut filled = 0u64;
    for (index, weight) in weights.iter().enumerate() {
        let overflow = || WriteCheckpointError::Overflow { tensor: weight.name.clone() };
        let n_bytes = weight
            .ty
            .bytes()
            .and_then(|bytes| weight.shape.n_elems().checked_mul(bytes as u64))
            .ok_or_else(overflow)?;
        let total = filled.checked_add(n_bytes).ok_or_else(overflow)?;
        let is_open = groups.last().is_some_and(|group| !group.is_empty());
        if is_open && total > max_shard_bytes {
            groups.push(Vec::new());
            filled = 0;
        }
        filled = filled.checked_add(n_bytes).ok_or_else(overflow)?;
        if let Some(group) = groups.last_mut() {
            group.push((index, n_bytes));
        }
    }
    let count = groups.len();
    groups
        .into_iter()
        .enumerate()
        .map(|(number, group)| {
            let file_name = if count == 1 {
                "model.safetensors".to_owned()
            } else {
                format!("model-{:05}-of-{count:05}.safetensors", number + 1)
            };
            plan_shard(file_name, weights, &group)
        })
        .collect()
}

fn plan_shard(
    file_name: String,
    weights: &[WeightMeta],
    group: &[(usize, u64)],
) -> Result<ShardPlan, WriteCheckpointError> {
    let mut infos = Vec::with_capacity(group.len());
    let mut positions = Vec::with_capacity(group.len());
    let mut begin = 0u64;
    for &(index, n_bytes) in group {
        let weight = &weights[index];
        let overflow = || WriteCheckpointError::Overflow { tensor: weight.name.clone() };
        let to_usize = |n: u64| usize::try_from(n).map_err(|_| overflow());
        let end = begin.checked_add(n_bytes).ok_or_else(overflow)?;
        let info = TensorInfo {
            dtype: dtype(weight)?,
            shape: weight.shape.dims().iter().map(|&dim| to_usize(dim)).collect::<Result<_, _>>()?,
            data_offsets: (to_usize(begin)?, to_usize(end)?),
        };
        infos.push((weight.name.clone(), info));
        positions.push((index, begin));
        begin = end;
    }
    // transformers requires this entry in every file that it loads.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos)
        .map_err(|source| WriteCheckpointError::Header { file: file_name.clone(), source })?;
    let mut json = serde_json::to_vec(&metadata).map_err(io::Error::from)?;
    // Tensor data starts at a multiple of eight bytes, as the reference writer pads it.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(&json);
    let data_offset = header.len() as u64;
    let tensors = positions.into_iter().map(|(index, begin)| (index, data_offset + begin)).collect();
    Ok(ShardPlan { file_name, tensors, n_bytes: data_offset + begin, header })
}

fn dtype(weight: &WeightMeta) -> Result<Dtype, WriteCheckpointError> {
    Ok(match weight.ty {
        ElementType::F64 => Dtype::F64,
        ElementType::F32 => Dtype::F32,
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::I64 => Dtype::I64,
        ElementType::I32 => Dtype::I32,
        ElementType::I16 => Dtype::I16,
        ElementType::I8 => Dtype::I8,
        ElementType::U8 => Dtype::U8,
        ElementType::Bool => Dtype::BOOL,
        ty => return Err(WriteCheckpointError::ElementType { tensor: weight.name.clone(), ty }),
    })
}

/// The index of a sharded checkpoint (`model.safetensors.index.json`); `None` for a single file.
pub(crate) fn index_json(weights: &[WeightMeta], shards: &[ShardPlan]) -> Option<String> {
    if shards.len() < 2 {
        return None;
    }
    let total: u64 = shards.iter().map(|shard| shard.n_bytes - shard.header.len() as u64).sum();
    let mut names: Vec<(&str, &str)> = shards
        .iter()
        .flat_map(|shard| {
            shard.tensors.iter().map(|&(index, _)| (weights[index].name.as_str(), shard.file_name.as_str()))
        })
        .collect();
    names.sort_unstable();
    let weight_map: serde_json::Map<String, serde_json::Value> =
        names.into_iter().map(|(name, file)| (name.to_owned(), file.into())).collect();
    let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    Some(format!("{index:#}\n"))
}

/// Writes the shards of `source` into `dir`, then the index if there are several shards, then the files `side_files`.
///
/// All files get their final names at the end, in this order, so that a run that fails or is killed leaves none.
pub fn write_checkpoint(
    mut dir: NewDirectory,
    source: &dyn WeightSource,
    side_files: &[SideFile],
    options: &WriteCheckpointOptions,
    progress: &dyn Progress,
) -> Result<Vec<PathBuf>, WriteCheckpointError> {
    let weights = source.weights();
    let shards = plan_shards(weights, options.max_shard_bytes)?;
    dir.begin()?;
    // One more for the index.
    dir.expect(shards.len() + 1 + side_files.len(), options.sync);
    progress.begin("writing", shards.iter().map(|shard| shard.n_bytes).sum());
    let mut outputs = Vec::with_capacity(shards.len() + 1);
    for shard in &shards {
        let output = dir.create(&shard.file_name)?;
        output.reserve(shard.n_bytes)?;
        output.write_at(0, &shard.header)?;
        let (written, synced) =
            WriteBack::during(std::slice::from_ref(&output), options.sync, |write_back| {
                write_tensors(&output, write_back, shard, source, options, progress)
            });
        written?;
        synced?;
        progress.advance(shard.header.len() as u64);
        outputs.push(output);
    }
    let index = index_json(weights, &shards)
        .map(|json| SideFile { name: "model.safetensors.index.json", bytes: json.into_bytes() });
    for file in index.iter().chain(side_files) {
        if let Some((folder, _)) = file.name.split_once('/') {
            dir.create_folder(folder)?;
        }
        let output = dir.create(file.name)?;
        output.write_at(0, &file.bytes)?;
        outputs.push(output);
    }
    let paths = outputs.iter().map(|output| output.target().to_owned()).collect();
    dir.commit(outputs, options.sync)?;
    progress.end();
    Ok(paths)
}

fn write_tensors(
    output: &OutputFile,
    write_back: &WriteBack<'_>,
    shard: &ShardPlan,
    source: &dyn WeightSource,
    options: &WriteCheckpointOptions,
    progress: &dyn Progress,
) -> Result<(), WriteCheckpointError> {
    let weights = source.weights();
    let n_threads = rayon::current_num_threads() as u64;
    // One buffer per thread here, and about as much in the layers below the source.
    let chunk_bytes = (options.memory_bytes / (n_threads * 4)).clamp(64 << 10, 4 << 20);
    let mut chunks = Vec::new();
    for &(index, offset) in &shard.tensors {
        let weight = &weights[index];
        let elem_bytes = weight.ty.bytes().unwrap_or(1) as u64;
        let cols = weight.shape.n_cols().max(1);
        // Whole rows where they fit, so that sources that decode by row do not decode twice.
        let rows_per_chunk = (chunk_bytes / (cols * elem_bytes).max(1)).max(1);
        let step = rows_per_chunk.saturating_mul(cols);
        let mut first = 0;
        while first < weight.shape.n_elems() {
            let n = step.min(weight.shape.n_elems() - first);
            chunks.push((index, first, n, offset + first * elem_bytes));
            first += n;
        }
    }
    chunks.par_iter().try_for_each_init(Vec::new, |buffer, &(index, first, n, offset)| {
        if progress.is_cancelled() {
            return Err(WriteCheckpointError::Cancelled);
        }
        let n_bytes = n * weights[index].ty.bytes().unwrap_or(1) as u64;
        let len = usize::try_from(n_bytes)
            .map_err(|_| WriteCheckpointError::Overflow { tensor: weights[index].name.clone() })?;
        buffer.resize(len, 0u8);
        source.read_elems(index, first, buffer)?;
        output.write_at(offset, buffer)?;
        write_back.wrote(0, n_bytes)?;
        source.release_elems(index, first, n);
        progress.advance(n_bytes);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::progress::{CancelFlag, Silent};
    use gguf_testkit::memory::MemoryWeights;

    fn weights() -> MemoryWeights {
        let bytes = |seed: u8, n: u8| (0..n).map(|i| i.wrapping_add(seed)).collect();
        MemoryWeights::default()
            .with("b", &[3, 5], ElementType::F32, bytes(0, 60))
            .with("a", &[7], ElementType::Bf16, bytes(50, 14))
            .with("empty", &[0, 4], ElementType::F16, Vec::new())
            .with("c", &[2, 2, 2], ElementType::I64, bytes(150, 64))
    }

    fn options(max_shard_bytes: u64) -> WriteCheckpointOptions {
        WriteCheckpointOptions { max_shard_bytes, memory_bytes: 1 << 20, sync: false }
    }

    #[test]
    fn the_reference_crate_reads_what_is_written() {
        let source = weights();
        let dir = tempfile::tempdir().unwrap();
        let paths = write_checkpoint(
            NewDirectory::of(dir.path()).unwrap(),
            &source,
            &[],
            &options(u64::MAX),
            &Silent,
        )
        .unwrap();
        assert_eq!(paths, [dir.path().join("model.safetensors")]);
        let bytes = fs_err::read(&paths[0]).unwrap();
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.len(), 4);
        for (at, weight) in source.weights().iter().enumerate() {
            let view = read.tensor(&weight.name).unwrap();
            assert_eq!(view.data(), source.bytes(at), "{}", weight.name);
            assert_eq!(view.shape().iter().map(|&d| d as u64).collect::<Vec<_>>(), weight.shape.dims());
        }
    }

    #[test]
    fn shards_fill_up_in_order_and_the_index_names_them() {
        let source = weights();
        let dir = tempfile::tempdir().unwrap();
        let paths =
            write_checkpoint(NewDirectory::of(dir.path()).unwrap(), &source, &[], &options(70), &Silent)
                .unwrap();
        assert_eq!(paths.len(), 4);
        let index: serde_json::Value = serde_json::from_slice(&fs_err::read(&paths[3]).unwrap()).unwrap();
        assert_eq!(index["metadata"]["total_size"], 60 + 14 + 64);
        assert_eq!(index["weight_map"]["b"], "model-00001-of-00003.safetensors");
        assert_eq!(index["weight_map"]["a"], "model-00002-of-00003.safetensors");
        assert_eq!(index["weight_map"]["c"], "model-00003-of-00003.safetensors");
    }

    #[test]
    fn an_interrupted_run_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let flag = CancelFlag::default();
        flag.cancel();
        let result =
            write_checkpoint(NewDirectory::of(dir.path()).unwrap(), &weights(), &[], &options(70), &flag);
        assert!(matches!(result, Err(WriteCheckpointError::Cancelled)));
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
    }
}
