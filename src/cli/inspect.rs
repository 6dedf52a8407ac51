//! `gguf-inspect`: look into GGUF files, compare, hash, edit, cut and join them.

mod checkpoint;

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Parser, Subcommand};
use serde_json::json;

use crate::cli::render::{Align, Table, count, plural};
use crate::cli::{Common, Exit, Session, Tool, UsageError};
use crate::core::text::{bytes, escape};
use crate::core::{GgmlType, Shape, TensorSource};
use crate::gguf::{GgufFile, SplitSpec, SplitStyle, Value, WriteOptions, WriteReport, parse_assignment};
use crate::inspect::{self, DataDiff, Diff, TensorDiff, value_json, value_text, value_type_name};
use checkpoint::Checkpoint;

/// Characters shown of a string, elements shown of an array.
const SHOWN_CHARS: usize = 120;
const SHOWN_ELEMS: usize = 6;

/// Entry of `gguf-inspect`.
#[must_use]
pub fn main() -> std::process::ExitCode {
    crate::cli::run::<Inspect>()
}

/// Look into GGUF files, compare, hash, edit, cut and join them
///
/// Any part of a split model stands for the whole. A file that is called like a command is given as ./NAME.
#[derive(Debug, Parser)]
#[command(name = "gguf-inspect", version = crate::cli::version(), subcommand_negates_reqs = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed (diff: the files differ; checkpoint: it is none), 2 usage, \
    3 the file is broken, 130 interrupted."
)]
struct Inspect {
    #[command(subcommand)]
    command: Option<Command>,
    /// File to describe: metadata, then tensors
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// Show long strings and arrays whole
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare two models: metadata, tensors, decoded values; exit code 1 if they differ
    Diff {
        /// First file
        a: PathBuf,
        /// Second file
        b: PathBuf,
        /// Compare metadata, names, types and shapes only
        #[arg(long)]
        no_data: bool,
    },
    /// Print SHA-256 of each tensor, of all tensor data, and of the file
    Hash {
        /// File
        file: PathBuf,
    },
    /// Set metadata keys; the file is replaced when the new one is complete
    Set {
        /// File, or one part of a split model
        file: PathBuf,
        /// KEY=TYPE:VALUE, for example general.name=str:Tiny or a.b=arr[u32]:[1,2]
        #[arg(required = true, value_name = "KEY=TYPE:VALUE")]
        assignments: Vec<String>,
        /// Write another file instead
        #[arg(short, long, value_name = "PATH")]
        output: Option<PathBuf>,
    },
    /// Remove metadata keys; the file is replaced when the new one is complete
    Remove {
        /// File, or one part of a split model
        file: PathBuf,
        /// Keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        /// Write another file instead
        #[arg(short, long, value_name = "PATH")]
        output: Option<PathBuf>,
    },
    /// Cut a model into parts, as llama-gguf-split does
    Split {
        /// File
        file: PathBuf,
        /// Name of the parts: PATH-00001-of-00003.gguf
        #[arg(short, long, value_name = "PATH")]
        output: PathBuf,
        /// Most bytes of tensors in a part, with K, M or G; powers of 1000 here, as in llama.cpp
        #[arg(long, value_name = "SIZE", value_parser = crate::cli::split_size)]
        split_max_size: Option<u64>,
        /// Most tensors in a part [default: 128, if no size is given]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        #[arg(conflicts_with = "split_max_size")]
        split_max_tensors: Option<u64>,
        /// Keep tensors out of the first part
        #[arg(long)]
        no_tensor_first_split: bool,
    },
    /// Describe a checkpoint: what it is, how it is quantized, and what gguf-convert would make of it
    ///
    /// Architecture, weights, quantization, tokenizer, and what `--type auto` and `--type native` would write. A part
    /// that cannot be converted is listed with the reason, and the rest is described all the same: the exit code is 0
    /// unless there is no configuration to begin with. Weights are not read, but for the scales of one quantized
    /// weight of each kind.
    Checkpoint(Checkpoint),
    /// Join the parts of a split model, given any of them
    Merge {
        /// One part
        file: PathBuf,
        /// The joined file
        #[arg(short, long, value_name = "PATH")]
        output: PathBuf,
    },
}

impl Tool for Inspect {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match (&self.command, &self.file) {
            (Some(command), None) => command.run(session),
            (Some(_), Some(file)) => {
                bail!(UsageError(format!("`{}` and a command: give one of them", file.display())))
            }
            (None, Some(file)) => describe(file, self.full, session),
            (None, None) => bail!(UsageError("a file expected".to_owned())),
        }
    }
}

impl Command {
    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let options = write_options(session);
        let progress = &session.progress;
        match self {
            Self::Diff { a, b, no_data } => return compare(a, b, !no_data, session),
            Self::Hash { file } => hash(file, session)?,
            Self::Checkpoint(args) => args.run(session)?,
            Self::Set { file, assignments, output } => {
                let values = assignments
                    .iter()
                    .map(|text| parse_assignment(text))
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|error| UsageError(error.to_string()))?;
                let output = output.as_ref().unwrap_or(file);
                report(&inspect::set(file, output, values, &options, progress)?, session)?;
            }
            Self::Remove { file, keys, output } => {
                let output = output.as_ref().unwrap_or(file);
                report(&inspect::remove(file, output, keys, &options, progress)?, session)?;
            }
            Self::Split { file, output, split_max_size, split_max_tensors, no_tensor_first_split } => {
                let max_tensors = split_max_tensors.or(split_max_size.is_none().then_some(128));
                let spec = SplitSpec {
                    max_bytes: *split_max_size,
                    max_tensors,
                    no_tensor_first: *no_tensor_first_split,
                    style: SplitStyle::GgufSplit,
                };
                report(&inspect::split_file(file, output, spec, &options, progress)?, session)?;
            }
            Self::Merge { file, output } => {
                report(&inspect::merge(file, output, &options, progress)?, session)?;
            }
        }
        Ok(Exit::Done)
    }
}

fn write_options(session: &Session) -> WriteOptions {
    WriteOptions {
        sync: !session.common.no_sync,
        memory_bytes: session.common.memory_bytes(),
        ..WriteOptions::default()
    }
}

fn report(written: &WriteReport, session: &Session) -> anyhow::Result<()> {
    let paths: Vec<_> = written.paths.iter().map(|path| path.display().to_string()).collect();
    if session.common.json {
        return session.print_json(&json!({
            "files": paths,
            "tensors": written.n_tensors,
            "tensor_bytes": written.tensor_bytes,
            "file_bytes": written.file_bytes,
        }));
    }
    session.print(|out| {
        for path in &paths {
            writeln!(out, "{path}")?;
        }
        writeln!(out, "{}, {}", plural(written.n_tensors as u64, "tensor"), bytes(written.file_bytes))
    })
}

fn describe(path: &Path, full: bool, session: &Session) -> anyhow::Result<Exit> {
    use crate::core::progress::Progress;
    let file = GgufFile::open(path)?;
    for warning in inspect::warnings(&file) {
        session.progress.warn(&warning);
    }
    let limit = |most: usize| (!full).then_some(most);
    if session.common.json {
        session.print_json(&inspect::summary_json(&file, limit(SHOWN_ELEMS)))?;
        return Ok(Exit::Done);
    }
    let totals = inspect::summary(&file);
    let mut keys = Table::new(&[("key", Align::Left), ("type", Align::Left), ("value", Align::Left)]);
    for (key, value) in file.metadata().iter() {
        let text = value_text(value, limit(SHOWN_CHARS), limit(SHOWN_ELEMS));
        keys.row([escape(key).into_owned(), value_type_name(value), text]);
    }
    let mut tensors = Table::new(&[
        ("tensor", Align::Left),
        ("type", Align::Left),
        ("shape", Align::Left),
        ("bytes", Align::Right),
        ("offset", Align::Right),
        ("part", Align::Right),
    ]);
    for (index, tensor) in file.tensors().iter().enumerate() {
        let place = file.place(index);
        let part = if file.parts().len() > 1 { (place.part + 1).to_string() } else { String::new() };
        tensors.row([
            escape(&tensor.name).into_owned(),
            tensor.ty.to_string(),
            tensor.shape.to_string(),
            count(place.n_bytes),
            count(place.offset),
            part,
        ]);
    }
    let types = type_table(
        totals
            .types
            .iter()
            .map(|share| (share.ty.to_string(), share.n_tensors as u64, share.n_elems, share.n_bytes)),
    );
    session.print(|out| {
        writeln!(
            out,
            "{}: GGUF {}, {}-endian, {}, {}{}",
            file.path().display(),
            file.version(),
            inspect::endian_name(file.endian()),
            bytes(file.file_bytes()),
            plural(file.metadata().len() as u64, "key"),
            if file.parts().len() > 1 { format!(", {} parts", file.parts().len()) } else { String::new() },
        )?;
        writeln!(out)?;
        keys.print(out)?;
        if file.tensors().is_empty() {
            return writeln!(out, "\nno tensors");
        }
        writeln!(out)?;
        tensors.print(out)?;
        writeln!(out)?;
        types.print(out)?;
        let bits =
            totals.bits_per_weight().map_or_else(String::new, |bits| format!(", {bits:.2} bits per weight"));
        writeln!(
            out,
            "\n{}, {} elements, {}{bits}",
            plural(file.tensors().len() as u64, "tensor"),
            count(totals.n_elems),
            bytes(totals.tensor_bytes)
        )
    })?;
    Ok(Exit::Done)
}

/// The table of types: name, tensors, elements, bytes.
fn type_table(rows: impl Iterator<Item = (String, u64, u64, u64)>) -> Table {
    let mut table = Table::new(&[
        ("type", Align::Left),
        ("tensors", Align::Right),
        ("elements", Align::Right),
        ("size", Align::Right),
    ]);
    for (name, n_tensors, n_elems, n_bytes) in rows {
        table.row([name, count(n_tensors), count(n_elems), bytes(n_bytes)]);
    }
    table
}

fn hash(path: &Path, session: &Session) -> anyhow::Result<()> {
    let file = GgufFile::open(path)?;
    let Some(hashes) = inspect::hash(&file, &session.progress)? else { bail!("interrupted") };
    if session.common.json {
        let tensors: Vec<_> = file
            .tensors()
            .iter()
            .zip(&hashes.tensors)
            .map(|(tensor, hash)| json!({ "name": tensor.name, "sha256": hash }))
            .collect();
        let files: Vec<_> = file
            .parts()
            .iter()
            .zip(&hashes.files)
            .map(|(part, hash)| json!({ "path": part.path().to_string_lossy(), "sha256": hash }))
            .collect();
        return session.print_json(&json!({ "tensors": tensors, "data": hashes.data, "files": files }));
    }
    session.print(|out| {
        for (tensor, hash) in file.tensors().iter().zip(&hashes.tensors) {
            writeln!(out, "{hash}  tensor {}", escape(&tensor.name))?;
        }
        writeln!(out, "{}  data", hashes.data)?;
        for (part, hash) in file.parts().iter().zip(&hashes.files) {
            writeln!(out, "{hash}  {}", part.path().display())?;
        }
        Ok(())
    })
}

fn compare(a: &Path, b: &Path, data: bool, session: &Session) -> anyhow::Result<Exit> {
    let (a, b) = (GgufFile::open(a)?, GgufFile::open(b)?);
    let diff = inspect::diff(&a, &b, data, session.common.simd, &session.progress)?;
    if session.common.json {
        session.print_json(&diff_json(&diff))?;
    } else {
        session.print(|out| print_diff(&diff, out))?;
    }
    Ok(if diff.is_equal() { Exit::Done } else { Exit::Failed })
}

fn print_diff(diff: &Diff, out: &mut dyn std::io::Write) -> std::io::Result<()> {
    let value = |value: &Option<Value>| match value {
        Some(value) => {
            format!("{} {}", value_type_name(value), value_text(value, Some(SHOWN_CHARS), Some(SHOWN_ELEMS)))
        }
        None => "(none)".to_owned(),
    };
    for (what, a, b) in &diff.layout {
        writeln!(out, "{what}: {a} | {b}")?;
    }
    for key in &diff.keys {
        writeln!(out, "key {}:", escape(&key.key))?;
        writeln!(out, "  a  {}", value(&key.a))?;
        writeln!(out, "  b  {}", value(&key.b))?;
        if let Some(index) = key.first_element() {
            writeln!(out, "  first difference at element {index}")?;
        }
    }
    if diff.key_order {
        writeln!(out, "the common keys come in another order")?;
    }
    for tensor in &diff.tensors {
        writeln!(out, "tensor {}: {}", escape(&tensor.name), tensor_text(tensor))?;
    }
    if diff.tensor_order {
        writeln!(out, "the common tensors come in another order")?;
    }
    if diff.is_equal() {
        return writeln!(out, "equal");
    }
    writeln!(
        out,
        "{} and {} differ",
        plural(diff.keys.len() as u64, "key"),
        plural(diff.tensors.len() as u64, "tensor")
    )
}

fn tensor_text(tensor: &TensorDiff) -> String {
    let facts = |(ty, shape): &(GgmlType, Shape)| format!("{ty} {shape}");
    let kinds = match (&tensor.a, &tensor.b) {
        (Some(a), Some(b)) if a == b => facts(a),
        (Some(a), Some(b)) => format!("{} | {}", facts(a), facts(b)),
        (Some(a), None) => return format!("{} | (none)", facts(a)),
        (None, Some(b)) => return format!("(none) | {}", facts(b)),
        (None, None) => String::new(),
    };
    match &tensor.data {
        Some(data) => format!("{kinds}, {}", data_text(data)),
        None => kinds,
    }
}

fn data_text(data: &DataDiff) -> String {
    if data.n_differing == 0 {
        return "equal values".to_owned();
    }
    let non_finite = match data.n_non_finite {
        0 => String::new(),
        n => format!(", {} not finite", count(n)),
    };
    format!(
        "{} of {} values differ, max abs {:.4e} at {}, max rel {:.4e}, rms {:.4e} ({:.4e} of a){non_finite}",
        count(data.n_differing),
        count(data.n_elems),
        data.max_abs,
        data.max_abs_at,
        data.max_rel,
        data.rms(),
        data.relative_rms()
    )
}

fn diff_json(diff: &Diff) -> serde_json::Value {
    let value = |value: &Option<Value>| {
        value
            .as_ref()
            .map(|value| json!({ "type": value_type_name(value), "value": value_json(value, None) }))
    };
    let facts = |facts: &Option<(GgmlType, Shape)>| {
        facts.as_ref().map(|(ty, shape)| json!({ "type": ty.name(), "shape": shape.dims() }))
    };
    let layout: Vec<_> =
        diff.layout.iter().map(|(what, a, b)| json!({ "what": what, "a": a, "b": b })).collect();
    let keys: Vec<_> = diff
        .keys
        .iter()
        .map(|key| {
            json!({
                "key": key.key,
                "a": value(&key.a),
                "b": value(&key.b),
                "first_element": key.first_element(),
            })
        })
        .collect();
    let tensors: Vec<_> = diff
        .tensors
        .iter()
        .map(|tensor| {
            let data = tensor.data.map(|data| {
                json!({
                    "elements": data.n_elems,
                    "differing": data.n_differing,
                    "non_finite": data.n_non_finite,
                    "max_abs": data.max_abs,
                    "max_abs_at": data.max_abs_at,
                    "max_rel": data.max_rel,
                    "rms": data.rms(),
                    "relative_rms": data.relative_rms(),
                })
            });
            json!({ "name": tensor.name, "a": facts(&tensor.a), "b": facts(&tensor.b), "data": data })
        })
        .collect();
    json!({
        "equal": diff.is_equal(),
        "layout": layout,
        "keys": keys,
        "key_order_differs": diff.key_order,
        "tensors": tensors,
        "tensor_order_differs": diff.tensor_order,
    })
}
