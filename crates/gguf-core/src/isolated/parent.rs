//! The parent's side: a thread for each pipe, a clock, and the end of the child.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::reply::{framed, parse};
use super::{Bounds, GRACE, IsolatedError, Isolation, STDERR_BYTES, TICK, check_wait, end_of, pipes};
use crate::sync::Unpoisoned;

const PIECE_BYTES: usize = 1 << 16;
/// Number of pieces that wait to be processed; a child that sends more is blocked.
const MOST_PIECES: usize = 4;
/// Signal of a process that has used up its processor time.
const SIGXCPU: i32 = 24;
/// Exit code of a process that has used up its stack on Windows (`STATUS_STACK_OVERFLOW`).
const STACK_OVERFLOW: i32 = 0xC000_00FD_u32.cast_signed();
/// Stack of a thread that moves bytes.
const STACK_BYTES: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct RunningChild {
    child: Child,
    requests: SyncSender<Vec<u8>>,
    pieces: Receiver<Vec<u8>>,
    /// Beginning of the child's standard error.
    stderr_head: Arc<Mutex<Vec<u8>>>,
}

/// Kills the child and waits for its end, whatever became of the request. The threads end with the pipes.
impl Drop for RunningChild {
    fn drop(&mut self) {
        // Kills the whole process group, though our own child starts nothing. Skipped if the child is gone: its number
        // may be reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            #[cfg(unix)]
            {
                let group = rustix::process::Pid::from_child(&self.child);
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl RunningChild {
    pub(super) fn start(isolation: &Isolation, job: &str, bounds: &Bounds) -> Result<Self, IsolatedError> {
        let failed = |error: std::io::Error| isolation.not_started(&error);
        let mut command = isolation.command(job, bounds);
        // In a process group of its own: signals of the terminal go to the parent, which ends the child.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        #[cfg(windows)]
        {
            const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
            std::os::windows::process::CommandExt::creation_flags(&mut command, CREATE_NEW_PROCESS_GROUP);
        }
        let mut child = command.spawn().map_err(failed)?;
        let pipes = pipes(&mut child);
        let stderr_head = Arc::new(Mutex::new(Vec::new()));
        let (requests, to_send) = sync_channel(2);
        let (found, pieces) = sync_channel(MOST_PIECES);
        // Dropped on every way out of here, which ends the child.
        let running = Self { child, requests, pieces, stderr_head: Arc::clone(&stderr_head) };
        let (input, output, errors) = pipes.map_err(failed)?;
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
            thread.spawn(work).map(drop).map_err(failed)
        };
        start("isolated-in", Box::new(move || send(input, &to_send)))?;
        start("isolated-out", Box::new(move || receive(output, &found)))?;
        start("isolated-err", Box::new(move || listen(errors, &stderr_head)))?;
        Ok(running)
    }

    /// Sends a request and waits for its reply.
    pub(super) fn exchange(
        &mut self,
        request: &[u8],
        bounds: &Bounds,
        is_cancelled: fn() -> bool,
    ) -> Result<Vec<u8>, IsolatedError> {
        let begun = Instant::now();
        match self.requests.try_send(framed(request)?) {
            // The child answers without reading.
            Err(TrySendError::Full(_)) => return Err(IsolatedError::Garbage),
            // A child that reads no more has ended: its output tells how.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        }
        let mut reply = Vec::new();
        loop {
            check_wait(begun, bounds, is_cancelled)?;
            match self.pieces.recv_timeout(TICK.min(bounds.wall)) {
                Ok(piece) => reply.extend_from_slice(&piece),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(self.death(bounds)),
            }
            if let Some(answer) = parse(&mut reply, bounds)? {
                return answer;
            }
        }
    }

    /// Returns the reason for which a child closed its output.
    fn death(&mut self, bounds: &Bounds) -> IsolatedError {
        let Some(status) = end_of(&mut self.child) else { return IsolatedError::Garbage };
        // Its last message may still be on its way: the thread that reads it drops its reference at the end.
        let begun = Instant::now();
        while Arc::strong_count(&self.stderr_head) > 1 && begun.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(2));
        }
        let stderr_head = self.stderr_head.lock().unpoisoned();
        cause(status, &String::from_utf8_lossy(&stderr_head), bounds)
    }
}

fn send(mut input: ChildStdin, requests: &Receiver<Vec<u8>>) {
    while let Ok(request) = requests.recv() {
        if input.write_all(&request).and_then(|()| input.flush()).is_err() {
            return;
        }
    }
}

fn receive(mut output: impl Read, pieces: &SyncSender<Vec<u8>>) {
    let mut buffer = vec![0; PIECE_BYTES];
    while let Ok(n) = output.read(&mut buffer) {
        let piece = buffer.get(..n).unwrap_or_default().to_vec();
        if n == 0 || pieces.send(piece).is_err() {
            return;
        }
    }
}

/// Reads standard error: keeps the beginning and discards the rest.
fn listen(mut errors: impl Read, stderr_head: &Mutex<Vec<u8>>) {
    let mut buffer = [0; STDERR_BYTES];
    while let Ok(n @ 1..) = errors.read(&mut buffer) {
        let mut stderr_head = stderr_head.lock().unpoisoned();
        let space = STDERR_BYTES.saturating_sub(stderr_head.len());
        stderr_head.extend_from_slice(buffer.get(..n.min(space)).unwrap_or_default());
    }
}

/// Derives the error from a child's exit status and from the runtime's message before it.
fn cause(status: ExitStatus, stderr_head: &str, bounds: &Bounds) -> IsolatedError {
    let (code, signal) = (status.code().unwrap_or(-1), signal_of(status));
    if signal == Some(SIGXCPU) {
        IsolatedError::Time { seconds: bounds.cpu_seconds }
    } else if stderr_head.contains("memory allocation of") {
        IsolatedError::Memory { limit_bytes: bounds.memory_bytes }
    } else if code == STACK_OVERFLOW || stderr_head.contains("overflowed its stack") {
        IsolatedError::Stack { signal: signal.unwrap_or(code) }
    } else {
        signal.map_or(IsolatedError::Ended { code }, |signal| IsolatedError::Signal { signal })
    }
}

/// Returns the signal that ended a process, on systems that have signals.
fn signal_of(status: ExitStatus) -> Option<i32> {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    {
        let _ = status;
        None
    }
}
