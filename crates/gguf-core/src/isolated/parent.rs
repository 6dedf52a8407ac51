//! The parent's side: pipes that never block, a clock, and the end of the child.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::reply::{framed, parse};
use super::{Bounds, IsolatedError, Isolation, STDERR_BYTES, TICK, check_wait, end_of, pipes};

#[derive(Debug)]
pub(super) struct RunningChild {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    errors: ChildStderr,
    /// Beginning of the child's standard error.
    stderr_head: Vec<u8>,
    /// True while standard error is open; polling a closed one would return immediately every time.
    is_stderr_open: bool,
}

/// Kills the child and waits for its end, whatever became of the request.
impl Drop for RunningChild {
    fn drop(&mut self) {
        // Kills the whole process group, though our own child starts nothing. Skipped if the child is gone: its number
        // may be reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            let group = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl RunningChild {
    pub(super) fn start(isolation: &Isolation, job: &str, bounds: &Bounds) -> Result<Self, IsolatedError> {
        let failed = |error: io::Error| isolation.not_started(&error);
        // In a process group of its own: terminal signals go to the parent, which ends the child.
        let mut command = isolation.command(job, bounds);
        command.process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let (input, output, errors) = pipes(&mut child).map_err(|error| {
            let _ = child.kill();
            let _ = child.wait();
            failed(error)
        })?;
        let running = Self { child, input, output, errors, stderr_head: Vec::new(), is_stderr_open: true };
        let never_blocks = || -> io::Result<()> {
            for fd in [running.input.as_fd(), running.output.as_fd(), running.errors.as_fd()] {
                rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK)?;
            }
            Ok(())
        };
        never_blocks().map_err(failed)?;
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
        let request = framed(request)?;
        let (mut sent, mut reply) = (0, Vec::new());
        let mut buffer = vec![0; 1 << 16];
        loop {
            check_wait(begun, bounds, is_cancelled)?;
            self.wait(sent < request.len()).map_err(|_| IsolatedError::Garbage)?;
            self.listen();
            // A child that reads no more has ended, or answers at once: its output tells which.
            match self.input.write(&request[sent..]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => sent = request.len(),
                Err(_) => {}
            }
            match moved(self.output.read(&mut buffer)) {
                Some(0) => return Err(self.death(bounds)),
                Some(n) => reply.extend_from_slice(&buffer[..n]),
                None => continue,
            }
            if let Some(answer) = parse(&mut reply, bounds)? {
                return answer;
            }
        }
    }

    /// Waits until there is something to read or to write, or a tick has passed.
    fn wait(&self, has_more: bool) -> io::Result<()> {
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        let mut fds = vec![PollFd::from_borrowed_fd(self.output.as_fd(), PollFlags::IN)];
        if self.is_stderr_open {
            fds.push(PollFd::from_borrowed_fd(self.errors.as_fd(), PollFlags::IN));
        }
        if has_more {
            fds.push(PollFd::from_borrowed_fd(self.input.as_fd(), PollFlags::OUT));
        }
        match poll(&mut fds, Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads standard error: keeps the beginning and discards the rest.
    fn listen(&mut self) {
        let mut buffer = [0; STDERR_BYTES];
        for _ in 0..16 {
            match moved(self.errors.read(&mut buffer)) {
                None => return,
                Some(0) => {
                    self.is_stderr_open = false;
                    return;
                }
                Some(n) => {
                    let space = STDERR_BYTES - self.stderr_head.len();
                    self.stderr_head.extend_from_slice(&buffer[..n.min(space)]);
                }
            }
        }
    }

    /// Returns the reason for which a child closed its output.
    fn death(&mut self, bounds: &Bounds) -> IsolatedError {
        let Some(status) = end_of(&mut self.child) else { return IsolatedError::Garbage };
        self.listen();
        cause(status, &String::from_utf8_lossy(&self.stderr_head), bounds)
    }
}

/// Returns the number of bytes moved; `None` if none could be moved now.
fn moved(done: io::Result<usize>) -> Option<usize> {
    done.ok()
}

/// Derives the error from a child's exit status and from the runtime's message before it.
fn cause(status: ExitStatus, stderr_head: &str, bounds: &Bounds) -> IsolatedError {
    const SIGXCPU: i32 = 24;
    let Some(signal) = status.signal() else {
        return IsolatedError::Ended { code: status.code().unwrap_or(-1) };
    };
    if signal == SIGXCPU {
        IsolatedError::Time { seconds: bounds.cpu_seconds }
    } else if stderr_head.contains("memory allocation of") {
        IsolatedError::Memory { limit_bytes: bounds.memory_bytes }
    } else if stderr_head.contains("overflowed its stack") {
        IsolatedError::Stack { signal }
    } else {
        IsolatedError::Signal { signal }
    }
}
