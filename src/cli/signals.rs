//! Signals that end a run: from the user, a service manager or system limits. Whichever signal it was, a stopped run
//! cleans up and ends with the exit code of an interrupt.

#[cfg(unix)]
pub(crate) use unix::{by, install, is_interrupted};
#[cfg(not(unix))]
pub(crate) use windows::{by, install, is_interrupted};

#[cfg(unix)]
mod unix {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, LazyLock};

    use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGXCPU, SIGXFSZ};
    use signal_hook::flag;

    /// Signals that stop a run, with an explanation for those that nobody sends by hand.
    const STOPPING: [(i32, Option<&str>); 6] = [
        (SIGINT, None),
        (SIGTERM, None),
        (SIGHUP, None),
        (SIGQUIT, Some("SIGQUIT")),
        (SIGUSR1, Some("SIGUSR1")),
        (SIGXCPU, Some("SIGXCPU: the processor time that this process may use is spent (`ulimit -t`)")),
    ];

    /// Index of the received signal in `STOPPING`, from 1; 0 if there was none.
    static STOPPED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

    pub(crate) fn install() {
        for (at, (signal, _)) in STOPPING.iter().enumerate() {
            let _ = flag::register_usize(*signal, STOPPED.clone(), at + 1);
        }
        // Beyond a file size limit a write must fail, and not end the program. This is a handler rather than `SIG_IGN`,
        // which child processes would inherit.
        let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    }

    /// Returns true once a signal has been received.
    pub(crate) fn is_interrupted() -> bool {
        STOPPED.load(Ordering::Relaxed) > 0
    }

    /// Returns what interrupted the run, unless it is obvious.
    pub(crate) fn by() -> Option<&'static str> {
        STOPPED.load(Ordering::Relaxed).checked_sub(1).and_then(|at| STOPPING.get(at)?.1)
    }
}

#[cfg(not(unix))]
mod windows {
    use std::sync::atomic::{AtomicBool, Ordering};

    static STOPPED: AtomicBool = AtomicBool::new(false);

    pub(crate) fn install() {
        let _ = ctrlc::set_handler(|| STOPPED.store(true, Ordering::Relaxed));
    }

    pub(crate) fn is_interrupted() -> bool {
        STOPPED.load(Ordering::Relaxed)
    }

    pub(crate) fn by() -> Option<&'static str> {
        None
    }
}
