//! `completions`, a command of all programs.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::cli::{Exit, Session, UsageError};

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Completions {
    /// Shell that is to complete the program's arguments
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    /// Prints the completion script of a program.
    pub(in crate::cli) fn run(&self, program: Command, session: &Session) -> anyhow::Result<Exit> {
        if session.common.json {
            return Err(UsageError("`--json`: a completion script has one form".to_owned()).into());
        }
        let text = script(self.shell, program);
        session.print(|out| out.write_all(&text))?;
        Ok(Exit::Done)
    }
}

pub(in crate::cli) fn script(shell: Shell, mut program: Command) -> Vec<u8> {
    let name = program.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut text);
    text
}
