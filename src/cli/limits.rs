//! Limits that a process may raise by itself.

/// Raises the limit of open files to the system's maximum. The default of shells and service managers is low only for
/// the sake of programs that ask for all descriptors one by one.
pub(super) fn raise() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            // If this is refused, the limit stays as it is: writers adapt to the limit they find.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        }
    }
}
