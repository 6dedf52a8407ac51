//! The account of an input: its files, their keys and tensors, each with what becomes of it.

use serde::Serialize;

/// Kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PieceKind {
    /// A file of the folder.
    File,
    /// A key of a file.
    Key,
    /// A tensor.
    Tensor,
}

/// What becomes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is in the output.
    Written,
    /// The output needs nothing of it.
    WithoutEffect,
    /// It matters, and the output does not have it.
    LeftOut,
    /// No rule knows it.
    Unknown,
}

/// A piece of an input, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// Kind of the piece: `file`, `key` or `tensor`.
    #[serde(rename = "of")]
    pub kind: PieceKind,
    /// File that has the key; null for files and tensors.
    pub file: Option<String>,
    /// Name of the file, key (with dots for nested members), or tensor.
    pub name: String,
    /// What becomes of it: `written`, `without-effect`, `left-out` or `unknown`.
    pub fate: Fate,
    /// Keys or tensors of the output that are made of it.
    pub to: Vec<String>,
    /// Reason, if it is not written.
    pub why: Option<String>,
}

impl Piece {
    /// Creates a piece that is in the output.
    pub fn written(kind: PieceKind, name: impl Into<String>, to: Vec<String>) -> Self {
        Self { kind, file: None, name: name.into(), fate: Fate::Written, to, why: None }
    }

    /// Creates a piece that is not in the output.
    pub fn not(kind: PieceKind, name: impl Into<String>, fate: Fate, why: impl Into<String>) -> Self {
        Self { kind, file: None, name: name.into(), fate, to: Vec::new(), why: Some(why.into()) }
    }

    /// Returns the piece as a key of a file.
    pub fn within(self, file: &str) -> Self {
        Self { file: Some(file.to_owned()), ..self }
    }
}
