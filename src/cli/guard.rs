//! Registration of a run's files with the guard that checks outputs before any work.

use std::error::Error;
use std::path::{Path, PathBuf};

use crate::cli::Session;
use crate::cli::default_name::Unnamed;
use crate::core::output::{OutputGuard, OutputKind};
use crate::core::progress::Progress;
use crate::gguf::split::sibling_paths;

/// Inputs and outputs of a run. A dry run only warns, once, of what would stop a real run.
pub(crate) struct Guard<'a> {
    files: OutputGuard,
    session: &'a Session,
    is_dry: bool,
    has_warned: bool,
}

impl<'a> Guard<'a> {
    pub(crate) fn new(session: &'a Session, is_dry: bool) -> Self {
        Self { files: OutputGuard::default(), session, is_dry, has_warned: false }
    }

    /// Registers a file that is read, or a directory of which any file may be read.
    ///
    /// # Errors
    /// The file is also an output.
    pub(crate) fn read(&mut self, role: &'static str, path: &Path) -> anyhow::Result<()> {
        let told = self.files.read(role, path);
        self.judge(told)
    }

    /// Registers several files that are read.
    ///
    /// # Errors
    /// As [`Guard::read`].
    pub(crate) fn read_all<P: AsRef<Path>>(
        &mut self,
        role: &'static str,
        paths: impl IntoIterator<Item = P>,
    ) -> anyhow::Result<()> {
        paths.into_iter().try_for_each(|path| self.read(role, path.as_ref()))
    }

    /// Registers a model that is read: a directory, or a file with all parts that its name implies.
    ///
    /// # Errors
    /// As [`Guard::read`].
    pub(crate) fn model(&mut self, role: &'static str, path: &Path) -> anyhow::Result<()> {
        self.read(role, path)?;
        self.read_all(role, parts(path))
    }

    /// Registers a file that will be written, with the option that names it.
    ///
    /// # Errors
    /// The file is also an input or another output, or it would replace a file of another kind.
    pub(crate) fn write(
        &mut self,
        option: &'static str,
        path: &Path,
        kind: OutputKind,
    ) -> anyhow::Result<()> {
        let told = self.files.write(option, path, kind);
        self.judge(told)
    }

    /// Checks a file that will be written under a default name. Outputs must be registered with [`Guard::write`] as
    /// well.
    ///
    /// # Errors
    /// The file would replace another model.
    pub(crate) fn unnamed(&mut self, path: &Path, model: Unnamed<'_>) -> anyhow::Result<()> {
        self.judge(model.check(path))
    }

    fn judge<E: Error + Send + Sync + 'static>(&mut self, told: Result<(), E>) -> anyhow::Result<()> {
        match told {
            Err(error) if self.is_dry => {
                if !self.has_warned {
                    self.session.progress.warn(&format!("a run would stop here: {error}"));
                    self.has_warned = true;
                }
                Ok(())
            }
            told => Ok(told?),
        }
    }
}

/// Returns all parts of a split model, by the name of one: `NAME-00001-of-00003.gguf`.
fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut words = name.strip_suffix(".gguf").unwrap_or_default().rsplitn(4, '-');
    let (n_parts, of, part) = (words.next(), words.next(), words.next());
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u16>().ok()).map(u64::from);
    match (number(part), of, number(n_parts)) {
        (Some(part), Some("of"), Some(n_parts)) => sibling_paths(path, part, n_parts).unwrap_or_default(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects every argument that is a path: the program and its command, then the option.
    fn paths(command: &clap::Command, name: &str, found: &mut Vec<String>) {
        for argument in command.get_arguments() {
            if argument.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>() {
                found.push(format!("{name} {}", argument.get_id()));
            }
        }
        for child in command.get_subcommands() {
            paths(child, &format!("{name} {}", child.get_name()), found);
        }
    }

    /// The table declares each as input or output, and an integration test tries every output over every input. A new
    /// option without a line fails here; a line without a trial fails there.
    #[test]
    fn every_path_is_in_the_table_of_inputs_and_outputs() {
        use crate::cli::{convert, inspect, quantize, verify};
        let mut found = Vec::new();
        for program in [convert::command(), quantize::command(), verify::command(), inspect::command()] {
            paths(&program, program.get_name(), &mut found);
        }
        let table = include_str!("../../tests/it/cli/guards/paths.txt");
        let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines =
            lines.filter(|line| cfg!(feature = "remote") || !line.ends_with(" cache: input, added to"));
        let listed: Vec<_> =
            lines.filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
        assert!(found.len() > 50, "{found:?}");
        let missing: Vec<_> = found.iter().filter(|name| !listed.contains(&name.as_str())).collect();
        assert!(missing.is_empty(), "not in the table: {missing:#?}");
        // clap does not parse this as a path, although it may name a file.
        let texts = ["gguf-inspect set assignments"];
        let stale: Vec<_> = listed
            .iter()
            .filter(|name| !texts.contains(name) && found.iter().all(|own| own != *name))
            .collect();
        assert!(stale.is_empty(), "in the table without an option: {stale:#?}");
    }

    #[test]
    fn a_part_names_its_siblings() {
        let found = parts(Path::new("dir/a-b-00002-of-00003.gguf"));
        let expected: Vec<_> =
            (1..=3).map(|n| PathBuf::from(format!("dir/a-b-0000{n}-of-00003.gguf"))).collect();
        assert_eq!(found, expected);
        for name in ["a.gguf", "a-of-3.gguf", "a-2-of-3.gguf", "-of-.gguf", "", "a-00001-of-00002.bin"] {
            assert!(parts(Path::new(name)).is_empty(), "{name}");
        }
    }
}
