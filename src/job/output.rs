//! Output of a job: its path, its division into files, and notes about a share.

use std::path::{Path, PathBuf};

use crate::convert::fill_template;
use crate::core::bytes::Endian;
use crate::core::output::{self, OutputKind, other_attempts};
use crate::core::text::{bytes, escape, plural};
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::split::part_path;
use crate::gguf::{
    GgufFile, LayoutOptions, Metadata, Share, SplitSpec, WriteError, WriteOptions, WriteReport, plan_files,
};
use crate::job::default_name::{self, Unnamed};
use crate::job::input::OpenedInput;
use crate::job::{Events, Guard, Importance, Job, JobInput, Result};

/// Output of a job.
#[derive(Clone, Debug)]
pub struct JobOutput {
    /// Path of the output.
    pub path: OutputPath,
    /// Division into files.
    pub files: OutputFiles,
    /// True to omit the key `gguf_foundry.split.id`, which distinguishes parts of different sets.
    pub without_id: bool,
    /// Byte order of the files.
    pub endian: Endian,
}

/// Path of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPath {
    /// File, or the name that the parts have in common. Of a conversion, `{ftype}` in the name stands for the type.
    File(PathBuf),
    /// Directory, in which the file is named after the model. A file of another model is not replaced.
    Directory(PathBuf),
}

/// Division of an output into files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFiles {
    /// One file.
    File {
        /// True to keep the output of an interrupted run, and to continue it on the next start.
        resume: bool,
    },
    /// Parts with a maximum size.
    Set {
        /// Maximum number of tensor bytes in a part.
        max_bytes: Option<u64>,
        /// Maximum number of tensors in a part.
        max_tensors: Option<u64>,
        /// True to keep tensors out of the first part.
        no_tensor_first: bool,
    },
    /// As many parts as the GGUF file that is read has.
    AsInput,
    /// One of several files of equal cost, of which other runs write the others.
    Share {
        /// Number of the file.
        share: Share,
        /// True to keep the output of an interrupted run, and to continue it on the next start.
        resume: bool,
    },
    /// Share of one file that all runs write into. An interrupted run is continued.
    Into {
        /// Number of the share.
        share: Share,
    },
}

impl JobOutput {
    /// Output in one file, written at once.
    pub fn at(path: OutputPath) -> Self {
        let files = OutputFiles::File { resume: false };
        Self { path, files, without_id: false, endian: Endian::Little }
    }

    /// Returns true if the user named the file, not only its directory.
    fn is_named(&self) -> bool {
        matches!(self.path, OutputPath::File(_)) || matches!(self.files, OutputFiles::Into { .. })
    }

    fn share(&self) -> Option<Share> {
        match self.files {
            OutputFiles::Share { share, .. } | OutputFiles::Into { share } => Some(share),
            OutputFiles::File { .. } | OutputFiles::Set { .. } | OutputFiles::AsInput => None,
        }
    }

    /// Returns the path of the output. `encoding` is the type for its name.
    pub(super) fn target(&self, input: &JobInput, opened: &OpenedInput, encoding: &str) -> PathBuf {
        match (&self.path, opened) {
            (OutputPath::Directory(dir), OpenedInput::File(_)) => {
                let path = default_name::quantized(input.path(), opened.metadata(), encoding);
                path.file_name().map_or_else(|| path.clone(), |name| dir.join(name))
            }
            (OutputPath::Directory(dir), OpenedInput::Conversion(conversion)) => {
                dir.join(conversion.default_file_name(encoding))
            }
            (OutputPath::Directory(dir), OpenedInput::Adapter(adapter)) => {
                dir.join(adapter.default_file_name(encoding))
            }
            (OutputPath::Directory(dir), OpenedInput::Diffusion(conversion)) => {
                dir.join(conversion.default_file_name(encoding))
            }
            (OutputPath::File(path), OpenedInput::File(_)) => path.clone(),
            (OutputPath::File(path), _) if matches!(self.files, OutputFiles::Into { .. }) => path.clone(),
            (OutputPath::File(path), _) => filled(path, encoding),
        }
    }

    /// Returns the files to check before a weight is read. The parts of a quantized set are known only from its plan.
    fn guarded(&self, target: &Path, opened: &OpenedInput) -> Vec<PathBuf> {
        match self.files {
            OutputFiles::Share { share, .. } if share.count() > 1 => {
                vec![part_path(target, share.number(), share.count())]
            }
            OutputFiles::File { .. } | OutputFiles::Share { .. } | OutputFiles::Into { .. } => {
                vec![target.to_owned()]
            }
            OutputFiles::AsInput => {
                let n_parts = opened.file().map_or(1, |file| file.parts().len());
                (1..=n_parts).map(|part| part_path(target, part, n_parts)).collect()
            }
            OutputFiles::Set { .. } => Vec::new(),
        }
    }

    /// Checks the files against the inputs, and against existing files with a default name. `planned` are the files of
    /// a plan, if there is one.
    pub(super) fn guard(
        &self,
        guard: &mut Guard<'_>,
        target: &Path,
        opened: &OpenedInput,
        planned: Option<Vec<PathBuf>>,
    ) -> Result<()> {
        let role = if self.files == OutputFiles::AsInput { "a part" } else { "the output" };
        for path in planned.unwrap_or_else(|| self.guarded(target, opened)) {
            guard.write(role, &path, OutputKind::Model)?;
            if !self.is_named() {
                if opened.file().is_some_and(|file| default_name::is_digest(file.path())) {
                    guard.warn(&format!(
                        "{}: this folder is a store of files named by their hash, which removes others: `-o FILE` names \
                         another place",
                        path.display()
                    ));
                }
                guard.unnamed(&path, Unnamed { metadata: opened.metadata(), source: opened.source() })?;
            }
        }
        Ok(())
    }

    fn split(&self) -> Option<SplitSpec> {
        let spec = SplitSpec { without_id: self.without_id, ..SplitSpec::default() };
        match self.files {
            OutputFiles::File { .. } => None,
            OutputFiles::AsInput => Some(spec),
            OutputFiles::Set { max_bytes, max_tensors, no_tensor_first } => {
                Some(SplitSpec { max_bytes, max_tensors, no_tensor_first, ..spec })
            }
            OutputFiles::Share { share, .. } | OutputFiles::Into { share } => {
                Some(SplitSpec { share: Some(share), ..spec })
            }
        }
    }

    /// Notes which tensors belong to the share, if only a share is written.
    pub(super) fn note_share(
        &self,
        events: &dyn Events,
        metadata: &Metadata,
        source: &dyn TensorSource,
        options: &WriteOptions,
    ) -> Result<(), WriteError> {
        let Some(share) = self.share() else { return Ok(()) };
        let split = options.split.as_ref();
        let files = plan_files(Path::new("part"), metadata, source.tensors(), &options.layout, split)?;
        let own = files.into_iter().next().map_or(0..0, |file| file.tensors);
        let tensors = source.tensors().get(own).unwrap_or_default();
        if let (Some(first), Some(last)) = (tensors.first(), tensors.last()) {
            let n_bytes = tensors.iter().filter_map(TensorMeta::n_bytes).sum();
            events.note(&format!(
                "part {share}: {} of {}, `{}` to `{}`, {}",
                tensors.len(),
                plural(source.tensors().len() as u64, "tensor"),
                escape(&first.name),
                escape(&last.name),
                bytes(n_bytes),
            ));
        }
        Ok(())
    }

    /// Notes where a run resumed, and which parts of a shared file are missing.
    pub(super) fn note_rest(&self, events: &dyn Events, written: &WriteReport) {
        if written.resumed_at > 0 {
            let (at, of) = (bytes(written.resumed_at), bytes(written.file_bytes));
            events.note(&format!("resumed at {at} of {of}, where the last run stopped"));
        }
        let [path] = written.paths.as_slice() else { return };
        let others = if written.missing.is_empty() { other_attempts(path) } else { Ok(Vec::new()) };
        // They are a hint only: a folder that cannot be listed has its file.
        for other in others.unwrap_or_default() {
            let other = other.display().to_string();
            events.note(&format!(
                "{}: unfinished, of a run with another source or other options; remove it unless that run goes on",
                escape(&other)
            ));
        }
        let OutputFiles::Into { share } = self.files else { return };
        let path = path.display().to_string();
        let path = escape(&path);
        if written.was_there {
            events.note(&format!("{path}: part {share} was there already, and was not written again"));
        }
        if written.missing.is_empty() {
            return events.note(&format!("{path}: all parts are there"));
        }
        let missing: Vec<_> =
            written.missing.iter().map(|number| format!("{number}/{}", share.count())).collect();
        events.note(&format!("{path} gets its name when these parts are written: {}", missing.join(", ")));
    }
}

/// Returns the path of a conversion's output with `{ftype}` replaced.
fn filled(path: &Path, encoding: &str) -> PathBuf {
    let names_a_file = output::check_name(path).is_ok();
    match path.file_name().and_then(|name| name.to_str()).filter(|_| names_a_file) {
        Some(name) => path.with_file_name(fill_template(name, encoding)),
        None => path.to_owned(),
    }
}

impl Job {
    /// Options that decide the bytes of a quantization and are not all in its header.
    fn identity(&self) -> String {
        if !self.types.is_quantized() {
            return String::new();
        }
        let Importance { path: _, include, exclude, names_only: _ } = &self.importance;
        serde_json::json!([env!("CARGO_PKG_VERSION"), self.quantize.identity(), include, exclude]).to_string()
    }

    pub(super) fn write_options(&self, opened: &OpenedInput) -> WriteOptions {
        let is_shared = matches!(self.output.files, OutputFiles::Into { .. });
        let resume = match self.output.files {
            OutputFiles::File { resume } | OutputFiles::Share { resume, .. } => resume,
            OutputFiles::Into { .. } => true,
            OutputFiles::Set { .. } | OutputFiles::AsInput => false,
        };
        WriteOptions {
            layout: LayoutOptions {
                // A file keeps its byte order.
                endian: opened.file().map_or(self.output.endian, GgufFile::endian),
                pad_header: !self.convert.vocab_only,
                ..LayoutOptions::default()
            },
            split: self.output.split(),
            sync: self.sync,
            memory_bytes: self.memory_bytes,
            inputs: opened.paths().into_iter().chain(self.importance.path.clone()).collect(),
            in_place: false,
            into_one_file: is_shared,
            resume,
            identity: self.identity(),
        }
    }
}
