//! Tensor names: patterns with placeholders, and the rewriting of names before matching.

pub(crate) use gguf_core::similar::{distance, nearest};

use std::fmt;

/// Endings that carry over from source to target.
pub(crate) const SUFFIXES: [&str; 2] = [".weight", ".bias"];
/// Endings that carry over for layers with clamped inputs and outputs.
pub(crate) const BOUNDS: [&str; 4] = [".input_max", ".input_min", ".output_max", ".output_min"];
/// Returns true for the name of a bound of a clamped layer; an infinite one bounds nothing.
pub fn is_bound(name: &str) -> bool {
    BOUNDS.iter().any(|end| name.ends_with(end))
}

/// Endings that make a target name complete; `.weight.1` is that of a kernel's second frame.
const COMPLETE: [&str; 6] = [".weight", ".bias", ".scale", ".lora_a", ".lora_b", ".weight.1"];

/// Placeholder in a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placeholder {
    /// `{bid}`: block index.
    Bid,
    /// `{eid}`: expert index.
    Eid,
    /// `{xid}`: any other index.
    Xid,
}

impl Placeholder {
    const ALL: [(Self, &'static str); 3] = [(Self::Bid, "bid"), (Self::Eid, "eid"), (Self::Xid, "xid")];

    /// Returns the placeholder of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Returns the name between the braces.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }
}

/// Numbers that a pattern captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Captures {
    /// Block index.
    pub bid: Option<u64>,
    /// Expert index.
    pub eid: Option<u64>,
    /// Any other index.
    pub xid: Option<u64>,
}

impl Captures {
    /// Returns the captured number.
    pub fn get(&self, placeholder: Placeholder) -> Option<u64> {
        match placeholder {
            Placeholder::Bid => self.bid,
            Placeholder::Eid => self.eid,
            Placeholder::Xid => self.xid,
        }
    }

    /// Returns these captures with one of them set.
    pub fn with(mut self, placeholder: Placeholder, value: Option<u64>) -> Self {
        match placeholder {
            Placeholder::Bid => self.bid = value,
            Placeholder::Eid => self.eid = value,
            Placeholder::Xid => self.xid = value,
        }
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PatternPart {
    Text(String),
    Number(Placeholder),
    /// `*`: anything, in ignore lists only.
    Any,
}

/// Name with placeholders: `model.layers.{bid}.mlp.experts.{eid}.w1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: String,
    parts: Vec<PatternPart>,
}

/// Permission to use `*` in a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stars {
    /// In `[ignore]`.
    Allowed,
    /// Outside `[ignore]`.
    Refused,
}

/// Error in the text of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum PatternError {
    #[error("`{0}`: placeholders are `{{bid}}`, `{{eid}}` and `{{xid}}`")]
    Placeholder(String),
    #[error("`{0}`: `*` is allowed in [ignore] only")]
    Star(String),
    #[error("`{0}`: a pattern needs text, also between placeholders")]
    Empty(String),
}

impl Pattern {
    /// Parses a pattern.
    pub fn parse(text: &str, stars: Stars) -> Result<Self, PatternError> {
        let mut parts: Vec<PatternPart> = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}', '*']) {
            let (before, after) = rest.split_at(at);
            if !before.is_empty() {
                parts.push(PatternPart::Text(before.to_owned()));
            }
            if let Some(after) = after.strip_prefix('*') {
                if stars == Stars::Refused {
                    return Err(PatternError::Star(text.to_owned()));
                }
                parts.push(PatternPart::Any);
                rest = after;
                continue;
            }
            let inside = after.strip_prefix('{').and_then(|after| after.split_once('}'));
            let placeholder = inside.and_then(|(name, rest)| Some((Placeholder::from_name(name)?, rest)));
            let (placeholder, after) =
                placeholder.ok_or_else(|| PatternError::Placeholder(text.to_owned()))?;
            if matches!(parts.last(), Some(PatternPart::Number(_))) {
                return Err(PatternError::Empty(text.to_owned()));
            }
            parts.push(PatternPart::Number(placeholder));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(PatternPart::Text(rest.to_owned()));
        }
        if parts.is_empty() {
            return Err(PatternError::Empty(text.to_owned()));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Returns the pattern's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if the pattern has this placeholder.
    pub fn has(&self, placeholder: Placeholder) -> bool {
        self.parts.contains(&PatternPart::Number(placeholder))
    }

    pub(crate) fn placeholders(&self) -> impl Iterator<Item = Placeholder> {
        self.parts.iter().filter_map(|part| match part {
            PatternPart::Number(placeholder) => Some(*placeholder),
            _ => None,
        })
    }

    /// Returns true if the name has an ending of its own, so that none is appended.
    pub fn is_complete(&self) -> bool {
        COMPLETE.iter().any(|suffix| self.text.ends_with(suffix))
    }

    /// Matches a whole name. Numbers are decimal without leading zeros; a repeated placeholder must have equal numbers.
    pub fn matches(&self, name: &str) -> Option<Captures> {
        match_parts(&self.parts, name, Captures::default())
    }

    /// Returns the name with the placeholders filled in; `None` if one has no value.
    pub fn render(&self, captures: Captures) -> Option<String> {
        let mut name = String::with_capacity(self.text.len() + 8);
        for part in &self.parts {
            match part {
                PatternPart::Text(text) => name.push_str(text),
                PatternPart::Number(placeholder) => name.push_str(&captures.get(*placeholder)?.to_string()),
                PatternPart::Any => name.push('*'),
            }
        }
        Some(name)
    }

    /// Returns the names that match this pattern with `suffix` appended.
    pub fn names(&self, suffix: &str) -> PatternNames {
        let text = |part: Option<&PatternPart>| match part {
            Some(PatternPart::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let tail = text(self.parts.last()) + suffix;
        let head = match self.parts.as_slice() {
            [] | [PatternPart::Text(_)] => tail.clone(),
            parts => text(parts.first()),
        };
        PatternNames { head, tail, atoms: atoms(&self.parts, suffix) }
    }
}

/// Names that match a pattern.
pub struct PatternNames {
    /// What they all begin with.
    head: String,
    /// What they all end with.
    tail: String,
    atoms: Vec<Atom>,
}

impl PatternNames {
    /// Returns true if some name is one of both.
    pub fn overlaps(&self, other: &Self) -> bool {
        // Nearly all pairs of a card differ there.
        let (a, b) = (self.head.as_str(), other.head.as_str());
        let heads = a.starts_with(b) || b.starts_with(a);
        let (a, b) = (self.tail.as_str(), other.tail.as_str());
        heads && (a.ends_with(b) || b.ends_with(a)) && overlap(&self.atoms, &other.atoms)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn match_parts(parts: &[PatternPart], name: &str, captures: Captures) -> Option<Captures> {
    let Some((part, rest)) = parts.split_first() else { return name.is_empty().then_some(captures) };
    match part {
        PatternPart::Text(text) => match_parts(rest, name.strip_prefix(text.as_str())?, captures),
        PatternPart::Number(placeholder) => {
            let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let number = &name[..digits];
            if number.is_empty() || (number.len() > 1 && number.starts_with('0')) {
                return None;
            }
            let value: u64 = number.parse().ok()?;
            if captures.get(*placeholder).is_some_and(|before| before != value) {
                return None;
            }
            match_parts(rest, &name[digits..], captures.with(*placeholder, Some(value)))
        }
        PatternPart::Any => {
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.into_iter().find_map(|at| match_parts(rest, &name[at..], captures))
        }
    }
}

/// Step of a pattern as an automaton: a byte, one or more digits, or anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Atom {
    Byte(u8),
    Digits,
    Any,
}

fn atoms(parts: &[PatternPart], suffix: &str) -> Vec<Atom> {
    let mut atoms = Vec::new();
    for part in parts {
        match part {
            PatternPart::Text(text) => atoms.extend(text.bytes().map(Atom::Byte)),
            PatternPart::Number(_) => atoms.push(Atom::Digits),
            PatternPart::Any => atoms.push(Atom::Any),
        }
    }
    atoms.extend(suffix.bytes().map(Atom::Byte));
    atoms
}

/// Returns true if some text matches both, by a search over the pairs of positions. Repeated `Digits` need no extra
/// state, because the search may stay at a `Digits` of one side while the other side advances.
fn overlap(a: &[Atom], b: &[Atom]) -> bool {
    // State: position in each, and whether the `Digits` there has consumed a digit.
    let mut open = vec![(0usize, false, 0usize, false)];
    let mut seen = std::collections::HashSet::new();
    while let Some(state) = open.pop() {
        if !seen.insert(state) {
            continue;
        }
        let (i, a_taken, j, b_taken) = state;
        if i == a.len() && j == b.len() {
            return true;
        }
        // Steps without a byte: leave a `Digits` that has consumed one, or skip an `Any`.
        if a_taken || a.get(i) == Some(&Atom::Any) {
            open.push((i + 1, false, j, b_taken));
        }
        if b_taken || b.get(j) == Some(&Atom::Any) {
            open.push((i, a_taken, j + 1, false));
        }
        let (Some(&x), Some(&y)) = (a.get(i), b.get(j)) else { continue };
        let common = match (x, y) {
            (Atom::Byte(x), Atom::Byte(y)) => x == y,
            (Atom::Byte(x), Atom::Digits) | (Atom::Digits, Atom::Byte(x)) => x.is_ascii_digit(),
            _ => true,
        };
        if common {
            let next = |atom: Atom, at: usize| match atom {
                Atom::Byte(_) => (at + 1, false),
                Atom::Digits => (at, true),
                Atom::Any => (at, false),
            };
            let ((i, a_taken), (j, b_taken)) = (next(x, i), next(y, j));
            open.push((i, a_taken, j, b_taken));
        }
    }
    false
}

/// Returns the number in a name that counts as its block: the first part between dots that is all digits.
pub(crate) fn block_of(name: &str) -> Option<u64> {
    name.split('.').find(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// Rewriting that every name gets before the card's own.
///
/// # Exactness
/// Equals `ModelBase.filter_tensors` of llama.cpp 0.5.0.
pub(crate) fn shared_rewrite(name: &str) -> String {
    let name = match name.strip_suffix("e_score_correction_bias") {
        Some(_) => name.replace("e_score_correction_bias", "e_score_correction.bias"),
        None => name.to_owned(),
    };
    name.replace("language_model.", "")
}

/// Returns the usual name of a tensor that [`shared_rewrite`] renames.
pub(crate) fn as_before_sharing(name: String) -> String {
    name.strip_suffix("e_score_correction.bias")
        .map(|head| format!("{head}e_score_correction_bias"))
        .unwrap_or(name)
}

/// Returns true for names in the checkpoint that belong to the text model by an explicit word. Some programs save the
/// tower inside the text model (`model.language_model.visual.blocks…`).
///
/// # Exactness
/// Equals `MmprojModel.filter_tensors` of llama.cpp 0.5.0, except for such towers.
pub(crate) fn is_of_text_model(name: &str) -> bool {
    let Some((_, inner)) = name.split_once("language_model.") else { return false };
    let inner = inner.strip_prefix("model.").unwrap_or(inner);
    !is_of_tower(inner.split_inclusive('.').next().unwrap_or_default())
}

/// Returns true for names that belong to a tower, or to its projector to the text model, by a word.
pub(crate) fn is_of_tower(name: &str) -> bool {
    const WORDS: [&str; 27] = [
        "vision",
        "visual",
        "image_newline",
        "view_sep",
        "siglip",
        "sam_model",
        "patch_embed",
        "patch_conv",
        "patch_merge",
        "projector",
        "mm_proj",
        "multi_modal",
        "multimodal",
        "mlp_ar.",
        "aligner",
        "connector",
        "resampler",
        "perceive",
        "qformer",
        "audio",
        "speech",
        "sound_",
        "whisper",
        "conformer",
        "vit.",
        "vpm.",
        "merger.",
    ];
    let name = name.to_ascii_lowercase();
    let rest = name.strip_prefix("model.").unwrap_or(&name);
    // Text models may have experts for images in their layers.
    !rest.starts_with("layers.") && WORDS.iter().any(|word| rest.contains(word))
}

/// Returns true for names with one of the prefixes `parts`; without prefixes for all names.
pub(crate) fn is_of_parts(name: &str, parts: &[String]) -> bool {
    parts.is_empty() || parts.iter().any(|part| name.starts_with(part.as_str()))
}

/// Inverts [`shared_rewrite`]. In every known model the biases of routers have no dot before `bias`.
pub(crate) fn undo_shared_rewrite(name: String) -> String {
    match name.strip_suffix("e_score_correction.bias") {
        Some(head) => format!("{head}e_score_correction_bias"),
        None => name,
    }
}

/// Usual module of the output head, and GPT-NeoX's.
const HEAD_MODULES: [&str; 2] = ["lm_head", "embed_out"];

/// Returns true if a tensor of a checkpoint is named like a part of the output head.
pub(crate) fn is_of_head(name: &str) -> bool {
    name.split('.').any(|part| HEAD_MODULES.contains(&part))
}

/// Returns true for buffers in checkpoints that no runtime reads.
pub(crate) fn is_recomputed(name: &str) -> bool {
    [".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq"]
        .iter()
        .any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text, Stars::Allowed).unwrap()
    }

    #[test]
    fn patterns_capture_decimal_numbers() {
        let experts = pattern("model.layers.{bid}.experts.{eid}.w1");
        let captures = experts.matches("model.layers.12.experts.0.w1").unwrap();
        assert_eq!((captures.bid, captures.eid, captures.xid), (Some(12), Some(0), None));
        assert_eq!(experts.render(captures).as_deref(), Some("model.layers.12.experts.0.w1"));
        for no in
            ["model.layers.012.experts.0.w1", "model.layers..experts.0.w1", "model.layers.1.experts.x.w1"]
        {
            assert_eq!(experts.matches(no), None, "{no}");
        }
        assert!(pattern("a.{bid}.b.{bid}").matches("a.3.b.3").is_some());
        assert!(pattern("a.{bid}.b.{bid}").matches("a.3.b.4").is_none());
        assert!(pattern("model.layers.{bid}.*").matches("model.layers.7.anything.at.all").is_some());
        assert!(pattern("x.{bid}").matches("x.99999999999999999999").is_none());
        assert!(pattern("x.{bid}").render(Captures::default()).is_none());
    }

    #[test]
    fn patterns_are_checked() {
        assert!(matches!(Pattern::parse("a.{foo}", Stars::Refused), Err(PatternError::Placeholder(_))));
        assert!(matches!(Pattern::parse("a.{bid", Stars::Refused), Err(PatternError::Placeholder(_))));
        assert!(matches!(Pattern::parse("a.*", Stars::Refused), Err(PatternError::Star(_))));
        assert!(matches!(Pattern::parse("", Stars::Refused), Err(PatternError::Empty(_))));
        assert!(matches!(Pattern::parse("{bid}{eid}", Stars::Refused), Err(PatternError::Empty(_))));
    }

    #[test]
    fn overlaps_are_found() {
        for (a, a_end, b, b_end, want) in [
            ("model.{bid}.x", "", "model.{bid}.x", "", true),
            ("model.{bid}.x", ".weight", "model.{bid}.x.weight", "", true),
            ("model.{bid}.x", ".bias", "model.{bid}.x.weight", "", false),
            ("model.{bid}.x", "", "model.0.x", "", true),
            ("model.{bid}.experts.{eid}.w", "", "model.{bid}.experts.0.w", "", true),
            ("model.{bid}.x", "", "model.{bid}.y", "", false),
            ("model.1{bid}", "", "model.{bid}", "", true),
            ("model.{bid}.*", "", "model.{bid}.mlp.up", ".weight", true),
            ("a.{bid}", "", "a.", "", false),
            ("{bid}", ".weight", "0.weight", "", true),
        ] {
            let (x, y) = (pattern(a).names(a_end), pattern(b).names(b_end));
            assert_eq!((x.overlaps(&y), y.overlaps(&x)), (want, want), "{a}{a_end} {b}{b_end}");
        }
    }

    #[test]
    fn names_of_other_modalities_and_buffers_are_known() {
        assert!(is_of_tower("mm_projector.0.weight") && is_of_tower("model.Vision_Tower.x"));
        assert!(
            !is_of_tower("model.layers.0.mlp.vision_mlp.up_proj.weight") && !is_of_tower("lm_head.weight")
        );
        assert!(is_recomputed("model.layers.0.self_attn.rotary_emb.inv_freq"));
        assert_eq!(
            shared_rewrite("language_model.model.x.e_score_correction_bias"),
            "model.x.e_score_correction.bias"
        );
        assert_eq!(block_of("model.layers.17.mlp.experts.3.w1"), Some(17));
        assert_eq!(block_of("lm_head.weight"), None);
    }
}
