//! Advice that accompanies an error.

/// An error with advice for its reader. The programs print each hint on its own line, after the message.
pub trait Hint: std::error::Error {
    /// Steps to try, most promising first; one sentence each, lower case, no full stop.
    fn hints(&self) -> Vec<String> {
        Vec::new()
    }
}
