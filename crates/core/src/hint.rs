//! Advice that goes with an error: how to get out of it.

/// An error that knows what its reader can try. The programs print each hint on its own line, after the message.
pub trait Hint: std::error::Error {
    /// What to try, most promising first; one sentence each, lower case, no full stop.
    fn hints(&self) -> Vec<String> {
        Vec::new()
    }
}
