//! Write-back of files while they are being written, so that the sync at the end has little left to do.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};

use super::OutputFile;
use crate::sync::Unpoisoned;

/// Bytes of a file that accumulate before they are synced.
const STEP_BYTES: u64 = 64 << 20;

/// A thread that syncs files while other threads write them. Asking the kernel to begin write-back and to drop the
/// pages (`POSIX_FADV_DONTNEED`) would need no thread. But then the finished file is in no cache, and a virtual machine
/// may return the pages to its host and has to fetch others.
pub struct WriteBack<'o> {
    outputs: &'o [OutputFile],
    state: Mutex<WriteBackState>,
    news: Condvar,
}

struct WriteBackState {
    /// Bytes of each file that were written and not yet synced.
    pending: Vec<u64>,
    is_over: bool,
    failed: Option<io::Error>,
}

/// Ends the thread, even if the work panics.
struct EndOnDrop<'w, 'o>(&'w WriteBack<'o>);

impl Drop for EndOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.news.notify_all();
    }
}

impl<'o> WriteBack<'o> {
    /// Runs work that writes these files, with the thread next to it if `is_synced`. A disk error that no call of
    /// [`WriteBack::wrote`] has returned is returned with the work's result.
    pub fn during<T>(
        outputs: &'o [OutputFile],
        is_synced: bool,
        work: impl FnOnce(&Self) -> T,
    ) -> (T, io::Result<()>) {
        let pending = vec![0; outputs.len()];
        let state = Mutex::new(WriteBackState { pending, is_over: false, failed: None });
        let this = Self { outputs, state, news: Condvar::new() };
        let done = std::thread::scope(|scope| {
            let _end_on_drop = EndOnDrop(&this);
            if is_synced {
                // If the thread cannot be started, the sync at the end does all.
                let _ = std::thread::Builder::new()
                    .name("write-back".to_owned())
                    .spawn_scoped(scope, || this.run());
            }
            work(&this)
        });
        let failed = this.state.into_inner().unpoisoned().failed;
        (done, failed.map_or(Ok(()), Err))
    }

    /// Records that bytes of a file were written.
    ///
    /// # Errors
    /// The disk failed since the last call. The kernel reports that only once, so no later sync would.
    pub fn wrote(&self, file: usize, n_bytes: u64) -> io::Result<()> {
        let mut state = self.state();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        if let Some(pending) = state.pending.get_mut(file) {
            *pending = pending.saturating_add(n_bytes);
            if *pending >= STEP_BYTES {
                self.news.notify_one();
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, WriteBackState> {
        self.state.lock().unpoisoned()
    }

    fn run(&self) {
        let mut state = self.state();
        while !state.is_over && state.failed.is_none() {
            let ready = state.pending.iter().position(|&pending| pending >= STEP_BYTES);
            let Some(file) = ready else {
                state = self.news.wait(state).unpoisoned();
                continue;
            };
            state.pending[file] = 0;
            drop(state);
            let synced = self.outputs[file].sync_data();
            state = self.state();
            state.failed = synced.err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &std::path::Path, n: usize) -> Vec<OutputFile> {
        (0..n).map(|at| OutputFile::create(&dir.join(format!("{at}.bin"))).unwrap()).collect()
    }

    #[test]
    fn files_are_whole_with_and_without_the_thread() {
        for is_synced in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let outputs = files(dir.path(), 2);
            let block = vec![7u8; 4 << 20];
            let ((), synced) = WriteBack::during(&outputs, is_synced, |write_back| {
                for at in 0..40u64 {
                    let file = usize::from(at % 2 == 1);
                    outputs[file].write_at((at / 2) * (4 << 20), &block).unwrap();
                    write_back.wrote(file, 4 << 20).unwrap();
                }
            });
            synced.unwrap();
            OutputFile::commit_all(outputs, false).unwrap();
            for at in 0..2 {
                let found = fs_err::read(dir.path().join(format!("{at}.bin"))).unwrap();
                assert!(found.len() == 20 * (4 << 20) && found.iter().all(|&byte| byte == 7));
            }
        }
    }

    #[test]
    fn a_panic_of_the_work_ends_the_thread() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = files(dir.path(), 1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            WriteBack::during(&outputs, true, |_| panic!("of the work"))
        }));
        assert!(caught.is_err());
    }

    #[test]
    fn an_error_of_the_disk_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = files(dir.path(), 1);
        let fail = |write_back: &WriteBack<'_>| {
            write_back.state().failed = Some(io::Error::other("the disk"));
        };
        let (told, left) = WriteBack::during(&outputs, true, |write_back| {
            fail(write_back);
            write_back.wrote(0, 1)
        });
        assert_eq!(told.unwrap_err().to_string(), "the disk");
        left.unwrap();
        let ((), left) = WriteBack::during(&outputs, true, |write_back| fail(write_back));
        assert_eq!(left.unwrap_err().to_string(), "the disk");
    }
}
