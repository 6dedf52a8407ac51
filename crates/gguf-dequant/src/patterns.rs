//! Module name patterns of configurations, compiled with bounded memory.
//!
//! The regex engine is linear in the text, but a pattern of a few bytes may compile to megabytes, and an untrusted
//! file may have thousands of them. So all patterns of a configuration key share a budget. Plain names, of which
//! honest files have tens of thousands, are free.

use regex::{Regex, RegexBuilder};

/// Maximum total size of the compiled patterns of one key, in bytes.
pub(super) const MAX_BYTES: usize = 32 << 20;
/// Size limits, in bytes, that are tried for a pattern; its size is only known to the next power of four.
const SIZES: [usize; 5] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20];
/// Maximum bytes of the lazy automaton that a search caches.
const CACHE_BYTES: usize = 64 << 10;

/// A pattern that is matched at the start of a module's name, as in Python's `re.match`.
#[derive(Debug)]
pub(super) enum ModulePattern {
    /// A plain name; its dots match any character, as in a regex.
    Name(String),
    Regex(Regex),
}

/// Reasons why a pattern cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModulePatternError {
    Syntax,
    /// The pattern alone, or with the earlier patterns of the key, is too large.
    Budget,
}

impl ModulePatternError {
    /// Returns the end of the message `has the pattern .., which ..`.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Syntax => "is not understood",
            Self::Budget => "takes, with those before it, more than 32 MiB when it is compiled",
        }
    }
}

/// Remaining budget for the patterns of a key.
#[derive(Debug)]
pub(super) struct Patterns {
    left_bytes: usize,
}

impl Default for Patterns {
    fn default() -> Self {
        Self { left_bytes: MAX_BYTES }
    }
}

impl Patterns {
    pub(super) fn compile(&mut self, pattern: &str) -> Result<ModulePattern, ModulePatternError> {
        if pattern.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
            return Ok(ModulePattern::Name(pattern.to_owned()));
        }
        for size in SIZES {
            if size > self.left_bytes {
                return Err(ModulePatternError::Budget);
            }
            let built = RegexBuilder::new(&format!("^(?:{pattern})"))
                .size_limit(size)
                .dfa_size_limit(CACHE_BYTES)
                .build();
            match built {
                Ok(regex) => {
                    self.left_bytes -= size;
                    return Ok(ModulePattern::Regex(regex));
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(_) => return Err(ModulePatternError::Syntax),
            }
        }
        Err(ModulePatternError::Budget)
    }
}

impl ModulePattern {
    /// Returns true if the pattern matches at the start of a module's name.
    pub(super) fn is_match(&self, module: &str) -> bool {
        match self {
            Self::Regex(regex) => regex.is_match(module),
            Self::Name(name) => {
                let mut module = module.chars();
                name.chars().all(|own| module.next().is_some_and(|c| c == own || (own == '.' && c != '\n')))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_they_mean_as_regexes() {
        let texts = ["", "a", "a.b", "axb", "a.b.c", "a\nb", "aéb", "xa.b", "a.B", "model.layers.0.q_proj"];
        for pattern in ["", "a", "a.b", "a.b.", ".", "a-b", "model.layers.0.q"] {
            let own = Patterns::default().compile(pattern).unwrap();
            assert!(matches!(own, ModulePattern::Name(_)));
            let regex = Regex::new(&format!("^(?:{pattern})")).unwrap();
            for text in texts {
                assert_eq!(own.is_match(text), regex.is_match(text), "{pattern} {text:?}");
            }
        }
    }

    #[test]
    fn many_or_large_ones_are_refused() {
        let mut patterns = Patterns::default();
        assert!(patterns.compile(r"model\.layers\.(0|1)\..*").unwrap().is_match("model.layers.1.x"));
        assert_eq!(patterns.compile("(").unwrap_err(), ModulePatternError::Syntax);
        assert_eq!(patterns.compile("((x{1000}){1000}){1000}").unwrap_err(), ModulePatternError::Budget);
        let large = |at: usize| format!("(?:x{{{}}}){{9}}", 900 + at);
        let n = (0..10_000).take_while(|&at| patterns.compile(&large(at)).is_ok()).count();
        assert!((15..5000).contains(&n), "{n}");
    }
}
