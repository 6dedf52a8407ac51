//! Release files in addition to the programs: shell completions and manual pages, generated from the parsers.

use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_complete::aot::Generator;
use clap_mangen::Man;

use crate::cli::completions::script;
use crate::cli::{convert, inspect, quantize, verify};

const SHELLS: [Shell; 5] = [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell];

/// Returns the parsers of the four programs.
fn programs() -> [Command; 4] {
    [convert::command(), quantize::command(), verify::command(), inspect::command()]
}

/// Writes `completions/` and `man/` below a directory: a completion for each program and shell, a manual page for each
/// program and command. Returns the files.
pub fn write(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (completions, man) = (dir.join("completions"), dir.join("man"));
    fs_err::create_dir_all(&completions)?;
    fs_err::create_dir_all(&man)?;
    let mut paths = Vec::new();
    for program in programs() {
        let name = program.get_name().to_owned();
        let mut with_pages = program.clone().disable_help_subcommand(true);
        for shell in SHELLS {
            let path = completions.join(shell.file_name(&name));
            fs_err::write(&path, script(shell, program.clone()))?;
            paths.push(path);
        }
        with_pages.build();
        write_pages(with_pages, &man, &mut paths)?;
    }
    Ok(paths)
}

/// Writes the pages of the subcommands, then the page of the command.
fn write_pages(command: Command, dir: &Path, paths: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        write_pages(child.clone(), dir, paths)?;
    }
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    // The generator would join the lines of a table, so notes are written separately.
    let page = Man::new(command.after_help("")).date("").manual("gguf-foundry");
    let mut text = Vec::new();
    page.render(&mut text)?;
    if !notes.is_empty() {
        text.extend_from_slice(preformatted("NOTES", &notes).as_bytes());
    }
    let path = dir.join(page.get_filename());
    fs_err::write(&path, text)?;
    paths.push(path);
    Ok(())
}

/// Formats a section whose lines are kept as they are.
fn preformatted(title: &str, text: &str) -> String {
    let mut out = format!(".SH {title}\n.nf\n");
    for line in text.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A leading dot or apostrophe would be a roff request.
        if line.starts_with(['.', '\'']) {
            out.push_str("\\&");
        }
        out.push_str(&line);
        out.push('\n');
    }
    out + ".fi\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of manual pages of a command and its subcommands.
    fn pages(command: &Command) -> usize {
        1 + command.get_subcommands().map(pages).sum::<usize>()
    }

    #[test]
    fn every_program_and_command_has_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let paths = write(dir.path()).unwrap();
        let names: Vec<_> = paths.iter().map(|path| path.strip_prefix(dir.path()).unwrap()).collect();
        for name in [
            "completions/gguf-convert.bash",
            "completions/_gguf-quantize",
            "completions/gguf-verify.fish",
            "completions/_gguf-inspect.ps1",
            "man/gguf-convert.1",
            "man/gguf-convert-hf2gguf.1",
            "man/gguf-quantize.1",
            "man/gguf-verify-imatrix.1",
            "man/gguf-verify-imatrix-merge.1",
            "man/gguf-inspect-diff.1",
        ] {
            assert!(names.contains(&Path::new(name)), "{name}: {names:?}");
        }
        let n_commands: usize = programs().iter().map(pages).sum();
        assert_eq!(paths.len(), programs().len() * SHELLS.len() + n_commands);
        for path in &paths {
            assert!(fs_err::metadata(path).unwrap().len() > 200, "{}", path.display());
        }
        let page = fs_err::read_to_string(dir.path().join("man/gguf-quantize.1")).unwrap();
        assert!(page.contains(".SH NOTES\n.nf\nType "), "{page}");
        let bash = fs_err::read_to_string(dir.path().join("completions/gguf-convert.bash")).unwrap();
        assert!(bash.contains("hf2gguf") && bash.contains("--no-tokenizer"));
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(preformatted("X", "a-b\n.c\\d"), ".SH X\n.nf\na\\-b\n\\&.c\\ed\n.fi\n");
    }
}
