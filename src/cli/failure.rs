//! Report of a run that failed: for people on standard error, with `--json` also on standard output.

use std::ffi::{OsStr, OsString};
use std::io::Write;

use serde::Serialize;

use crate::cli::{ClosedPipe, Exit, UsageError, is_interrupted, render, signals};
use crate::core::ranged;

/// Reason why a run failed, with its exit code.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// Message with its causes, the same as on standard error.
    message: String,
    /// Suggestions for the user.
    hints: Vec<String>,
    /// Exit code of the program: 1 failed, 2 usage, 3 the file is broken, 130 interrupted.
    #[serde(rename = "exit_code")]
    exit: Exit,
}

/// Report of a run that failed.
#[derive(Serialize)]
struct FailureReport<'a> {
    /// Error that ended the run.
    error: &'a Failure,
}

impl Failure {
    /// Classifies an error. `None` if nothing failed: the reader of the output closed the pipe.
    pub(crate) fn of(error: &anyhow::Error) -> Option<Self> {
        if error.is::<ClosedPipe>() {
            return None;
        }
        if is_interrupted() {
            return Some(Self {
                exit: Exit::Interrupted,
                message: signals::by().map_or("interrupted".to_owned(), |by| format!("interrupted by {by}")),
                hints: Vec::new(),
            });
        }
        let exit = if error.downcast_ref::<UsageError>().is_some() || error.chain().any(is_one_file_twice) {
            Exit::Usage
        } else if error.chain().any(is_broken_file) {
            Exit::Broken
        } else {
            Exit::Failed
        };
        Some(Self {
            exit,
            message: without_type_names(&ranged::shown(&render::error_line(error))),
            hints: render::hints_of(error),
        })
    }

    /// Puts the input's name in front if the message lacks it. An interrupt belongs to no input.
    pub(crate) fn about(self, name: &str) -> Self {
        if self.exit == Exit::Interrupted || self.message.contains(name) {
            return self;
        }
        Self { message: format!("{name}: {}", self.message), ..self }
    }

    /// Adds a hint about what is left of the run, if it was interrupted.
    pub(super) fn with_rest(self, rest: impl FnOnce() -> Option<String>) -> Self {
        let rest = if self.exit == Exit::Interrupted { rest() } else { None };
        Self { hints: self.hints.into_iter().chain(rest).collect(), ..self }
    }

    /// Adds what a refused command line probably means.
    pub(super) fn with_offer(self, offer: impl FnOnce() -> Option<String>) -> Self {
        let offer = if matches!(self.exit, Exit::Usage | Exit::Failed) { offer() } else { None };
        Self { hints: self.hints.into_iter().chain(offer).collect(), ..self }
    }

    /// Names the command with options that this one does not have and one of the others has, each with its words. What none
    /// has, or is quoted with its program, is of another program.
    pub(super) fn with_hints_for(
        mut self,
        command: &clap::Command,
        others: &[(String, clap::Command)],
    ) -> Self {
        let is_of = |command: &clap::Command, hint: &str| {
            let options = hint.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix("--"));
            options
                .map(|code| code.split([' ', '=']).next().unwrap_or(code))
                .all(|option| has(command, option))
        };
        for hint in self.hints.iter_mut().filter(|hint| !is_of(command, hint)) {
            if let Some((words, _)) = others.iter().find(|(_, other)| is_of(other, hint)) {
                *hint = hint.replace("`--", &format!("`{words} --")).replace("` of gguf-convert", "`");
            }
        }
        self
    }

    /// Changes exit code 1 to 2, for comparisons, in which 1 means that files differ.
    pub(crate) fn into_trouble(self) -> Self {
        let exit = if self.exit == Exit::Failed { Exit::Usage } else { self.exit };
        Self { exit, ..self }
    }

    /// Reports a panic. The panic hook has printed its location.
    pub(super) fn defect() -> Self {
        let message = "internal error: this is a defect of the program".to_owned();
        Self { exit: Exit::Failed, message, hints: Vec::new() }
    }

    /// Reports arguments that clap refused: its first paragraph is the message, its tips are hints.
    fn of_arguments(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let mut paragraphs = text.split("\n\n");
        let first = paragraphs.next().unwrap_or_default();
        let message = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
        Self {
            exit: Exit::Usage,
            message: message.trim_start_matches("error: ").to_owned(),
            hints: tips.map(str::to_owned).collect(),
        }
    }

    /// Prints the failure and returns the exit code.
    pub(crate) fn tell(&self, as_json: bool) -> Exit {
        render::failure(&self.message, &self.hints);
        if as_json {
            self.print_json();
        }
        self.exit
    }

    fn print_json(&self) {
        let report = FailureReport { error: self };
        // A closed standard output is ignored: the reader does not want the rest.
        let _ = render::json_text(&report).map(|text| std::io::stdout().write_all(text.as_bytes()));
    }
}

/// Prints clap's own output: help and version, or the error in the arguments and what is probably meant.
pub(super) fn refuse(error: &clap::Error, offer: impl FnOnce() -> Option<String>) -> Exit {
    // Help and version go to standard output and are no errors. A closed pipe is ignored.
    let _ = error.print();
    if !error.use_stderr() {
        return Exit::Done;
    }
    let failure = Failure::of_arguments(error);
    let n_tips = failure.hints.len();
    let failure = failure.with_offer(offer);
    for hint in &failure.hints[n_tips..] {
        render::message("hint", hint);
    }
    if asks_for_json(std::env::args_os().skip(1)) {
        failure.print_json();
    }
    Exit::Usage
}

/// Returns true if `--json` is among arguments that could not be parsed.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.take_while(|argument| argument != OsStr::new("--")).any(|argument| argument == "--json")
}

/// Replaces the types of our source that serde names in its messages (`expected struct HfJson`).
fn without_type_names(message: &str) -> String {
    let mut parts = message.split("expected struct ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("expected an object");
        text.push_str(part.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'));
    }
    text
}

/// Returns true for a GGUF file that could be read but violates the format.
fn is_broken_file(cause: &(dyn std::error::Error + 'static)) -> bool {
    use crate::gguf::GgufError;
    let broken = |error: &GgufError| {
        use GgufError::{Io, Lock, LockUnmapped, PartMissing};
        !matches!(error, Io(_) | PartMissing { .. } | Lock(_) | LockUnmapped { .. })
    };
    match cause.downcast_ref::<crate::inspect::EditError>() {
        Some(crate::inspect::EditError::Open(error)) => broken(error),
        _ => cause.downcast_ref::<GgufError>().is_some_and(broken),
    }
}

/// Returns true if an output is also an input or another output: the arguments contradict one another.
fn is_one_file_twice(cause: &(dyn std::error::Error + 'static)) -> bool {
    use crate::core::output::{GuardError, OutputError};
    use crate::gguf::WriteError;
    use crate::inspect::EditError;
    let of_output = |error: &OutputError| matches!(error, OutputError::Guard(error) if error.is_usage());
    let of_write = |error: &WriteError| matches!(error, WriteError::Output(error) if of_output(error));
    cause.downcast_ref::<GuardError>().is_some_and(GuardError::is_usage)
        || cause.downcast_ref().is_some_and(of_output)
        || cause.downcast_ref().is_some_and(of_write)
        || cause
            .downcast_ref()
            .is_some_and(|error| matches!(error, EditError::Write(error) if of_write(error)))
}

fn has(command: &clap::Command, option: &str) -> bool {
    let names = |arg: &clap::Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases).any(|name| name == option)
    };
    // clap adds these two when it parses.
    ["help", "version"].contains(&option) || command.get_arguments().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{convert, quantize};
    use clap::Parser;

    #[derive(Debug, clap::Parser)]
    struct NumberProbe {
        #[arg(long)]
        number: Option<u8>,
        file: String,
    }

    #[test]
    fn a_closed_pipe_and_bad_usage_are_told_apart() {
        let exit = |error: &anyhow::Error| Failure::of(error).map(|failure| failure.exit);
        assert_eq!(exit(&anyhow::Error::new(ClosedPipe).context("printing")), None);
        // That of a server or of a child is a failure.
        let pipe = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(exit(&anyhow::Error::new(pipe)), Some(Exit::Failed));
        assert_eq!(exit(&UsageError("no".to_owned()).into()), Some(Exit::Usage));
        assert_eq!(exit(&anyhow::anyhow!("no")), Some(Exit::Failed));
        let missing = crate::gguf::GgufError::PartMissing { path: "a".into(), part: 1, n_parts: 2 };
        let failure = Failure::of(&anyhow::Error::new(missing).context("opening")).unwrap();
        assert_eq!(failure.message, "opening: a: part 1 of 2 is missing");
        assert_eq!(failure.hints, ["all parts must be in one directory"]);
    }

    #[test]
    fn types_of_the_source_are_not_named() {
        let error = serde_json::from_str::<crate::tokenizer::HfJson>("[1]").unwrap_err();
        let failure = Failure::of(&anyhow::Error::new(error).context("a.json")).unwrap();
        assert_eq!(failure.message, "a.json: invalid type: sequence, expected an object at line 1 column 0");
        assert_eq!(without_type_names("plain"), "plain");
    }

    #[test]
    fn what_clap_says_is_one_line_and_its_tips() {
        let failure = |args: &[&str]| {
            Failure::of_arguments(&NumberProbe::try_parse_from([&["probe"], args].concat()).unwrap_err())
        };
        let missing = failure(&[]);
        assert_eq!(missing.message, "the following required arguments were not provided: <FILE>");
        let unknown = failure(&["f", "--numer", "1"]);
        assert_eq!(unknown.message, "unexpected argument '--numer' found");
        assert_eq!(unknown.hints, ["a similar argument exists: '--number'"]);
        assert_eq!(unknown.exit, Exit::Usage);
    }

    #[test]
    fn hints_name_options_of_the_command() {
        let hints = [
            "`--number 7` is one",
            "`--no-tokenizer` leaves it out",
            "`gguf-convert --type f16` is another",
            "none",
            "`--keep-split` has it",
            "`--help` tells all",
            "`--other` is another program's",
        ];
        let command = <NumberProbe as clap::CommandFactory>::command();
        let others = [("gguf-convert", convert::hf2gguf()), ("gguf-quantize", quantize::command())];
        let others = others.map(|(words, command)| (words.to_owned(), command));
        let failure = Failure { hints: hints.map(str::to_owned).to_vec(), ..Failure::defect() };
        let left = failure.with_hints_for(&command, &others).hints;
        let named = "`gguf-convert --no-tokenizer` leaves it out";
        assert_eq!(
            left,
            [hints[0], named, hints[2], hints[3], "`gguf-quantize --keep-split` has it", hints[5], hints[6]]
        );
    }

    #[test]
    fn json_is_asked_for_before_the_dashes() {
        let asks = |args: &[&str]| asks_for_json(args.iter().map(OsString::from));
        assert!(asks(&["in.gguf", "--json"]));
        assert!(!asks(&["in.gguf", "--", "--json"]));
    }
}
