//! Runs of the four programs.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value as Json;

/// Result of a run.
pub struct Outcome {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    /// Command line, for the messages of failed tests.
    command: String,
}

impl Outcome {
    /// Returns the exit code, of a program that no signal ended.
    #[track_caller]
    pub fn code(&self) -> i32 {
        self.code.unwrap_or_else(|| panic!("{}: ended by a signal: {}", self.command, self.text()))
    }

    /// Returns standard output, then standard error.
    pub fn text(&self) -> String {
        format!("{}{}", self.out, self.err)
    }

    /// Parses standard output.
    #[track_caller]
    pub fn json(&self) -> Json {
        let parsed = serde_json::from_str(&self.out);
        parsed.unwrap_or_else(|error| panic!("{}: {error}: {}", self.command, self.text()))
    }

    /// Returns the only model of a report of `gguf-verify --json`.
    #[track_caller]
    pub fn model(&self) -> Json {
        let mut report = self.json();
        assert_eq!(report["models"].as_array().map(Vec::len), Some(1), "{}: {report}", self.command);
        report["models"][0].take()
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn exits_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}: {}", self.command, self.text());
        self
    }

    /// Checks that the exit code is one of these.
    #[track_caller]
    pub fn exits_with_one_of(self, codes: &[i32]) -> Self {
        assert!(codes.contains(&self.code()), "{}: {:?} {}", self.command, self.code, self.text());
        self
    }

    /// Checks that the program succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits_with(0)
    }

    /// Checks the exit code, and that standard output contains these words.
    #[track_caller]
    pub fn prints(self, code: i32, words: &str) -> Self {
        assert!(self.out.contains(words), "{}: no `{words}`: {}", self.command, self.text());
        self.exits_with(code)
    }

    /// Checks the exit code, and that standard error contains these words.
    #[track_caller]
    pub fn says(self, code: i32, words: &str) -> Self {
        assert!(self.err.contains(words), "{}: no `{words}`: {}", self.command, self.text());
        self.exits_with(code)
    }

    /// Checks the exit code and all of standard error.
    #[track_caller]
    pub fn says_only(self, code: i32, text: &str) -> Self {
        assert_eq!((self.code, self.err.as_str()), (Some(code), text), "{}: {}", self.command, self.out);
        self
    }

    /// Returns exit code, standard output, standard error.
    #[track_caller]
    pub fn parts(self) -> (i32, String, String) {
        (self.code(), self.out, self.err)
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        Self { code: output.status.code(), out, err, command: String::new() }
    }
}

/// Path of a program.
pub fn path(program: &str) -> &'static str {
    match program {
        "gguf-convert" => env!("CARGO_BIN_EXE_gguf-convert"),
        "gguf-quantize" => env!("CARGO_BIN_EXE_gguf-quantize"),
        "gguf-verify" => env!("CARGO_BIN_EXE_gguf-verify"),
        "gguf-inspect" => env!("CARGO_BIN_EXE_gguf-inspect"),
        other => panic!("no program {other}"),
    }
}

/// Command of a program that runs in a directory.
pub fn command(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(path(program));
    command.current_dir(dir);
    command
}

/// Command of a program under limits of the shell, such as `ulimit -n 256`.
pub fn limited(limits: &str, program: &str, dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits} && exec \"$0\" \"$@\""), path(program)]).current_dir(dir);
    command
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Outcome {
    let outcome = Outcome::from(command.output().unwrap());
    Outcome { command: format!("{command:?}"), ..outcome }
}

/// Runs a program in a directory.
pub fn run(program: &str, dir: &Path, args: &[&str]) -> Outcome {
    finish(command(program, dir).args(args))
}

/// Runs a program with `--no-sync` before its arguments.
pub fn run_unsynced(program: &str, dir: &Path, args: &[&str]) -> Outcome {
    finish(command(program, dir).arg("--no-sync").args(args))
}
