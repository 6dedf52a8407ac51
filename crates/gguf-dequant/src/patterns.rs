//! Module name patterns of configurations, compiled with bounded memory.
//!
//! The regex engine is linear in the text, but a pattern of a few bytes may compile to megabytes, and an untrusted
//! file may have thousands of them. So all patterns of a configuration key share a budget. Plain names, of which
//! honest files have tens of thousands, are free.

use std::borrow::Cow;

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
    /// A pattern with an assertion about what stands before or behind a place in it.
    Asserted(Box<Asserted>),
}

/// The parts of a pattern at an assertion outside of all groups: `(?=`, `(?!`, `(?<=` or `(?<!`. The regex engine has
/// none. Module names are short, so each place is tried.
#[derive(Debug)]
pub(super) struct Asserted {
    before: Regex,
    look: Regex,
    is_behind: bool,
    is_negative: bool,
    after: ModulePattern,
}

impl Asserted {
    fn is_match(&self, module: &str) -> bool {
        let mut places = (0..=module.len()).filter_map(|at| module.split_at_checked(at));
        places.any(|(before, after)| {
            self.before.is_match(before)
                && self.look.is_match(if self.is_behind { before } else { after }) != self.is_negative
                && self.after.is_match_of(after)
        })
    }
}

/// Starts of assertions: about what stands before the place, and whether it must not stand there.
const ASSERTIONS: [(&str, bool, bool); 4] =
    [("(?=", false, false), ("(?!", false, true), ("(?<=", true, false), ("(?<!", true, true)];

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
            Self::Syntax => "is not understood (assertions inside of groups, and repeated groups, are not)",
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
        match Split::of(pattern) {
            None => self.regex(&format!("^(?:{pattern})")).map(ModulePattern::Regex),
            Some(split) => {
                let Split { flags, before, asserted, is_behind, is_negative, after } = split;
                let ends = if is_behind { ("(?:", ")$") } else { ("^(?:", ")") };
                Ok(ModulePattern::Asserted(Box::new(Asserted {
                    before: self.regex(&format!("{flags}^(?:{before})$"))?,
                    look: self.regex(&format!("{flags}{}{asserted}{}", ends.0, ends.1))?,
                    is_behind,
                    is_negative,
                    after: self.compile(&format!("{flags}{after}"))?,
                })))
            }
        }
    }

    fn regex(&mut self, pattern: &str) -> Result<Regex, ModulePatternError> {
        for size in SIZES {
            if size > self.left_bytes {
                return Err(ModulePatternError::Budget);
            }
            let built = RegexBuilder::new(pattern).size_limit(size).dfa_size_limit(CACHE_BYTES).build();
            match built {
                Ok(regex) => {
                    self.left_bytes -= size;
                    return Ok(regex);
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(_) => return Err(ModulePatternError::Syntax),
            }
        }
        Err(ModulePatternError::Budget)
    }
}

/// A pattern at its first assertion.
struct Split<'p> {
    /// Flags of the whole pattern, `(?i)`.
    flags: &'p str,
    before: &'p str,
    asserted: &'p str,
    is_behind: bool,
    is_negative: bool,
    after: &'p str,
}

impl<'p> Split<'p> {
    /// Returns the parts; `None` for a pattern without assertions, or with alternatives or assertions inside of groups,
    /// which the engine compiles or refuses as a whole.
    fn of(pattern: &'p str) -> Option<Self> {
        let flags =
            pattern.strip_prefix("(?").and_then(|rest| rest.split_once(')')).map_or("", |(flags, _)| {
                let is_flags = !flags.is_empty() && flags.bytes().all(|byte| byte.is_ascii_lowercase());
                if is_flags { &pattern[..flags.len() + 3] } else { "" }
            });
        let rest = &pattern[flags.len()..];
        let (mut found, mut depth, mut in_class, mut is_escaped) = (None, 0usize, false, false);
        for (at, byte) in rest.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b']' => in_class = false,
                _ if in_class => {}
                b'[' => in_class = true,
                b'(' => {
                    if depth == 0 && found.is_none() {
                        let start = ASSERTIONS.iter().find(|row| rest[at..].starts_with(row.0));
                        found = start.map(|start| (at, start, None));
                    }
                    depth += 1;
                }
                b')' => {
                    depth = depth.checked_sub(1)?;
                    if let (0, Some((_, _, end @ None))) = (depth, &mut found) {
                        *end = Some(at);
                    }
                }
                b'|' if depth == 0 => return None,
                _ => {}
            }
        }
        let (at, &(start, is_behind, is_negative), end) = found?;
        let end = end?;
        let (before, asserted, after) = (&rest[..at], &rest[at + start.len()..end], &rest[end + 1..]);
        Some(Self { flags, before, asserted, is_behind, is_negative, after })
    }
}

/// Starts of stored names that are below `model` in memory.
const IN_MODEL: [&str; 7] = [
    "audio_tower.",
    "language_model.",
    "layers.",
    "multi_modal_projector.",
    "vision_model.",
    "vision_tower.",
    "visual.",
];

/// Returns the names by which a configuration may mean a module: the stored one, and the one that transformers has in
/// memory, where quantizers run, if it stores another (`language_model.model.layers` of `model.language_model.layers`).
pub(super) fn spellings(module: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let in_memory = if let Some(rest) = module.strip_prefix("language_model.model.") {
        Some(format!("model.language_model.{rest}"))
    } else if let Some(rest) = module.strip_prefix("model.language_model.") {
        Some(format!("language_model.model.{rest}"))
    } else if let Some(head) = module.strip_prefix("language_model.").filter(|rest| *rest == "lm_head") {
        Some(head.to_owned())
    } else {
        let is_inner = IN_MODEL.iter().any(|part| module.starts_with(part));
        is_inner.then(|| format!("model.{module}"))
    };
    std::iter::once(Cow::Borrowed(module)).chain(in_memory.map(Cow::Owned))
}

impl ModulePattern {
    /// Returns true if the pattern matches at the start of a module's name, by any of its [`spellings`].
    pub(super) fn is_match(&self, module: &str) -> bool {
        spellings(module).any(|name| self.is_match_of(&name))
    }

    fn is_match_of(&self, module: &str) -> bool {
        match self {
            Self::Regex(regex) => regex.is_match(module),
            Self::Asserted(asserted) => asserted.is_match(module),
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
    fn a_module_is_meant_by_its_name_in_memory_too() {
        let q = "layers.0.self_attn.q_proj";
        let (stored, in_memory) = (format!("language_model.model.{q}"), format!("model.language_model.{q}"));
        for (pattern, module, expected) in [
            ("model.language_model.layers.0", stored.as_str(), true),
            ("language_model.model.layers.0", &in_memory, true),
            ("model.language_model.layers.1", &stored, false),
            ("lm_head", "language_model.lm_head", true),
            ("model.vision_tower", "vision_tower.blocks.0", true),
            ("language_model.layers", &stored, false),
            ("model.model", &in_memory, false),
        ] {
            let own = Patterns::default().compile(pattern).unwrap();
            assert_eq!(own.is_match(module), expected, "{pattern} {module}");
        }
    }

    /// The answers are those of Python's `re.match`.
    #[test]
    fn assertions_are_tried_at_each_place() {
        let names = [
            "lm_head",
            "model.layers.0.mlp.up_proj",
            "model.layers.10.self_attn.q_proj",
            "visual.blocks.1.qkv",
        ];
        let rows = [
            ("^(?!.*(lm_head|visual)).*$", "0110"),
            ("(?!lm_head).*", "0111"),
            (r"model\.layers\.(?!0\.)\d+\..*", "0010"),
            (r".*\.(?=mlp|self_attn).*_proj$", "0110"),
            (r"^(?!.*mlp)(?!lm).*proj", "0010"),
            (r".*(?<!up)_proj$", "0010"),
            (r".*(?<=\.0\.).*", "0100"),
            ("(?i)(?!LM_HEAD)[A-Z(?!].*", "0111"),
            ("(?!visual|model)", "1000"),
            (r"\(?!x|model", "0110"),
        ];
        for (pattern, expected) in rows {
            let own = Patterns::default().compile(pattern).unwrap();
            let found: String =
                names.iter().map(|name| if own.is_match_of(name) { '1' } else { '0' }).collect();
            assert_eq!(found, expected, "{pattern}");
        }
        for unknown in ["(a(?!b)|c)d", "(?!a", "a(?!b)|c", r"(a)\1", "(?!a))"] {
            assert_eq!(
                Patterns::default().compile(unknown).unwrap_err(),
                ModulePatternError::Syntax,
                "{unknown}"
            );
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
