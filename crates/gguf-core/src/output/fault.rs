//! Points at which tests cut a commit short. In other builds a point does nothing.

use std::io;

/// A point between two steps of a commit.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, clippy::inline_always, reason = "tests fail here")]
#[inline(always)]
pub(super) fn point() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(super) use armed::{Fault, arm, point, reached};

#[cfg(test)]
mod armed {
    use super::io;
    use std::cell::Cell;

    /// Fault at a point.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in super::super) enum Fault {
        /// The process dies, as by `kill -9`.
        Kill,
        /// The step fails.
        Error,
    }

    thread_local! {
        static ARMED: Cell<Option<(usize, Fault)>> = const { Cell::new(None) };
        static REACHED: Cell<usize> = const { Cell::new(0) };
    }

    /// Arms the point with this number, counted from 0, for this thread, and restarts the count.
    pub(in super::super) fn arm(fault: Option<(usize, Fault)>) {
        ARMED.set(fault);
        REACHED.set(0);
    }

    /// Returns the number of points passed since.
    pub(in super::super) fn reached() -> usize {
        REACHED.get()
    }

    pub(in super::super) fn point() -> io::Result<()> {
        let number = REACHED.get();
        REACHED.set(number + 1);
        match ARMED.get() {
            Some((at, Fault::Kill)) if at == number => {
                #[cfg(unix)]
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                std::process::abort();
            }
            Some((at, Fault::Error)) if at == number => Err(io::Error::other("fault of a test")),
            _ => Ok(()),
        }
    }
}
