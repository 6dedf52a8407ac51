//! Similar names, for hints.

use crate::text::escape;

/// Maximum bytes of a name that is compared.
const MAX_BYTES: usize = 256;
/// Maximum number of names that a hint offers.
const MAX_OFFERED: usize = 3;

/// Returns the edit distance of two names: insertions, deletions and substitutions of one byte each.
pub fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Returns the nearest known name, if its distance is at most half of the longer name.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Names from files can be long; only short ones are compared.
    let short = |text: &'a str| (text.len() <= MAX_BYTES).then_some(text);
    if name.len() > MAX_BYTES {
        return None;
    }
    let candidates = known.into_iter().filter_map(short).map(|known| (distance(name, known), known));
    let (distance, known) = candidates.min_by_key(|candidate| candidate.0)?;
    (distance <= name.len().max(known.len()) / 2).then_some(known)
}

/// Returns the known short names (of types) most similar to a name. Case, `_` and `-` do not count, and one character
/// in three may be wrong.
pub fn meant<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    if name.len() > MAX_BYTES {
        return Vec::new();
    }
    let fold = |text: &str| text.replace(['_', '-'], "").to_ascii_lowercase();
    let name = fold(name);
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .map(|known| (known, fold(known)))
        .map(|(known, folded)| (distance(&name, &folded), known, name.len().max(folded.len())))
        .filter(|(distance, _, len)| distance * 3 <= *len)
        .map(|(distance, known, _)| (distance, known))
        .collect();
    let best = near.iter().map(|row| row.0).min();
    near.retain(|row| Some(row.0) == best);
    near.truncate(MAX_OFFERED);
    near.into_iter().map(|row| row.1).collect()
}

/// Returns a hint that offers the names; `None` if there are none.
pub fn did_you_mean<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{}`", escape(name))).collect();
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("did you mean {one}?")),
        [first @ .., last] => Some(format!("did you mean {} or {last}?", first.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let known = ["self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj"];
        assert_eq!(nearest("self_attn.q_prj", known), Some("self_attn.q_proj"));
        assert_eq!(nearest("zzz", known), None);
    }

    #[test]
    fn types_that_were_meant() {
        let known = ["f16", "q8_0", "q6_k", "q4_k_m", "q4_k_s", "q4_0", "q4_1", "iq4_xs"];
        let cases: [(&str, &[&str]); 8] = [
            ("q4_km", &["q4_k_m"]),
            ("Q4-K-M", &["q4_k_m"]),
            ("q4_k_l", &["q4_k_m", "q4_k_s"]),
            ("q4", &["q4_0", "q4_1"]),
            ("fp16", &["f16"]),
            ("q9_9", &[]),
            ("", &[]),
            ("elephant", &[]),
        ];
        for (name, want) in cases {
            assert_eq!(meant(name, known), want, "{name}");
        }
        assert_eq!(meant(&"q".repeat(300), known), [""; 0]);
    }

    #[test]
    fn an_offer_reads_as_a_question() {
        assert_eq!(did_you_mean([]), None);
        assert_eq!(did_you_mean(["a"]).unwrap(), "did you mean `a`?");
        assert_eq!(did_you_mean(["a", "b", "c"]).unwrap(), "did you mean `a`, `b` or `c`?");
    }
}
