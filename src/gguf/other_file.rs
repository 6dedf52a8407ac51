//! Files that people take for GGUF files and that are something else: told by their first bytes and their names.

use std::fmt;
use std::path::Path;

/// Bytes at the start of a file that are looked at.
const HEAD_BYTES: usize = 1 << 20;
/// Bytes of a text that decide that it is one.
const TEXT_BYTES: usize = 128;
/// Most pieces that a command to join them names.
const MAX_PIECES: u32 = 99;

/// What a file is that is no GGUF file, or not a whole one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherFile {
    /// It begins with zeros, of which there are this many; all of it where `whole` is true.
    Zeros {
        /// Zeros that were counted.
        n_bytes: usize,
        /// Nothing else is in the file.
        whole: bool,
    },
    /// A page for a browser.
    WebPage,
    /// JSON: what servers answer in place of a file.
    Json,
    /// Another text, with its beginning.
    Text(String),
    /// A Git LFS pointer.
    LfsPointer,
    /// A piece of a file that was cut bytewise, with the command that joins the pieces.
    Piece(String),
}

impl OtherFile {
    /// What a file that is no GGUF file is, if that can be told. `bytes` are its first ones at least, `n_beyond` the
    /// number of those that follow.
    pub(in crate::gguf) fn of(path: &Path, bytes: &[u8], n_beyond: u64) -> Option<Self> {
        Self::piece(path).or_else(|| Self::of_bytes(bytes, n_beyond))
    }

    /// A piece of a file, by its name.
    pub(super) fn piece(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (stem, pieces) = pieces(name)?;
        Some(Self::Piece(format!("cat {pieces} > {stem}")))
    }

    fn of_bytes(bytes: &[u8], n_beyond: u64) -> Option<Self> {
        let head = &bytes[..bytes.len().min(HEAD_BYTES)];
        let n_zeros = head.iter().take_while(|&&byte| byte == 0).count();
        if n_zeros >= 64 || (n_zeros > 0 && n_zeros == head.len()) {
            let whole = n_zeros == bytes.len() && n_beyond == 0;
            return Some(Self::Zeros { n_bytes: n_zeros, whole });
        }
        let text = head.trim_ascii_start();
        let begins = |word: &str| {
            text.get(..word.len()).is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()))
        };
        if begins("version https://git-lfs") {
            return Some(Self::LfsPointer);
        }
        if begins("<!doctype html") || begins("<html") || begins("<head") {
            return Some(Self::WebPage);
        }
        let start = &text[..text.len().min(TEXT_BYTES)];
        if start.is_empty() || !start.iter().all(|&byte| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n'))
        {
            return None;
        }
        if begins("{") || begins("[") {
            return Some(Self::Json);
        }
        let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
        // Short words such as the magic of older formats are no text.
        (line.len() >= 8).then(|| Self::Text(String::from_utf8_lossy(line).trim_end().to_owned()))
    }

    /// What can be done about it.
    pub(super) fn hint(&self) -> String {
        match self {
            Self::Zeros { .. } => "the download or the copy failed: fetch the file again".to_owned(),
            Self::WebPage | Self::Json | Self::Text(_) => {
                "a server answered this in place of the file: look at it, then fetch the file again"
                    .to_owned()
            }
            Self::LfsPointer => "fetch the file itself with `git lfs pull`".to_owned(),
            Self::Piece(join) => format!("join the pieces first: `{join}`"),
        }
    }
}

impl fmt::Display for OtherFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeros { whole: true, .. } => write!(f, "nothing but zeros"),
            Self::Zeros { n_bytes, .. } => write!(f, "it begins with {n_bytes} zeros"),
            Self::WebPage => write!(f, "a web page (HTML)"),
            Self::Json => write!(f, "JSON"),
            Self::Text(line) => write!(f, "a text that begins with `{}`", crate::core::text::escape(line)),
            Self::LfsPointer => write!(f, "a Git LFS pointer"),
            Self::Piece(_) => write!(f, "a piece of a file that was cut bytewise"),
        }
    }
}

/// Name of the whole and names of the pieces, of a piece.
fn pieces(name: &str) -> Option<(String, String)> {
    // `m.gguf.part1of3`: all pieces are known.
    if let Some((stem, part)) = name.rsplit_once(".part")
        && let Some((number, count)) = part.split_once("of")
    {
        let width = number.len();
        let (_, n): (u32, u32) = (number.parse().ok()?, count.parse().ok()?);
        let numbers = (n <= MAX_PIECES).then_some(1..=n)?;
        let names: Vec<_> = numbers.map(|n| format!("{stem}.part{n:0width$}of{count}")).collect();
        return Some((stem.to_owned(), names.join(" ")));
    }
    // `m.gguf.00`, `m.gguf.part-aa`, `m.gguf-split-a`: the names sort in their order.
    let at = name.to_ascii_lowercase().rfind(".gguf")? + ".gguf".len();
    let (stem, ending) = name.split_at(at);
    let word = ending.strip_prefix(['.', '-', '_'])?;
    let counted =
        word.trim_start_matches("split").trim_start_matches("part").trim_start_matches(['-', '_', '.']);
    let is_number =
        !counted.is_empty() && counted.len() <= 4 && counted.bytes().all(|byte| byte.is_ascii_digit());
    let is_letters = word.len() > counted.len()
        && counted.len() <= 2
        && counted.bytes().all(|byte| byte.is_ascii_lowercase());
    let before = &ending[..ending.len() - counted.len()];
    (is_number || (is_letters && !counted.is_empty())).then(|| (stem.to_owned(), format!("{stem}{before}*")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_models() {
        let of = |bytes: &[u8]| OtherFile::of_bytes(bytes, 0);
        assert_eq!(of(&[0; 100]), Some(OtherFile::Zeros { n_bytes: 100, whole: true }));
        assert_eq!(of(&[&[0; 64][..], b"x"].concat()), Some(OtherFile::Zeros { n_bytes: 64, whole: false }));
        assert_eq!(OtherFile::of_bytes(&[0; 100], 1), Some(OtherFile::Zeros { n_bytes: 100, whole: false }));
        assert_eq!(of(b"\n<!DOCTYPE html><html></html>"), Some(OtherFile::WebPage));
        assert_eq!(of(b"<HTML>"), Some(OtherFile::WebPage));
        assert_eq!(of(br#"{"error":"Repository not found"}"#), Some(OtherFile::Json));
        assert_eq!(of(b"Entry not found\n"), Some(OtherFile::Text("Entry not found".to_owned())));
        assert_eq!(of(b"version https://git-lfs.github.com/spec/v1\n"), Some(OtherFile::LfsPointer));
        // A safetensors file, an older model, an importance matrix of the older format, nothing.
        for bytes in [&b"\x40\x01\0\0\0\0\0\0{}"[..], b"ggml", b"\x02\0\0\0\x05\0\0\0blk.0", b""] {
            assert_eq!(of(bytes), None);
        }
    }

    #[test]
    fn pieces_by_their_names() {
        let join = |name: &str| match OtherFile::piece(Path::new(name)) {
            Some(OtherFile::Piece(join)) => join,
            _ => String::new(),
        };
        assert_eq!(join("d/m.gguf.part1of2"), "cat m.gguf.part1of2 m.gguf.part2of2 > m.gguf");
        assert_eq!(
            join("m.gguf.part02of03"),
            "cat m.gguf.part01of03 m.gguf.part02of03 m.gguf.part03of03 > m.gguf"
        );
        assert_eq!(join("m.gguf.part001of120"), "");
        assert_eq!(join("m.gguf.001"), "cat m.gguf.* > m.gguf");
        assert_eq!(join("m.gguf-split-a"), "cat m.gguf-split-* > m.gguf");
        assert_eq!(join("m.gguf.part-aa"), "cat m.gguf.part-* > m.gguf");
        for whole in ["m.gguf", "m-00001-of-00002.gguf", "m.gguf.bak", "m.gguf.tmp", "m.safetensors"] {
            assert_eq!(join(whole), "", "{whole}");
        }
    }
}
