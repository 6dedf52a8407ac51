//! Reasons why an output cannot be written.

use std::io;
use std::path::PathBuf;

use super::{GuardError, io_hints};
use crate::Hint;
use crate::text::{escape, shell_path};

/// Reason why an output cannot be written to its destination.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OutputError {
    #[error("{}: {obstacle}", target.display())]
    Refused { target: PathBuf, obstacle: Obstacle },
    #[error("{}: there is no directory {}", target.display(), dir.display())]
    NoDirectory { target: PathBuf, dir: PathBuf },
    #[error(transparent)]
    Guard(#[from] GuardError),
    #[error("{}: one of several files whose writing was interrupted half way", target.display())]
    Interrupted { target: PathBuf, journal: PathBuf },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Obstacle at the path of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// `-`: standard output by convention.
    StandardOutput,
    /// A name of a directory: it ends in a separator, or in `..`.
    DirectoryName,
    /// A directory.
    Directory,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A block device: a disk.
    BlockDevice,
    /// A character device that has no positions: a terminal.
    Stream,
    /// A directory with content, where a new one was to be made.
    NotEmpty,
    /// A file of another program, in a directory that was empty.
    Taken,
    /// A file, where a directory was to be made.
    NotADirectory,
    /// Any character device, for an output that has parts.
    DeviceForParts,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::StandardOutput => "cannot write to standard output, only to a file",
            Self::DirectoryName => "not a file name",
            Self::Directory => "this is a directory, a file name expected",
            Self::Fifo => "this is a FIFO, which has no positions to write at",
            Self::Socket => "this is a socket, which has no positions to write at",
            Self::BlockDevice => "this is a block device, a file name expected",
            Self::Stream => "this is a device without positions to write at",
            Self::NotEmpty => "directory is not empty",
            Self::Taken => "another program has written this while the directory was filled",
            Self::NotADirectory => "not a directory",
            Self::DeviceForParts => "this is a device, and an output in parts needs files",
        })
    }
}

impl From<OutputError> for io::Error {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::Io(error) => error,
            error => Self::other(error),
        }
    }
}

impl Hint for OutputError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Refused { obstacle, .. } => match obstacle {
                Obstacle::StandardOutput => "name a file; one that is called `-` is given as `./-`",
                Obstacle::DirectoryName | Obstacle::Directory => "name a file in it",
                Obstacle::Fifo | Obstacle::Socket | Obstacle::Stream => {
                    "several threads write at several places of the output: write a file, then send that"
                }
                Obstacle::NotEmpty | Obstacle::NotADirectory | Obstacle::Taken => {
                    "name a directory that is new or empty"
                }
                Obstacle::BlockDevice => "name a file on a file system of it",
                Obstacle::DeviceForParts => "leave out the options that split the output",
            },
            Self::NoDirectory { dir, .. } => {
                return vec![format!("create it first: `mkdir -p {}`", shell_path(&dir.to_string_lossy()))];
            }
            Self::Guard(error) => return error.hints(),
            Self::Io(error) => return io_hints(error),
            Self::Interrupted { journal, .. } => {
                return vec![
                    "run the command that wrote them again: it finishes what it began".to_owned(),
                    format!("to leave the files as they are, remove {}", escape(&journal.to_string_lossy())),
                ];
            }
        };
        vec![hint.to_owned()]
    }
}
