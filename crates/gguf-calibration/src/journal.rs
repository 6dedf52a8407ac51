//! Journal of a run: lines after their digests, added at the end.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use gguf_core::limits::Limits;
use gguf_core::sync::Unpoisoned;
use gguf_core::text::hex;

/// Maximum work that is lost if the machine fails. A process that is killed loses nothing.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of hexadecimal digits of a line's digest.
const LINE_DIGITS: usize = 16;

/// Entry of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum Record {
    /// Digest of the written blocks of a matrix.
    Solved { attempt: usize, tensor: String, matrix: u64, digest: String },
    /// A matrix that is left to the importance matrix.
    Left { attempt: usize, tensor: String, matrix: u64, reason: String },
    /// An attempt whose matrices are all done, with the digest of its file of importance sums.
    Done { attempt: usize, importance: String },
    /// Figures on the held-out text; without an attempt, those of the importance matrix's file.
    Judged { attempt: Option<usize>, figures: [f64; 4] },
    /// Divergence with only one group of tensors quantized.
    Cost { group: usize, kld: f64 },
    /// Figures of a candidate on the held-out text.
    Tried { candidate: String, figures: [f64; 4] },
}

#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    sync: bool,
    state: Mutex<(File, Instant)>,
}

fn line_digest(json: &[u8]) -> String {
    let mut digest = hex(&Sha256::digest(json));
    digest.truncate(LINE_DIGITS);
    digest
}

/// Prepends its digest to a line of JSON.
pub(super) fn sealed(json: &str) -> String {
    format!("{} {json}\n", line_digest(json.as_bytes()))
}

/// Returns the JSON of a line if it is complete and its digest matches.
pub(super) fn unsealed(line: &[u8]) -> Option<&[u8]> {
    let (digest, json) = line.strip_suffix(b"\n")?.split_at_checked(LINE_DIGITS)?;
    let json = json.strip_prefix(b" ")?;
    (line_digest(json).as_bytes() == digest).then_some(json)
}

impl Journal {
    /// Opens the journal and reads its records; everything after the last good line is cut off.
    pub(super) fn open(path: &Path, sync: bool) -> std::io::Result<(Self, Vec<Record>)> {
        let named =
            |error: std::io::Error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut file =
            File::options().create(true).truncate(false).read(true).write(true).open(path).map_err(named)?;
        let n_bytes = file.metadata().map_err(named)?.len();
        let limit = Limits::default().text_file_bytes;
        if n_bytes > limit {
            let text = format!("{n_bytes} bytes to read whole, at most {limit} allowed");
            return Err(named(std::io::Error::other(text)));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(named)?;
        let (records, n_good) = parse(&text);
        file.set_len(n_good).map_err(named)?;
        file.seek(SeekFrom::Start(n_good)).map_err(named)?;
        Ok((Self { path: path.to_owned(), sync, state: Mutex::new((file, Instant::now())) }, records))
    }

    pub(super) fn add(&self, record: &Record) -> std::io::Result<()> {
        self.add_behind(None, record)
    }

    /// Adds a line that describes the contents of another file. With `sync`, both files are flushed at most once per
    /// interval, the other file first. After a crash, the digests show what reached the disk.
    pub(super) fn add_behind(&self, blocks: Option<&File>, record: &Record) -> std::io::Result<()> {
        let added = self.write(blocks, record);
        added.map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))
    }

    fn write(&self, blocks: Option<&File>, record: &Record) -> std::io::Result<()> {
        let json = serde_json::to_string(record)?;
        let line = sealed(&json);
        let mut state = self.state.lock().unpoisoned();
        let (file, synced) = &mut *state;
        file.write_all(line.as_bytes())?;
        if self.sync && (blocks.is_none() || synced.elapsed() >= INTERVAL) {
            if let Some(blocks) = blocks {
                blocks.sync_data()?;
            }
            file.sync_data()?;
            *synced = Instant::now();
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(super) struct AttemptLog {
    pub(super) journal: Arc<Journal>,
    pub(super) attempt: usize,
}

impl AttemptLog {
    /// Records that the blocks of a matrix are written.
    pub(super) fn solved(
        &self,
        blocks: &File,
        tensor: &str,
        matrix: u64,
        digest: String,
    ) -> std::io::Result<()> {
        let record = Record::Solved { attempt: self.attempt, tensor: tensor.to_owned(), matrix, digest };
        self.journal.add_behind(Some(blocks), &record)
    }
}

/// Parses the records before the first truncated or damaged line, and returns the bytes that they take.
fn parse(text: &[u8]) -> (Vec<Record>, u64) {
    let (mut records, mut n_good) = (Vec::new(), 0u64);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let record = unsealed(line).and_then(|json| serde_json::from_slice(json).ok());
        let Some(record) = record else { break };
        records.push(record);
        n_good += line.len() as u64;
    }
    (records, n_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solved(tensor: &str) -> Record {
        Record::Solved { attempt: 0, tensor: tensor.to_owned(), matrix: 3, digest: "00".to_owned() }
    }

    #[test]
    fn a_cut_or_damaged_line_ends_what_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let records = [solved("a"), Record::Judged { attempt: None, figures: [0.1, 1e-300, 3.5, 0.25] }];
        let (journal, found) = Journal::open(&path, true).unwrap();
        assert!(found.is_empty());
        for record in &records {
            journal.add(record).unwrap();
        }
        drop(journal);
        let whole = fs_err::read(&path).unwrap();
        assert_eq!(Journal::open(&path, false).unwrap().1, records);
        // The last line is half written: the next one replaces it.
        for n in [1, 5, 30] {
            fs_err::write(&path, &whole[..whole.len() - n]).unwrap();
            let (journal, found) = Journal::open(&path, false).unwrap();
            assert_eq!(found, records[..1]);
            journal.add(&solved("c")).unwrap();
            drop(journal);
            assert_eq!(Journal::open(&path, false).unwrap().1, [records[0].clone(), solved("c")]);
        }
        let mut damaged = whole.clone();
        damaged[30] ^= 1;
        fs_err::write(&path, damaged).unwrap();
        assert!(Journal::open(&path, false).unwrap().1.is_empty());
        for text in
            ["\n", "x\n", "0123456789abcdef {}\n", "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9} \n"]
        {
            assert_eq!(parse(text.as_bytes()), (Vec::new(), 0));
        }
    }
}
