//! Detection of files that are mistaken for GGUF files, by their first bytes and their names.

use std::fmt;
use std::path::Path;

use gguf_core::input::INCOMPLETE;

/// Maximum number of bytes that are examined at the start of a file.
const HEAD_BYTES: usize = 1 << 20;
/// Number of bytes that decide whether a file is text.
const TEXT_BYTES: usize = 128;
/// Maximum number of pieces that a join command lists.
const MAX_PIECES: u32 = 99;

/// Kind of a file that is not a GGUF file, or not a whole one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherFile {
    /// No bytes.
    Empty,
    /// Zeros at the start of the file.
    Zeros {
        /// Number of zeros found.
        n_bytes: usize,
        /// True if the file has no other bytes.
        whole: bool,
    },
    /// HTML page.
    WebPage,
    /// JSON, such as an error response of a server.
    Json,
    /// JSON that is named so: a file of a checkpoint.
    JsonFile,
    /// Weights of a checkpoint: safetensors.
    Safetensors,
    /// Weights of a checkpoint: a zip archive of PyTorch.
    Zip,
    /// Archive or compressed file: its format, and the command that unpacks it.
    Archive(&'static str, &'static str),
    /// Ollama's note of the layers of a model.
    Manifest,
    /// Ollama's recipe of a model.
    Modelfile,
    /// Other text, with its first line.
    Text(String),
    /// A Git LFS pointer.
    LfsPointer,
    /// Piece of a file that was split bytewise, with the command that joins the pieces.
    Piece(String),
}

/// Formats that hold other files: offset and bytes of the mark, name of the format, command that unpacks it.
const ARCHIVES: [(usize, &[u8], &str, &str); 9] = [
    (0, b"\x1f\x8b", "gzip", "gunzip"),
    (0, b"\x28\xb5\x2f\xfd", "Zstandard", "unzstd"),
    (0, b"BZh", "bzip2", "bunzip2"),
    (0, b"\xfd7zXZ\0", "xz", "unxz"),
    (0, b"\x04\x22\x4d\x18", "LZ4", "unlz4"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z", "7z x"),
    (0, b"Rar!\x1a\x07", "RAR", "unrar x"),
    (257, b"ustar", "tar", "tar -xf"),
    (0, b"MZqFpD='", "llamafile", "unzip"),
];

impl OtherFile {
    /// Determines the kind of a file that is not a GGUF file, if possible. `bytes` has at least its first bytes,
    /// `n_beyond` is the number of bytes after them.
    pub(crate) fn of(path: &Path, bytes: &[u8], n_beyond: u64) -> Option<Self> {
        let found = Self::piece(path).or_else(|| Self::of_bytes(bytes, n_beyond))?;
        let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        Some(if found == Self::Json && is_json { Self::JsonFile } else { found })
    }

    /// Detects a piece of a file by its name.
    pub(super) fn piece(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (stem, pieces) = pieces(name)?;
        Some(Self::Piece(format!("cat {pieces} > {stem}")))
    }

    fn of_bytes(bytes: &[u8], n_beyond: u64) -> Option<Self> {
        if bytes.is_empty() {
            return (n_beyond == 0).then_some(Self::Empty);
        }
        let head = &bytes[..bytes.len().min(HEAD_BYTES)];
        let n_zeros = head.iter().take_while(|&&byte| byte == 0).count();
        if n_zeros >= 64 || (n_zeros > 0 && n_zeros == head.len()) {
            let whole = n_zeros == bytes.len() && n_beyond == 0;
            return Some(Self::Zeros { n_bytes: n_zeros, whole });
        }
        // The length of the header in eight bytes, then the header.
        if matches!(head, [_, _, _, _, 0, 0, 0, 0, b'{', ..]) {
            return Some(Self::Safetensors);
        }
        if head.starts_with(b"PK\x03\x04") {
            return Some(if is_of_pytorch(head) { Self::Zip } else { Self::Archive("zip", "unzip") });
        }
        let has_mark = |(at, mark): (usize, &[u8])| head.get(at..).is_some_and(|rest| rest.starts_with(mark));
        if let Some((_, _, name, command)) = ARCHIVES.into_iter().find(|row| has_mark((row.0, row.1))) {
            return Some(Self::Archive(name, command));
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
        if begins("{\"schemaVersion\"") {
            return Some(Self::Manifest);
        }
        if begins("{") || begins("[") {
            return Some(Self::Json);
        }
        if begins("FROM ") {
            return Some(Self::Modelfile);
        }
        let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
        // Short words such as the magic of older formats do not count as text.
        (line.len() >= 8).then(|| Self::Text(String::from_utf8_lossy(line).trim_end().to_owned()))
    }

    pub(super) fn hint(&self) -> String {
        match self {
            Self::Empty => INCOMPLETE.to_owned(),
            Self::Zeros { .. } => "the download or the copy failed: fetch the file again".to_owned(),
            Self::Text(_) => {
                "this is a text file (a server's message, if it was downloaded): name a GGUF file".to_owned()
            }
            Self::WebPage | Self::Json => {
                "a server answered this in place of the file: look at it, then fetch the file again"
                    .to_owned()
            }
            Self::JsonFile => {
                "name a GGUF file; where a checkpoint is taken, name its folder (`gguf-inspect checkpoint DIR` shows it)"
                    .to_owned()
            }
            Self::Safetensors | Self::Zip => "convert its folder: `gguf-convert hf2gguf DIR`".to_owned(),
            Self::Archive(_, command) => {
                format!("unpack it first, for example with `{command}`, and name the file that was in it")
            }
            Self::Manifest => {
                "the digest of its layer `application/vnd.ollama.image.model` is the name of the model's file, in the \
                 folder `blobs`"
                    .to_owned()
            }
            Self::Modelfile => "the file behind `FROM` is the model".to_owned(),
            Self::LfsPointer => "fetch the file itself with `git lfs pull`".to_owned(),
            Self::Piece(join) => format!("join the pieces first: `{join}`"),
        }
    }
}

impl fmt::Display for OtherFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the file is empty"),
            Self::Zeros { whole: true, .. } => write!(f, "nothing but zeros"),
            Self::Zeros { n_bytes, .. } => write!(f, "it begins with {n_bytes} zeros"),
            Self::WebPage => write!(f, "a web page (HTML)"),
            Self::Json | Self::JsonFile => write!(f, "JSON"),
            Self::Safetensors => write!(f, "weights of a checkpoint (safetensors)"),
            Self::Zip => write!(f, "a zip archive, as PyTorch's weights are"),
            Self::Archive("llamafile", _) => write!(f, "a llamafile, a program with the model's file in it"),
            Self::Archive(name, _) => write!(f, "an archive or compressed file ({name})"),
            Self::Manifest => write!(f, "a manifest of Ollama"),
            Self::Modelfile => write!(f, "a Modelfile of Ollama"),
            Self::Text(line) => write!(f, "a text that begins with `{}`", gguf_core::text::escape(line)),
            Self::LfsPointer => write!(f, "a Git LFS pointer"),
            Self::Piece(_) => write!(f, "a piece of a file that was cut bytewise"),
        }
    }
}

/// Returns true for a zip archive whose first entry is a pickle, as PyTorch writes it, or has no name that can be read.
fn is_of_pytorch(head: &[u8]) -> bool {
    let n_bytes = |at: usize| Some(usize::from(u16::from_le_bytes([*head.get(at)?, *head.get(at + 1)?])));
    let name = n_bytes(26).and_then(|n| head.get(30..30 + n));
    name.is_none_or(|name| name.ends_with(b".pkl"))
}

/// Returns the name of the whole file and the names of the pieces, given the name of a piece.
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
    // `m.gguf.00`, `m.gguf.part-aa`, `m.gguf-split-a`: sorting the names gives the order of the pieces.
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
        assert_eq!(of(br#"{"schemaVersion":2,"mediaType":"x"}"#), Some(OtherFile::Manifest));
        assert_eq!(of(b"FROM ./m.gguf\nTEMPLATE x\n"), Some(OtherFile::Modelfile));
        assert_eq!(of(b"Entry not found\n"), Some(OtherFile::Text("Entry not found".to_owned())));
        assert_eq!(of(b"version https://git-lfs.github.com/spec/v1\n"), Some(OtherFile::LfsPointer));
        assert_eq!(of(b""), Some(OtherFile::Empty));
        assert_eq!(of(b"\x40\x01\0\0\0\0\0\0{}"), Some(OtherFile::Safetensors));
        assert_eq!(of(b"PK\x03\x04\0\0"), Some(OtherFile::Zip));
        let zip = |name: &str| {
            let n_bytes = u16::try_from(name.len()).unwrap().to_le_bytes();
            [&b"PK\x03\x04"[..], &[0; 22], &n_bytes, &[0; 2], name.as_bytes()].concat()
        };
        assert_eq!(of(&zip("archive/data.pkl")), Some(OtherFile::Zip));
        for (bytes, name, command) in [
            (zip("model/m.gguf"), "zip", "unzip"),
            (b"\x1f\x8b\x08\x08".to_vec(), "gzip", "gunzip"),
            (b"(\xb5/\xfd\x04".to_vec(), "Zstandard", "unzstd"),
            (b"MZqFpD='\n".to_vec(), "llamafile", "unzip"),
            ([&b"m.gguf"[..], &[0; 251], b"ustar\0"].concat(), "tar", "tar -xf"),
        ] {
            let found = of(&bytes).unwrap();
            assert_eq!(found, OtherFile::Archive(name, command));
            assert!(found.to_string().contains(name) && found.hint().contains(command), "{found}");
        }
        for (name, found) in [("config.json", OtherFile::JsonFile), ("m.gguf", OtherFile::Json)] {
            assert_eq!(OtherFile::of(Path::new(name), b"{}", 0), Some(found));
        }
        // An older model, a legacy importance matrix.
        for bytes in [&b"ggml"[..], b"\x02\0\0\0\x05\0\0\0blk.0"] {
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
