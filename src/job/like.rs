//! Types that are those of another file: `--like`.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::core::text::{escape, plural};
use crate::core::written::as_path;
use crate::core::{Hint, TensorSource};
use crate::gguf::{GgufFile, Value};
use crate::job::input::{OpenedInput, must_be_model};
use crate::job::run::JobRun;
use crate::job::{Job, JobInput, JobTypes, Remark, Result, TypeSwitches};
use crate::quantize::{FileType, LikeTypes, QuantizeOptions};

/// Types that are those of another file, in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LikeReport {
    /// File whose types are used.
    #[serde(serialize_with = "as_path")]
    pub file: PathBuf,
    /// Number of matrices with the type of the tensor of the same name.
    pub by_name: usize,
    /// Number of matrices with the type of the tensor of the same role at the same relative depth.
    pub by_role: usize,
    /// Number of matrices that the file has no tensor for.
    pub others: usize,
    /// Number of layers of the output, if it differs from that of the file.
    pub layers: Option<u64>,
    /// Number of layers of the file, if it differs from that of the output.
    pub file_layers: Option<u64>,
}

/// Error: no matrix of the model has a tensor of its name or role in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--like {}: not one matrix of the model is there, neither by its name nor by its role (architecture `{}`, that of \
     the model is `{}`)",
    path.display(),
    escape(found),
    escape(expected)
)]
pub struct NothingAlike {
    /// Path of the file.
    pub path: PathBuf,
    /// Architecture of the file.
    pub found: String,
    /// Architecture of the model.
    pub expected: String,
}

impl Hint for NothingAlike {
    fn hints(&self) -> Vec<String> {
        vec![
            "name a quantization of the same model or of a related one".to_owned(),
            "name the type itself: `--type TYPE`".to_owned(),
        ]
    }
}

/// Sets the types of an output to those of the file that the job names.
///
/// # Errors
/// A file that cannot be read; a file without a tensor in common with the model.
pub(super) fn set_types(
    run: &JobRun<'_>,
    opened: &OpenedInput,
    options: &mut QuantizeOptions,
) -> Result<Option<LikeReport>> {
    let JobTypes::Like { file: path, .. } = &run.job.types else { return Ok(None) };
    let file = GgufFile::open(path)?;
    must_be_model(&file)?;
    let architecture = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let found = architecture(file.metadata().get("general.architecture"));
    let expected = architecture(opened.metadata().get("general.architecture"));
    let types =
        LikeTypes::of(file.metadata(), file.tensors(), &opened.input(), options).ok_or_else(|| {
            NothingAlike { path: path.clone(), found: found.clone(), expected: expected.clone() }
        })?;
    if let Some(note) = note(path, &types, (&found, &expected)) {
        run.events.note(&note);
    }
    if !types.others.is_empty() {
        run.events.remark(&remark(path, &types));
    }
    options.file_type = types.file_type;
    options.given = types.given;
    Ok(Some(LikeReport {
        file: path.clone(),
        by_name: types.n_by_name,
        by_role: types.n_by_role,
        others: types.others.len(),
        layers: types.layers.map(|(own, _)| own),
        file_layers: types.layers.map(|(_, of_file)| of_file),
    }))
}

fn shown(path: &Path) -> String {
    escape(&path.display().to_string()).into_owned()
}

/// Describes how the types were found, unless every matrix has the type of its name.
fn note(path: &Path, types: &LikeTypes, (found, expected): (&str, &str)) -> Option<String> {
    if types.n_by_role == 0 && found == expected {
        return None;
    }
    let matrices = |n: usize| if n == 1 { "1 matrix".to_owned() } else { format!("{n} matrices") };
    let layers = types.layers.map_or_else(String::new, |(own, of_file)| {
        format!(" ({} here, {of_file} there)", plural(own, "layer"))
    });
    let architecture = if found == expected {
        String::new()
    } else {
        format!(", a file of architecture `{}` for one of `{}`", escape(found), escape(expected))
    };
    Some(format!(
        "types as in {}{architecture}: {} by name, {} by role and relative depth{layers}",
        shown(path),
        matrices(types.n_by_name),
        types.n_by_role,
    ))
}

/// Describes the matrices that the file does not have.
fn remark(path: &Path, types: &LikeTypes) -> Remark {
    let by = if types.is_by_class {
        format!("get the most common type of their class there, or that of {}", types.file_type)
    } else {
        format!("get the types of {}, the mixture of that file", types.file_type)
    };
    let n = plural(types.others.len() as u64, "tensor");
    Remark {
        text: format!("{n} that {} does not have {by}", shown(path)),
        names: types.others.iter().map(|name| format!("`{}`", escape(name))).collect(),
        advice: String::new(),
    }
}

/// Returns the job in which the converter itself writes the types, if that gives the very tensors of the file in their
/// order. Other files, and jobs with options of a quantization, are quantized.
pub(super) fn converted(job: &Job) -> Result<Option<Job>> {
    let JobTypes::Like { file, requantize } = &job.types else { return Ok(None) };
    let plain = QuantizeOptions {
        file_type: job.quantize.file_type,
        allow_nonfinite: job.quantize.allow_nonfinite,
        ..QuantizeOptions::new(FileType::Q4KM)
    };
    let is_quantized = job.calibration.is_some()
        || job.importance.path.is_some()
        || job.write_types.is_some()
        || job.quantize.identity() != plain.identity();
    if is_quantized || matches!(job.input, JobInput::Gguf(_) | JobInput::Adapter { .. }) {
        return Ok(None);
    }
    let reference = GgufFile::open(file)?;
    let id = reference.metadata().get("general.file_type").and_then(Value::as_u64);
    let Some(file_type) = id.and_then(|id| FileType::from_id(u32::try_from(id).ok()?)) else {
        return Ok(None);
    };
    let switches = TypeSwitches { requantize: *requantize, ..TypeSwitches::default() };
    let types = JobTypes::named(file_type.name(), switches)?;
    if types.is_quantized() {
        return Ok(None);
    }
    let mut convert = job.convert.clone();
    convert.file_type = types.converted();
    convert.codes = types.codes();
    let opened = job.input.open(&convert)?;
    if opened.source().tensors() != reference.tensors() {
        return Ok(None);
    }
    let rule_files = job.rule_files.iter().cloned().chain(reference.paths()).collect();
    Ok(Some(Job { types, rule_files, ..job.clone() }))
}
