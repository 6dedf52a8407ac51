//! Files that are fetched in pieces while they are read. Announced ranges are fetched in advance, in order, over
//! several connections and within a memory budget; other ranges are fetched on demand.
//!
//! A piece is inside one announced range, so that nothing is fetched twice because two tensors share a block. If a
//! tensor is read in another order than it is stored (transposed, say), its pieces are requested repeatedly. A request
//! for an evicted piece raises the budget by the size of the piece. This ends when everything that is read together
//! fits.

use crate::Result;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use std::{fmt, io};

use memmap2::MmapMut;

use crate::client::Client;
use crate::error::RemoteError;
use crate::listing::RemoteEntry;
use crate::sums::PieceDigest;
use gguf_core::ranged::RangedFile;
use gguf_core::sync::Unpoisoned;

/// Minimum size of a fetch without an announcement, in bytes.
const BLOCK_BYTES: u64 = 1 << 20;
const N_CONNECTIONS: usize = 8;
/// Interval at which a waiting reader checks for cancellation.
const LOOK: Duration = Duration::from_millis(100);

/// Index of a file, and a byte offset in it.
type PieceKey = (usize, u64);

/// A piece of a file.
struct Piece {
    n_bytes: u64,
    state: PieceState,
    /// Number of bytes that were read and released.
    released: u64,
    /// Clock value of the last request; 0 if never requested.
    used: u64,
}

enum PieceState {
    /// Not in memory.
    Absent,
    /// Being fetched.
    Coming,
    Here(Arc<MmapMut>),
}

#[derive(Default)]
struct FetchState {
    pieces: BTreeMap<PieceKey, Piece>,
    /// Announced pieces whose fetch has not started, in order.
    ahead: VecDeque<PieceKey>,
    /// Pieces that a reader waits for.
    wanted: VecDeque<PieceKey>,
    /// Pieces that were evicted before they were released.
    evicted: HashSet<PieceKey>,
    /// Number of bytes that are in memory or being fetched.
    held: u64,
    /// Limit of `held`.
    budget: u64,
    /// Maximum size of a piece.
    piece_bytes: u64,
    /// First failure; all readers receive it.
    failure: Option<Arc<RemoteError>>,
    /// Number of requests so far.
    clock: u64,
    is_over: bool,
}

/// State shared by readers and connections.
struct FetcherState {
    client: Arc<Client>,
    files: Vec<RemoteEntry>,
    sums: Vec<Mutex<PieceDigest<MmapMut>>>,
    state: Mutex<FetchState>,
    /// Signals that there is something to fetch, or that the fetcher has ended.
    work: Condvar,
    /// Signals that a piece has arrived.
    came: Condvar,
}

impl FetcherState {
    fn state(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unpoisoned()
    }

    /// Fetches a piece. It is added to the checksum of its file before readers get it; the last piece completes the
    /// check.
    fn fetch(&self, (file, offset): PieceKey, n_bytes: u64, max_waiting: u64) -> Result<Arc<MmapMut>> {
        // Separate pages: an allocator that gets back many blocks of this size keeps them, several times the budget.
        let mut bytes = MmapMut::map_anon(n_bytes as usize)?;
        let entry = &self.files[file];
        self.client.read(&entry.target, offset, &mut bytes)?;
        let bytes = Arc::new(bytes);
        self.sums[file].lock().unpoisoned().add(entry, offset, &bytes, max_waiting)?;
        Ok(bytes)
    }
}

/// Fetcher of pieces of files; it ends its connections when dropped.
pub(super) struct Fetcher(Arc<FetcherState>);

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("files", &self.0.files.len()).finish_non_exhaustive()
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.work.notify_all();
    }
}

impl Fetcher {
    /// Creates a fetcher that requests at most `piece_bytes` at once and holds at most about `budget` bytes in advance.
    pub(super) fn new(client: Arc<Client>, files: Vec<RemoteEntry>, budget: u64, piece_bytes: u64) -> Self {
        let state = Mutex::new(FetchState { budget, piece_bytes, ..FetchState::default() });
        let sums = files.iter().map(|file| Mutex::new(PieceDigest::new(file))).collect();
        let shared =
            Arc::new(FetcherState { client, files, sums, state, work: Condvar::new(), came: Condvar::new() });
        for _ in 0..N_CONNECTIONS {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || serve(&shared));
        }
        Self(shared)
    }

    /// Announces a range of a file.
    fn expect(&self, file: usize, offset: u64, n_bytes: u64) {
        let mut state = self.0.state();
        let (mut at, end) = (offset, offset.saturating_add(n_bytes));
        while at < end {
            // A released piece that is announced again is fetched when it is read.
            if let Some((start, piece)) = state.covering(file, at) {
                at = start + piece.n_bytes;
                continue;
            }
            let end = state.next_start(file, at).unwrap_or(u64::MAX).min(end);
            at = match state.extend_last(file, at, end) {
                Some(stop) => stop,
                None => {
                    let stop = end.min(at + state.piece_bytes);
                    state.pieces.insert((file, at), Piece::new(stop - at));
                    state.ahead.push_back((file, at));
                    stop
                }
            };
        }
        drop(state);
        self.0.work.notify_all();
    }

    /// Copies a range of a file, and waits for it if necessary.
    fn read(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), Arc<RemoteError>> {
        let n_bytes = self.0.files[file].n_bytes;
        let end = offset + out.len() as u64;
        assert!(end <= n_bytes, "bytes {offset}..{end} are outside a file of {n_bytes}");
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let (start, bytes) = self.piece(file, at, end)?;
            let from = &bytes[(at - start) as usize..];
            let n = from.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&from[..n]);
            done += n;
        }
        Ok(())
    }

    /// Returns the piece that contains the byte at `at`, and its start. `end` is the end of the read.
    fn piece(&self, file: usize, at: u64, end: u64) -> Result<(u64, Arc<MmapMut>), Arc<RemoteError>> {
        let mut state = self.0.state();
        let start = match state.covering(file, at) {
            Some((start, _)) => start,
            None => {
                let least = BLOCK_BYTES.min(state.piece_bytes);
                let block = at / least * least;
                let start = state.last_end(file, at).unwrap_or(0).max(block);
                let most = start.saturating_add(state.piece_bytes).max(at + 1);
                let stop = end.max(block + least).min(most).min(self.0.files[file].n_bytes);
                let stop = state.next_start(file, at).unwrap_or(u64::MAX).min(stop);
                state.pieces.insert((file, start), Piece::new(stop - start));
                start
            }
        };
        let key = (file, start);
        loop {
            state.clock += 1;
            let clock = state.clock;
            if let Some(failure) = &state.failure {
                return Err(Arc::clone(failure));
            }
            let Some(piece) = state.pieces.get_mut(&key) else {
                return Err(Arc::new(RemoteError::Cancelled));
            };
            piece.used = clock;
            match &piece.state {
                PieceState::Here(bytes) => return Ok((start, Arc::clone(bytes))),
                PieceState::Coming => {}
                PieceState::Absent => {
                    if !state.wanted.contains(&key) {
                        state.wanted.push_back(key);
                    }
                    self.0.work.notify_one();
                }
            }
            if self.0.client.is_cancelled() {
                return Err(Arc::new(RemoteError::Cancelled));
            }
            state = self.0.came.wait_timeout(state, LOOK).unpoisoned().0;
        }
    }

    /// Releases a range; pieces that were released in full are freed.
    fn release(&self, file: usize, offset: u64, n_bytes: u64) {
        let mut state = self.0.state();
        let end = offset.saturating_add(n_bytes);
        let mut freed = 0;
        let first = state.covering(file, offset).map_or(offset, |(start, _)| start);
        for ((_, start), piece) in state.pieces.range_mut((file, first)..(file, end.max(first))) {
            let inside = end.min(start + piece.n_bytes).saturating_sub(offset.max(*start));
            piece.released += inside;
            if piece.released >= piece.n_bytes && matches!(piece.state, PieceState::Here(_)) {
                piece.state = PieceState::Absent;
                piece.released = 0;
                freed += piece.n_bytes;
            }
        }
        state.held -= freed;
        drop(state);
        if freed > 0 {
            self.0.work.notify_all();
        }
    }
}

impl Piece {
    fn new(n_bytes: u64) -> Self {
        Self { n_bytes, state: PieceState::Absent, released: 0, used: 0 }
    }
}

impl FetchState {
    /// Returns the piece that contains a byte, and its start.
    fn covering(&self, file: usize, at: u64) -> Option<(u64, &Piece)> {
        let (&(_, start), piece) = self.pieces.range((file, 0)..=(file, at)).next_back()?;
        (at < start + piece.n_bytes).then_some((start, piece))
    }

    /// Extends the last announced piece to a range that starts at its end, so that small tensors are fetched together.
    /// Returns its new end.
    fn extend_last(&mut self, file: usize, at: u64, end: u64) -> Option<u64> {
        let key = *self.ahead.back().filter(|key| key.0 == file)?;
        let piece = self.pieces.get_mut(&key)?;
        let space = self.piece_bytes.saturating_sub(piece.n_bytes);
        let is_free = matches!(piece.state, PieceState::Absent) && piece.used == 0;
        if !is_free || key.1 + piece.n_bytes != at || space == 0 {
            return None;
        }
        let n_bytes = space.min(end - at);
        piece.n_bytes += n_bytes;
        Some(at + n_bytes)
    }

    /// Returns the start of the first piece after a byte.
    fn next_start(&self, file: usize, at: u64) -> Option<u64> {
        self.pieces.range((file, at + 1)..=(file, u64::MAX)).next().map(|((_, start), _)| *start)
    }

    /// Returns the end of the last piece before a byte.
    fn last_end(&self, file: usize, at: u64) -> Option<u64> {
        self.pieces.range((file, 0)..(file, at)).next_back().map(|((_, start), piece)| start + piece.n_bytes)
    }

    /// Returns the next piece to fetch: one that a reader waits for, else an announced one within the budget.
    fn next(&mut self) -> Option<PieceKey> {
        while let Some(key) = self.wanted.pop_front() {
            let Some(piece) = self.pieces.get(&key) else { continue };
            if !matches!(piece.state, PieceState::Absent) {
                continue;
            }
            let n_bytes = piece.n_bytes;
            if self.evicted.remove(&key) {
                self.budget += n_bytes;
            }
            self.evict_for(n_bytes);
            return Some(key);
        }
        while let Some(&key) = self.ahead.front() {
            let piece = self.pieces.get(&key)?;
            // A piece that was requested before its turn needs no second fetch.
            if matches!(piece.state, PieceState::Absent) && piece.used == 0 {
                if self.held > 0 && self.held + piece.n_bytes > self.budget {
                    return None;
                }
                self.ahead.pop_front();
                return Some(key);
            }
            self.ahead.pop_front();
        }
        None
    }

    /// Evicts the least recently used pieces until more bytes fit. Unused pieces are kept, because they are still
    /// needed.
    fn evict_for(&mut self, n_bytes: u64) {
        while self.held + n_bytes > self.budget {
            let is_droppable = |piece: &Piece| piece.used > 0 && matches!(piece.state, PieceState::Here(_));
            let oldest =
                self.pieces.iter_mut().filter(|(_, piece)| is_droppable(piece)).min_by_key(|(_, p)| p.used);
            let Some((&key, piece)) = oldest else { return };
            piece.state = PieceState::Absent;
            piece.released = 0;
            self.held -= piece.n_bytes;
            self.evicted.insert(key);
        }
    }
}

/// Runs one connection, which fetches one piece after another.
fn serve(shared: &FetcherState) {
    let mut state = shared.state();
    loop {
        if state.is_over || state.failure.is_some() {
            return;
        }
        let Some(key) = state.next() else {
            state = shared.work.wait(state).unpoisoned();
            continue;
        };
        let Some(piece) = state.pieces.get_mut(&key) else { continue };
        piece.state = PieceState::Coming;
        let n_bytes = piece.n_bytes;
        state.held += n_bytes;
        let max_waiting = state.budget / 4;
        drop(state);

        let fetched = shared.fetch(key, n_bytes, max_waiting);

        state = shared.state();
        match fetched {
            Ok(bytes) => {
                if let Some(piece) = state.pieces.get_mut(&key) {
                    piece.state = PieceState::Here(bytes);
                }
            }
            Err(error) => {
                state.failure.get_or_insert_with(|| Arc::new(error));
                shared.work.notify_all();
            }
        }
        shared.came.notify_all();
    }
}

#[derive(Debug)]
pub(super) struct FetchedFile {
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) number: usize,
}

impl RangedFile for FetchedFile {
    fn n_bytes(&self) -> u64 {
        self.fetcher.0.files[self.number].n_bytes
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.fetcher.read(self.number, offset, out).map_err(|error| match *error {
            RemoteError::Cancelled => RemoteError::Cancelled.into(),
            _ => io::Error::other(FetchFailure(error)),
        })
    }

    fn expect(&self, offset: u64, n_bytes: u64) {
        self.fetcher.expect(self.number, offset, n_bytes);
    }

    fn release(&self, offset: u64, n_bytes: u64) {
        self.fetcher.release(self.number, offset, n_bytes);
    }
}

/// A failure that is reported to all waiting readers.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct FetchFailure(Arc<RemoteError>);

impl gguf_core::Hint for FetchFailure {
    fn hints(&self) -> Vec<String> {
        self.0.hints()
    }
}
