//! `gguf-inspect memory --fit`: the file or the type of a model that fits into a memory.

use std::path::{Path, PathBuf};

use anyhow::bail;
use serde::Serialize;

use crate::arch::diffusion::DiffusionRules;
use crate::cli::Session;
use crate::cli::memory::{ModelMemory, weight_bytes};
use crate::cli::remote::{RemoteArgs, gguf_names, open_header};
use crate::cli::render::{Align, Table, count};
use crate::convert::ConvertOptions;
use crate::core::progress::Progress as _;
use crate::core::shard_name::ShardName;
use crate::core::text::{bytes, escape};
use crate::core::written::as_path;
use crate::core::{GgmlType, TensorSource};
use crate::gguf::{GgufFile, OpenOptions};
use crate::job::JobInput;
use crate::job::type_sizes::TypeSizes;

/// Types of keys and values that are tried if nothing larger fits otherwise, from large to small.
const SMALLER: [GgmlType; 3] = [GgmlType::Q8_0, GgmlType::Q5_0, GgmlType::Q4_0];

/// Memory, context and type of keys and values that are asked for.
pub(super) struct Asked {
    pub(super) fit_bytes: u64,
    /// Tokens of context; `None` for the largest that is usual for a model.
    pub(super) tokens: Option<u64>,
    pub(super) kv: GgmlType,
}

/// Report of `gguf-inspect memory --fit`.
#[derive(Debug, Serialize)]
pub(super) struct FitDocument {
    /// What fits, for each model.
    pub(super) models: Vec<FitReport>,
}

/// What fits of one model.
#[derive(Debug, Serialize)]
pub(super) struct FitReport {
    /// Path of the file, the folder or the checkpoint, or the model's name on a server.
    #[serde(serialize_with = "as_path")]
    path: PathBuf,
    /// Bytes that all has to fit into.
    fit_bytes: u64,
    /// Tokens of context; null for a model that keeps nothing of a text.
    tokens: Option<u64>,
    /// Type of kept keys and values.
    kv_type: &'static str,
    /// Name of the largest choice that fits; null if none does.
    best: Option<String>,
    /// Files, or types that can be made, the largest first.
    choices: Vec<FittingType>,
    /// Larger choices that fit with smaller keys and values.
    with_smaller_kv: Vec<SmallerKv>,
}

/// File, or type of a file that can be made.
#[derive(Debug, Serialize)]
struct FittingType {
    /// Name of the file, or of the type.
    name: String,
    /// True if the file exists.
    exists: bool,
    /// True for a type that needs an importance matrix.
    needs_importance: bool,
    /// Bytes of all tensors.
    weight_bytes: u64,
    /// Bytes of keys and values, states and compute; 0 for image and video models, whose need depends on the image.
    context_bytes: u64,
    /// Bytes of all.
    total_bytes: u64,
    /// True if it fits.
    fits: bool,
    #[serde(skip)]
    memory: Option<ModelMemory>,
}

/// The largest choice that fits with a smaller type of keys and values.
#[derive(Debug, Serialize)]
struct SmallerKv {
    /// Type of keys and values.
    kv_type: &'static str,
    /// Name of the choice.
    name: String,
    /// Bytes of all.
    total_bytes: u64,
}

impl FitReport {
    /// Finds what fits of the model or the files that a path or a name on a server stands for.
    pub(super) fn of(path: &Path, asked: &Asked, session: &Session) -> anyhow::Result<Self> {
        let mut choices = Vec::new();
        let files = match gguf_names(session, path)? {
            Some(names) => names,
            None => files_of(path)?,
        };
        for file in &files {
            choices.extend(of_file(file, session)?);
        }
        // A file of floats can be quantized; a folder of files is a choice among them.
        let is_alone = files == [path.to_owned()] && path.exists();
        if is_alone || files.is_empty() {
            let model = RemoteArgs::default().directory(session, path)?;
            choices.extend(not_made(model.path(), &choices)?);
        }
        let usual =
            choices.iter().find_map(|choice| choice.memory.as_ref()?.usual_contexts().into_iter().max());
        let tokens = asked.tokens.or(usual);
        for choice in &mut choices {
            choice.context_bytes = choice.of_context(tokens, asked.kv)?;
            choice.total_bytes = choice.weight_bytes.saturating_add(choice.context_bytes);
            choice.fits = choice.total_bytes <= asked.fit_bytes;
        }
        choices.sort_by_key(|choice| std::cmp::Reverse(choice.weight_bytes));
        if choices.is_empty() {
            bail!("{}: neither a model nor files of one", escape(&path.display().to_string()));
        }
        let best = choices.iter().find(|choice| choice.fits);
        let mut with_smaller_kv: Vec<SmallerKv> = Vec::new();
        let mut largest = best.map_or(0, |best| best.weight_bytes);
        for kv in SMALLER.into_iter().filter(|kv| kv.bits_per_weight() < asked.kv.bits_per_weight()) {
            // A type whose blocks do not fit the heads is no choice.
            let total = |choice: &FittingType| {
                Some(choice.weight_bytes.saturating_add(choice.of_context(tokens, kv).ok()?))
            };
            let fits = |choice: &&FittingType| total(choice).is_some_and(|total| total <= asked.fit_bytes);
            if let Some(choice) = choices.iter().find(fits).filter(|choice| choice.weight_bytes > largest) {
                largest = choice.weight_bytes;
                let total_bytes = total(choice).unwrap_or_default();
                with_smaller_kv.push(SmallerKv {
                    kv_type: kv.name(),
                    name: choice.name.clone(),
                    total_bytes,
                });
            }
        }
        Ok(Self {
            path: path.to_owned(),
            fit_bytes: asked.fit_bytes,
            tokens,
            kv_type: asked.kv.name(),
            best: best.map(|best| best.name.clone()),
            choices,
            with_smaller_kv,
        })
    }

    /// Prints the choices, and which fits.
    pub(super) fn lines(&self) -> (Table, Vec<String>) {
        let mut table = Table::new(&[
            ("file or type", Align::Left),
            ("weights", Align::Right),
            ("context", Align::Right),
            ("together", Align::Right),
            ("", Align::Left),
        ]);
        for choice in &self.choices {
            let notes = [
                (choice.fits, "fits"),
                (!choice.exists, "to be made"),
                (choice.needs_importance, "needs an importance matrix"),
            ];
            let notes: Vec<&str> = notes.into_iter().filter(|note| note.0).map(|note| note.1).collect();
            let sizes = [choice.weight_bytes, choice.context_bytes, choice.total_bytes].map(bytes);
            let name = std::iter::once(escape(&choice.name).into_owned());
            table.row(name.chain(sizes).chain([notes.join(", ")]));
        }
        let context = match self.tokens {
            Some(tokens) => {
                format!("a context of {} tokens, keys and values as {}", count(tokens), self.kv_type)
            }
            None => "the weights alone".to_owned(),
        };
        let within = bytes(self.fit_bytes);
        let mut lines = vec![match &self.best {
            Some(best) => format!("{within} hold {} with {context}", escape(best)),
            None => format!("none fits into {within} with {context}"),
        }];
        lines.extend(self.with_smaller_kv.iter().map(|smaller| {
            format!(
                "with `--kv {}`: {}, {}",
                smaller.kv_type,
                escape(&smaller.name),
                bytes(smaller.total_bytes)
            )
        }));
        (table, lines)
    }
}

impl FittingType {
    /// Bytes of keys and values, states and compute for a context.
    fn of_context(&self, tokens: Option<u64>, kv: GgmlType) -> anyhow::Result<u64> {
        let (Some(memory), Some(tokens)) = (&self.memory, tokens) else { return Ok(0) };
        Ok(memory.at(tokens, kv, 0)?.total_bytes)
    }
}

/// Returns the GGUF files that a local path names: itself, or those of a folder. Of a split model it is the first part.
fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        let is_model = matches!(JobInput::of_path(path.to_owned()), JobInput::Gguf(_));
        return Ok(if is_model && path.exists() { vec![path.to_owned()] } else { Vec::new() });
    }
    let mut files = Vec::new();
    for entry in fs_err::read_dir(path)? {
        files.push(entry?.path());
    }
    files.retain(|file| is_first(file));
    files.sort();
    // A checkpoint's folder may hold a file of it.
    Ok(if path.join("config.json").is_file() { Vec::new() } else { files })
}

/// Returns true for a GGUF file that is not a later part of a split model.
pub(in crate::cli) fn is_first(file: &Path) -> bool {
    let is_gguf = file.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    is_gguf && ShardName::of(name).is_none_or(|part| part.number == 1)
}

/// Returns the choice that a file is; `None` with a note for one that is no model by itself.
fn of_file(path: &Path, session: &Session) -> anyhow::Result<Option<FittingType>> {
    let file = open_header(session, path, &OpenOptions::foreign())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let memory = match ModelMemory::of(file.metadata(), file.tensors()) {
        Ok(memory) => Some(memory),
        Err(_) if is_image(&file) => None,
        Err(error) => {
            session.progress.warn(&format!("{} is left out: {error}", escape(&name)));
            return Ok(None);
        }
    };
    Ok(Some(choice(name, true, false, weight_bytes(&file), memory)))
}

fn is_image(file: &GgufFile) -> bool {
    DiffusionRules::of_file(file.metadata(), file.tensors()).ok().flatten().is_some()
}

/// Returns the types that a checkpoint, or a file of floats, can be quantized to.
fn not_made(path: &Path, made: &[FittingType]) -> anyhow::Result<Vec<FittingType>> {
    let input = JobInput::of_path(path.to_owned());
    if let JobInput::Gguf(file) = &input {
        let file = GgufFile::open_with(file, &OpenOptions::foreign())?;
        if file.tensors().iter().any(|tensor| tensor.ty.is_quantized()) {
            return Ok(Vec::new());
        }
    }
    let TypeSizes { metadata, tensors, is_image, types } = TypeSizes::of(&input, &ConvertOptions::default())?;
    let memory = match ModelMemory::of(&metadata, &tensors) {
        Ok(memory) => Some(memory),
        Err(_) if is_image => None,
        Err(error) => return Err(error.into()),
    };
    let largest = made.iter().map(|own| own.weight_bytes).max().unwrap_or(u64::MAX);
    let smaller = types.into_iter().filter(|ty| ty.weight_bytes < largest);
    Ok(smaller
        .map(|ty| choice(ty.name, false, ty.needs_importance, ty.weight_bytes, memory.clone()))
        .collect())
}

fn choice(
    name: String,
    exists: bool,
    needs_importance: bool,
    weight_bytes: u64,
    memory: Option<ModelMemory>,
) -> FittingType {
    FittingType {
        name,
        exists,
        needs_importance,
        weight_bytes,
        context_bytes: 0,
        total_bytes: 0,
        fits: false,
        memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_parts_are_no_files_of_their_own() {
        for (name, expected) in [
            ("m.gguf", true),
            ("m.GGUF", true),
            ("m-00001-of-00003.gguf", true),
            ("m-00002-of-00003.gguf", false),
            ("art-of-war.gguf", true),
            ("m.safetensors", false),
        ] {
            assert_eq!(is_first(Path::new(name)), expected, "{name}");
        }
    }
}
