//! Limits that a program may raise by itself.

/// Lets this process have as many files open as the system would allow it: what shells and service managers set is a habit
/// of programs that ask for all descriptors one by one.
pub(super) fn raise() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            // Refused, it stays as it is: writers go by what they find.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        }
    }
}
