//! What ends a run from outside: the user, a service manager, limits of the system. A run that is told to stop cleans up
//! and ends with the code of an interrupt, whichever signal it was.

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

    /// The signals that stop a run; what is said of those that nobody sends by hand.
    const STOPPING: [(i32, Option<&str>); 6] = [
        (SIGINT, None),
        (SIGTERM, None),
        (SIGHUP, None),
        (SIGQUIT, Some("SIGQUIT")),
        (SIGUSR1, Some("SIGUSR1")),
        (SIGXCPU, Some("SIGXCPU: the processor time that this process may use is spent (`ulimit -t`)")),
    ];

    /// Place of the signal in the table, from 1; 0: none has come.
    static STOPPED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

    /// Begins to listen.
    pub(crate) fn install() {
        for (at, (signal, _)) in STOPPING.iter().enumerate() {
            let _ = flag::register_usize(*signal, STOPPED.clone(), at + 1);
        }
        // Beyond a limit of file sizes a write is to fail, not to end the program. (A handler, not `SIG_IGN`: child
        // processes would inherit that.)
        let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    }

    /// True once a signal has come.
    pub(crate) fn is_interrupted() -> bool {
        STOPPED.load(Ordering::Relaxed) > 0
    }

    /// By what the run was interrupted, where that is not clear by itself.
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
