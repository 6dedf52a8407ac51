//! The zip container: byte ranges of the pickle and the storages.
//!
//! Records are uncompressed, so they are read in place.
//!
//! # Layout
//! One folder, of any name, with `data.pkl`, `data/<key>` for each storage, and `byteorder` (`little` or `big`;
//! absent before PyTorch 2.1, then little). Local headers have no sizes, and other extra fields than the directory.
//! So sizes are taken from the directory, and the start of the data from the local header.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use crate::torch::error::{RecordProblem, TorchError};
use gguf_core::bytes::Endian;
use gguf_core::ranged::Bytes;

/// Largest record whose checksum is verified when the file is opened, in bytes.
///
/// A checksum covers a whole record, so larger records would have to be read twice.
const CHECKED_BYTES: u64 = 1 << 20;

/// Byte range of a record or storage in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileRange {
    pub(super) offset: u64,
    /// Length in bytes; the end is inside the file.
    pub(super) n_bytes: u64,
}

/// The relevant records of the archive.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) pickle: FileRange,
    pub(super) storages: HashMap<String, FileRange>,
    pub(super) endian: Endian,
}

/// A record as the directory lists it.
struct ZipRecord {
    name: String,
    header: u64,
    extent: FileRange,
}

/// Reads the directory and checks every record of it.
pub(super) fn read<B: Bytes + ?Sized>(file: &B) -> Result<Archive, TorchError> {
    let config = zip::read::Config { archive_offset: zip::read::ArchiveOffset::Known(0) };
    let mut zip = ZipArchive::with_config(config, ArchiveReader { file, at: 0 })?;
    if zip.has_duplicate_names() {
        return Err(TorchError::DuplicateRecord);
    }
    check_directory_end(file, zip.central_directory_start(), zip.len())?;
    // First identify the archive by its names: a TorchScript program, for example, may be compressed.
    let top = top(&zip)?;
    let mut records = Vec::with_capacity(zip.len());
    for index in 0..zip.len() {
        records.push(record(&mut zip, index)?);
    }
    check_overlap(&records)?;
    let mut archive = Archive {
        pickle: FileRange { offset: 0, n_bytes: 0 },
        storages: HashMap::new(),
        endian: Endian::Little,
    };
    for record in &records {
        let Some(name) = record.name.strip_prefix(&top) else { continue };
        if name == "data.pkl" {
            archive.pickle = record.extent;
        } else if name == "byteorder" {
            archive.endian = byte_order(&bytes(file, record.extent)?)?;
        } else if let Some(key) = name.strip_prefix("data/") {
            archive.storages.insert(key.to_owned(), record.extent);
        }
    }
    // Checksums come last: a wrong byte order has a better message of its own.
    for (index, record) in records.iter().enumerate() {
        if record.extent.n_bytes <= CHECKED_BYTES || record.extent == archive.pickle {
            check_sum(&mut zip, index)?;
        }
    }
    Ok(archive)
}

/// Returns the bytes of an extent, which is known to be inside the file.
pub(super) fn bytes<B: Bytes + ?Sized>(file: &B, extent: FileRange) -> io::Result<Cow<'_, [u8]>> {
    Ok(file.get(extent.offset, extent.n_bytes)?.unwrap_or_default())
}

/// Adapter of the file to the [`Read`] and [`Seek`] that the zip reader needs.
struct ArchiveReader<'a, B: ?Sized> {
    file: &'a B,
    at: u64,
}

impl<B: Bytes + ?Sized> Read for ArchiveReader<'_, B> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.file.n_bytes().saturating_sub(self.at);
        let n_bytes = left.min(out.len() as u64);
        let bytes = self.file.get(self.at, n_bytes)?.unwrap_or_default();
        out[..bytes.len()].copy_from_slice(&bytes);
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }
}

impl<B: Bytes + ?Sized> Seek for ArchiveReader<'_, B> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.n_bytes().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

/// Checks that the directory ends after its last listed record: a wrong count would hide records.
fn check_directory_end<B: Bytes + ?Sized>(file: &B, start: u64, listed: usize) -> Result<(), TorchError> {
    const HEADER_BYTES: u64 = 46;
    let n_bytes = file.n_bytes().saturating_sub(start);
    let directory = file.get(start, n_bytes)?.unwrap_or_default();
    let mut offset = start;
    let number = |at: u64| -> Option<u64> {
        let raw = directory.get(usize::try_from(at - start).ok()?..)?.first_chunk::<2>()?;
        Some(u64::from(u16::from_le_bytes(*raw)))
    };
    for _ in 0..listed {
        let lengths = [28, 30, 32].map(|field| number(offset + field));
        let [Some(name), Some(extra), Some(comment)] = lengths else { break };
        offset += HEADER_BYTES + name + extra + comment;
    }
    let ends = usize::try_from(offset - start)
        .ok()
        .and_then(|at| directory.get(at..))
        .is_some_and(|rest| rest.starts_with(b"PK\x05\x06") || rest.starts_with(b"PK\x06\x06"));
    if ends { Ok(()) } else { Err(TorchError::Directory { offset, listed }) }
}

fn record<R: Read + Seek>(zip: &mut ZipArchive<R>, index: usize) -> Result<ZipRecord, TorchError> {
    let end = zip.central_directory_start();
    let entry = zip.by_index_raw(index)?;
    let name = entry.name()?.into_owned();
    let offset = entry.data_start().ok_or(ZipError::FileNotFound)?;
    let extent = FileRange { offset, n_bytes: entry.size() };
    let problem = if entry.encrypted() {
        RecordProblem::Encrypted
    } else if entry.compression() != CompressionMethod::Stored {
        RecordProblem::Compressed
    } else if entry.compressed_size() != entry.size() {
        RecordProblem::Sizes { stored: entry.compressed_size(), declared: entry.size() }
    } else if offset.checked_add(extent.n_bytes).is_none_or(|data_end| data_end > end) {
        RecordProblem::Outside { offset, n_bytes: extent.n_bytes, end }
    } else {
        return Ok(ZipRecord { name, header: entry.header_start(), extent });
    };
    Err(TorchError::Record { name, problem })
}

/// Checks that no record begins inside another.
fn check_overlap(records: &[ZipRecord]) -> Result<(), TorchError> {
    let mut by_offset: Vec<&ZipRecord> = records.iter().collect();
    by_offset.sort_by_key(|record| record.header);
    for pair in by_offset.windows(2) {
        let [first, second] = pair else { continue };
        if first.extent.offset + first.extent.n_bytes > second.header {
            let problem = RecordProblem::Overlap { other: first.name.clone() };
            return Err(TorchError::Record { name: second.name.clone(), problem });
        }
    }
    Ok(())
}

/// Returns the folder of the only `data.pkl`, with a trailing slash.
fn top<R: Read + Seek>(zip: &ZipArchive<R>) -> Result<String, TorchError> {
    let names = || zip.file_names().filter_map(Result::ok);
    let mut tops = names().filter_map(|name| {
        let top = name.strip_suffix("data.pkl")?;
        (top.ends_with('/') && top.matches('/').count() == 1).then(|| top.to_owned())
    });
    let first = tops.next().ok_or(TorchError::NoDataPkl)?;
    if let Some(second) = tops.next() {
        let name = |top| format!("{top}data.pkl");
        return Err(TorchError::TwoDataPkl { first: name(first), second: name(second) });
    }
    let is_code = |name: &str| {
        name.strip_prefix(&first).is_some_and(|rest| rest == "constants.pkl" || rest.starts_with("code/"))
    };
    if names().any(|name| is_code(&name)) { Err(TorchError::TorchScript) } else { Ok(first) }
}

fn byte_order(text: &[u8]) -> Result<Endian, TorchError> {
    match text {
        b"little" => Ok(Endian::Little),
        b"big" => Ok(Endian::Big),
        other => {
            let shown = &other[..other.len().min(32)];
            Err(TorchError::ByteOrder { found: String::from_utf8_lossy(shown).into_owned() })
        }
    }
}

/// Reads a record to its end, where the zip reader verifies the checksum.
fn check_sum<R: Read + Seek>(zip: &mut ZipArchive<R>, index: usize) -> Result<(), TorchError> {
    let mut entry = zip.by_index(index)?;
    let name = entry.name()?.into_owned();
    io::copy(&mut entry, &mut io::sink())
        .map(drop)
        .map_err(|_| TorchError::Record { name, problem: RecordProblem::Checksum })
}
