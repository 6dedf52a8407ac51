//! An open GGUF file: mapped, read piece by piece, or fetched from a server. Its header is checked as a whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::OtherFile;
use crate::error::{GgufError, HeaderError};
use crate::header::{Header, Strictness, parse_head, parse_header};
use gguf_core::limits::Limits;
use gguf_core::mmap::{MappedFile, address_space_bytes};
use gguf_core::ranged::{self, RangedFile};
use gguf_core::{input, platform};

/// Size of the first attempt to read the header of a file that is not mapped, in bytes.
const HEAD_BYTES: u64 = 16 << 20;
/// Size of the first attempt to fetch a header from a server, in bytes.
const FETCHED_BYTES: u64 = 256 << 10;
/// Maximum size of a fetched header in bytes: a vocabulary of a million tokens has some 40 MB.
const MAX_FETCHED_BYTES: u64 = 256 << 20;

/// Options for opening a file.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Limits on sizes that the header may declare.
    pub limits: Limits,
    /// Handling of violations that llama.cpp accepts.
    pub strictness: Strictness,
    /// True to open all parts of a split model; false to open only the given file.
    pub join_parts: bool,
    /// True to read a file piece by piece if the address space is too small to map it (`ulimit -v`). Such a file is a
    /// [`TensorSource`](gguf_core::TensorSource) like any other, but lends no bytes: [`Part::bytes`] ends after the
    /// header.
    pub may_read: bool,
    /// True to read the files into memory at once and lock them there while they are open ([`MappedFile::lock`]).
    pub lock: bool,
}

impl OpenOptions {
    /// Options for a file that may be another program's. Tensors that llama.cpp's format does not cover are read as
    /// bytes, and [`crate::GgufFile::declared`] returns their declared shapes and types.
    pub fn foreign() -> Self {
        Self { strictness: Strictness::Foreign, ..Self::default() }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            strictness: Strictness::default(),
            join_parts: true,
            may_read: false,
            lock: false,
        }
    }
}

/// One file and its header.
#[derive(Debug)]
pub struct Part {
    pub(super) contents: Contents,
    file_bytes: u64,
    pub(super) header: Header,
    pub(super) first_tensor: usize,
}

/// Access to the bytes of a file.
#[derive(Debug)]
pub(super) enum Contents {
    /// All bytes are mapped.
    Mapped(MappedFile),
    /// The first bytes are mapped; the others are read ([`OpenOptions::may_read`]).
    Read { head: MappedFile, file: fs_err::File },
    /// The first bytes were fetched from a server; the others are fetched on demand.
    Fetched { path: PathBuf, head: Vec<u8>, file: Arc<dyn RangedFile> },
}

impl Contents {
    /// Returns all bytes of a mapped file, else the first ones.
    pub(super) fn head(&self) -> &[u8] {
        match self {
            Self::Mapped(map) | Self::Read { head: map, .. } => map,
            Self::Fetched { head, .. } => head,
        }
    }

    /// Returns all bytes if they are mapped.
    pub(super) fn mapped(&self) -> Option<&MappedFile> {
        match self {
            Self::Mapped(map) => Some(map),
            _ => None,
        }
    }

    /// Reads the bytes from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::Mapped(map) => {
                out.copy_from_slice(&map[offset as usize..][..out.len()]);
                Ok(())
            }
            Self::Read { file, .. } => read_at(file, out, offset),
            Self::Fetched { file, .. } => file.read_at(offset, out),
        }
    }
}

impl Part {
    /// Path of the file.
    pub fn path(&self) -> &Path {
        match &self.contents {
            Contents::Mapped(map) | Contents::Read { head: map, .. } => map.path(),
            Contents::Fetched { path, .. } => path,
        }
    }

    /// Header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes of the file, or only the first ones if it is not mapped (see [`crate::GgufFile`]).
    pub fn bytes(&self) -> &[u8] {
        self.contents.head()
    }

    /// Number of bytes after the last tensor and its padding. The format does not define them; readers ignore them.
    pub fn trailing_bytes(&self) -> u64 {
        self.file_bytes().saturating_sub(self.header.padded_end())
    }

    /// Index of the file's first tensor among all tensors.
    pub fn first_tensor(&self) -> usize {
        self.first_tensor
    }
}

/// Opens a local or remote file.
pub(super) fn open_part(path: &Path, options: &OpenOptions) -> Result<Part, GgufError> {
    if let Some(file) = ranged::find(path) {
        return open_fetched(path, file, options);
    }
    if options.may_read
        && let Some(limit) = address_space_bytes()
    {
        let file_bytes = fs_err::metadata(path)?.len();
        // A mapping counts in full: it may take a quarter, the rest is left for computation.
        if file_bytes > limit / 4 {
            if options.lock {
                return Err(GgufError::LockUnmapped { path: path.to_owned(), file_bytes });
            }
            return open_for_reading(path, file_bytes, options);
        }
    }
    let mut map = MappedFile::open(path)?;
    let header = parse_header(&map, &options.limits, options.strictness)
        .map_err(|error| refused(path, error, &map, 0))?;
    if options.lock {
        map.lock()?;
    }
    let file_bytes = map.len() as u64;
    Ok(Part { contents: Contents::Mapped(map), file_bytes, header, first_tensor: 0 })
}

/// Opens a file on a server by fetching its header.
fn open_fetched(path: &Path, file: Arc<dyn RangedFile>, options: &OpenOptions) -> Result<Part, GgufError> {
    let file_bytes = file.n_bytes();
    let mut head = Vec::new();
    let mut head_bytes = FETCHED_BYTES;
    loop {
        let done = head.len();
        head.resize(head_bytes.min(file_bytes) as usize, 0);
        file.read_at(done as u64, &mut head[done..])?;
        let beyond = file_bytes - head.len() as u64;
        match parse_head(&head, beyond, &options.limits, options.strictness) {
            Ok(header) => {
                head.truncate(header.header_bytes as usize);
                let contents = Contents::Fetched { path: path.to_owned(), head, file };
                return Ok(Part { contents, file_bytes, header, first_tensor: 0 });
            }
            Err(error) if !may_go_on(&error, beyond) => return Err(refused(path, error, &head, beyond)),
            Err(_) if head_bytes >= MAX_FETCHED_BYTES => {
                let most = MAX_FETCHED_BYTES >> 20;
                let text = format!("{}: the header does not end within {most} MiB", path.display());
                return Err(std::io::Error::other(text).into());
            }
            Err(_) => head_bytes *= 4,
        }
    }
}

/// Returns true if a refused header may only be truncated, in a file with `beyond` more bytes.
fn may_go_on(error: &HeaderError, beyond: u64) -> bool {
    let missing = match error {
        HeaderError::Truncated { at, .. } => at.wanted.saturating_sub(at.left),
        HeaderError::Count { found, left, .. } => found.saturating_sub(*left),
        HeaderError::ArrayLength { n_elems, left, .. } => n_elems.saturating_sub(*left),
        _ => return false,
    };
    missing <= beyond
}

/// Opens a file by mapping only its header.
fn open_for_reading(path: &Path, file_bytes: u64, options: &OpenOptions) -> Result<Part, GgufError> {
    let file = input::open(path)?;
    let mut head_bytes = HEAD_BYTES;
    loop {
        let map = MappedFile::open_head(path, head_bytes)?;
        let beyond = file_bytes.saturating_sub(map.len() as u64);
        match parse_head(&map, beyond, &options.limits, options.strictness) {
            Ok(header) => {
                let contents = Contents::Read { head: map, file };
                return Ok(Part { contents, file_bytes, header, first_tensor: 0 });
            }
            // The header may continue after the head.
            Err(_) if beyond > 0 => head_bytes = head_bytes.saturating_mul(4),
            Err(error) => return Err(refused(path, error, &map, beyond)),
        }
    }
}

/// Returns the error for a file whose header was refused, with the kind of the file if it is not a GGUF file.
fn refused(path: &Path, error: HeaderError, bytes: &[u8], n_beyond: u64) -> GgufError {
    let what = match error {
        HeaderError::Magic { .. } => OtherFile::of(path, bytes, n_beyond),
        HeaderError::Truncated { ref at, .. } if at.offset == 0 => OtherFile::of(path, bytes, n_beyond),
        // The first piece of a split file has a valid start and ends at any byte.
        ref error if error.is_cut() => OtherFile::piece(path),
        _ => None,
    };
    let path = path.to_owned();
    match what {
        Some(what) => GgufError::OtherFile { path, what },
        None => GgufError::Header { path, error },
    }
}

fn read_at(file: &fs_err::File, out: &mut [u8], offset: u64) -> std::io::Result<()> {
    let named = |error: std::io::Error| {
        std::io::Error::new(
            error.kind(),
            format!("failed to read from file `{}`: {error}", file.path().display()),
        )
    };
    platform::read_exact_at(file.file(), out, offset).map_err(named)
}
