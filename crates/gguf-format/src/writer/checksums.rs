//! SHA-256 checksums of files while they are written: chunks are finished in any order, and hashed in that of the file.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

use sha2::{Digest, Sha256};

use crate::plan::PlannedFile;
use gguf_core::sync::Unpoisoned;
use gguf_core::text::hex;

/// Bytes of chunks that wait for earlier ones. Threads that are ahead wait when there are more.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Maximum number of threads that hash at once.
const MAX_LANES: usize = 4;
/// Zeros for the padding between tensors.
const ZEROS: [u8; 4096] = [0; 4096];

/// Rows of a chunk in one file.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashedRows {
    pub(super) file: usize,
    pub(super) buffer: usize,
    /// Offset in the file, in bytes.
    pub(super) offset: u64,
}

pub(super) struct WrittenChunk {
    /// Bytes that files have in common.
    pub(super) buffers: Vec<Vec<u8>>,
    /// Places of these bytes.
    pub(super) rows: Vec<HashedRows>,
}

impl WrittenChunk {
    fn n_bytes(&self) -> usize {
        self.buffers.iter().map(Vec::len).sum()
    }
}

/// Checksums of files that are being written.
///
/// Files are divided among lanes, so that several threads hash at once. A thread that has written a chunk goes from lane
/// to lane.
pub(super) struct Checksums {
    files: Vec<Mutex<FileHash>>,
    lanes: Vec<Lane>,
}

/// Files that one thread hashes at a time.
#[derive(Default)]
struct Lane {
    state: Mutex<LaneState>,
    news: Condvar,
}

#[derive(Default)]
struct LaneState {
    /// Index of the first chunk that is not hashed.
    next: usize,
    waiting: BTreeMap<usize, Arc<WrittenChunk>>,
    waiting_bytes: usize,
    /// True while a thread hashes.
    is_busy: bool,
}

/// Hash of the beginning of a file.
struct FileHash {
    hash: Sha256,
    n_bytes: u64,
}

impl FileHash {
    fn update(&mut self, offset: u64, bytes: &[u8]) {
        self.pad(offset);
        self.hash.update(bytes);
        self.n_bytes += bytes.len() as u64;
    }

    /// Adds zeros up to an offset.
    fn pad(&mut self, offset: u64) {
        while self.n_bytes < offset {
            let n = usize::try_from(offset - self.n_bytes).map_or(ZEROS.len(), |n| n.min(ZEROS.len()));
            self.hash.update(&ZEROS[..n]);
            self.n_bytes += n as u64;
        }
    }
}

impl Checksums {
    /// Begins the checksums of files with their headers.
    pub(super) fn new<'p>(files: impl Iterator<Item = &'p PlannedFile>) -> Self {
        let begin = |file: &PlannedFile| {
            let mut begun = FileHash { hash: Sha256::new(), n_bytes: 0 };
            begun.update(0, &file.plan.header);
            Mutex::new(begun)
        };
        let files: Vec<_> = files.map(begin).collect();
        let lanes = (0..files.len().min(MAX_LANES)).map(|_| Lane::default()).collect();
        Self { files, lanes }
    }

    /// Takes a written chunk. In each lane, the thread that has the next one hashes it, and those that wait for it.
    pub(super) fn wrote(&self, index: usize, chunk: WrittenChunk) {
        let chunk = Arc::new(chunk);
        // The thread with the earliest chunk waits in no lane, so that it lets all others go on.
        for lane in 0..self.lanes.len() {
            self.wrote_in(lane, index, &chunk);
        }
    }

    fn wrote_in(&self, number: usize, index: usize, chunk: &Arc<WrittenChunk>) {
        let lane = &self.lanes[number];
        let mut state = lane.state.lock().unpoisoned();
        state.waiting_bytes += chunk.n_bytes();
        state.waiting.insert(index, Arc::clone(chunk));
        if state.is_busy || index != state.next {
            while state.waiting_bytes > MAX_WAITING_BYTES && index > state.next {
                state = lane.news.wait(state).unpoisoned();
            }
            return;
        }
        state.is_busy = true;
        while let Some(chunk) = {
            let next = state.next;
            state.waiting.remove(&next)
        } {
            drop(state);
            for rows in chunk.rows.iter().filter(|rows| rows.file % self.lanes.len() == number) {
                let mut file = self.files[rows.file].lock().unpoisoned();
                file.update(rows.offset, &chunk.buffers[rows.buffer]);
            }
            state = lane.state.lock().unpoisoned();
            state.next = state.next.saturating_add(1);
            state.waiting_bytes -= chunk.n_bytes();
            lane.news.notify_all();
        }
        state.is_busy = false;
    }

    /// Lets waiting threads go: the run has failed, and the next chunk may never come.
    pub(super) fn give_up(&self) {
        for lane in &self.lanes {
            lane.state.lock().unpoisoned().next = usize::MAX;
            lane.news.notify_all();
        }
    }

    /// Returns the checksums of complete files in lower-case hexadecimal, given their sizes in bytes.
    pub(super) fn finish(self, sizes: impl Iterator<Item = u64>) -> Vec<String> {
        let files = self.files.into_iter().map(|file| file.into_inner().unpoisoned());
        let finish = |(mut file, size): (FileHash, u64)| {
            file.pad(size);
            hex(&file.hash.finalize())
        };
        files.zip(sizes).map(finish).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FilePlan, LayoutOptions, Metadata};

    fn planned(header: &[u8]) -> PlannedFile {
        let plan = FilePlan::new(&Metadata::new(), &[], &LayoutOptions::default()).unwrap();
        let plan = FilePlan { header: header.to_vec(), ..plan };
        PlannedFile { path: "x".into(), tensors: 0..0, plan, id_offset: None }
    }

    #[test]
    fn chunks_of_many_threads_are_hashed_in_the_order_of_the_file() {
        let files: Vec<PlannedFile> = (0..6_u8).map(|file| planned(&[file; 3])).collect();
        let checksums = Checksums::new(files.iter());
        // File `f` has the bytes of buffer `f % 2` of each chunk, with one zero before each.
        let next = Mutex::new(0..200_usize);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(index) = { next.lock().unwrap().next() } {
                        let buffers = vec![vec![index as u8; 5], vec![!index as u8; 5]];
                        let rows = |file| HashedRows { file, buffer: file % 2, offset: 4 + 6 * index as u64 };
                        let rows = (0..files.len()).map(rows).collect();
                        checksums.wrote(index, WrittenChunk { buffers, rows });
                    }
                });
            }
        });
        let n_bytes = 3 + 200 * 6 + 7;
        let found = checksums.finish(std::iter::repeat_n(n_bytes, files.len()));
        for (file, sum) in found.iter().enumerate() {
            let mut bytes = vec![file as u8; 3];
            for index in 0..200_usize {
                let byte = if file % 2 == 0 { index as u8 } else { !index as u8 };
                bytes.push(0);
                bytes.extend([byte; 5]);
            }
            bytes.extend([0; 7]);
            assert_eq!(*sum, hex(&Sha256::digest(&bytes)));
        }
    }
}
