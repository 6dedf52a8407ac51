//! Flat spelling of the keys of `[graph]`: a key that is written without the table of its part, as users' own cards may
//! do, is read as the key in that table.

use toml::{Table, Value as Toml};

use crate::graph::SECTIONS;

/// Keys with a prefix or another name, and their places.
const PLACES: &[(&str, &str)] = &[
    ("attn_cap", "attention.cap"),
    ("attn_gate", "attention.gate"),
    ("attn_scale", "attention.scale"),
    ("experts_act", "moe.act"),
    ("final_cap", "head.cap"),
    ("final_norm", "norms.output"),
    ("gated_q", "attention.gated_q"),
    ("gating", "moe.gating"),
    ("gdn_gate", "mixer.gdn.gate"),
    ("group_fill", "moe.group_fill"),
    ("group_score", "moe.group_score"),
    ("head_act", "head.act"),
    ("kv_share", "attention.kv_share"),
    ("logit_scale", "head.scale"),
    ("mask", "attention.mask"),
    ("masked_head", "head.masked"),
    ("norm_eps", "norms.eps"),
    ("norm_topk", "moe.norm_topk"),
    ("post_attn", "norms.post_attn"),
    ("post_ffn", "norms.post_ffn"),
    ("post_norm_eps", "norms.post_eps"),
    ("pre_ffn", "norms.pre_ffn"),
    ("qk_norm", "attention.qk_norm"),
    ("qk_norm_eps", "attention.qk_norm_eps"),
    ("qk_norm_kind", "attention.qk_norm_kind"),
    ("qk_norm_not_at_experts", "attention.qk_norm_not_at_experts"),
    ("reason", "kind.none"),
    ("rope_global_part", "window.global_rope"),
    ("rope_local", "window.rope"),
    ("rope_local_base", "window.rope_base"),
    ("rope_on", "rope.on"),
    ("router_input", "moe.router_input"),
    ("router_select", "moe.select"),
    ("score_softmax", "head.softmax"),
    ("shared_combine", "moe.shared"),
    ("temperature", "attention.temperature"),
    ("unsaid_tokens", "head.unsaid"),
    ("v_norm", "attention.v_norm"),
    ("weigh", "moe.weigh"),
    ("window_pattern", "window.pattern"),
    ("window_size", "window.size"),
    ("yarn_mu", "rope.yarn_mu"),
    ("yarn_truncate", "rope.yarn_truncate"),
];
/// Tables whose names were keys, and the keys in them that have the value.
const FIRST_KEYS: &[(&str, &str)] = &[("rope", "pairs"), ("window", "kind")];

/// Moves the keys of `[graph]` that are written without the table of their part into it.
///
/// # Errors
/// The key and its place, if the place has a value already or cannot have one.
pub(crate) fn moved(mut graph: Table) -> Result<Table, (&'static str, &'static str)> {
    for &(key, first) in FIRST_KEYS {
        if let Some(word) = graph.get(key).filter(|word| word.is_str()).cloned() {
            graph.insert(key.to_owned(), with(first, word));
        }
    }
    for &(key, place) in PLACES {
        put(&mut graph, key, place)?;
    }
    Ok(graph)
}

/// Moves one key, if the table has it.
fn put(
    graph: &mut Table,
    key: &'static str,
    place: &'static str,
) -> Result<(), (&'static str, &'static str)> {
    let Some(value) = graph.remove(key) else { return Ok(()) };
    let (table, name) = place.split_once('.').unwrap_or(("", place));
    let is_put = match (graph.get_mut(table), name.split_once('.')) {
        (None, None) if SECTIONS.contains(&table) => {
            graph.insert(table.to_owned(), with(name, value));
            true
        }
        (Some(Toml::Table(part)), None) => part.insert(name.to_owned(), value).is_none(),
        // The word under which the value belongs becomes a table: `kind = "none"`, `mixer = "gdn"`.
        (Some(Toml::String(word)), None) if word == name => {
            graph.insert(table.to_owned(), with(name, value));
            true
        }
        (Some(mixer), Some((word, name))) => put_under_word(mixer, word, &with(name, value)),
        _ => false,
    };
    if is_put { Ok(()) } else { Err((key, place)) }
}

/// Replaces a mixer's bare name by the name with its words. Returns false if the mixer is not named.
fn put_under_word(mixer: &mut Toml, word: &str, words: &Toml) -> bool {
    let named = match mixer {
        Toml::Table(rule) => ["full", "rest"]
            .iter()
            .any(|layers| rule.get_mut(*layers).is_some_and(|mixer| put_under_word(mixer, word, words))),
        Toml::String(name) => name == word,
        _ => false,
    };
    if named && mixer.is_str() {
        *mixer = with(word, words.clone());
    }
    named
}

fn with(name: &str, value: Toml) -> Toml {
    Toml::Table(Table::from_iter([(name.to_owned(), value)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphFeatures;

    #[test]
    fn places_are_keys_of_the_vocabulary() {
        for (key, place) in PLACES {
            let text = format!("{place} = {{}}");
            let Err(error) = GraphFeatures::from_toml(&text.parse().unwrap()) else { continue };
            let error = error.to_string();
            assert!(!error.contains("unknown field"), "{key}: {place}: {error}");
        }
        let in_section = |place: &str| SECTIONS.iter().any(|section| place.starts_with(section));
        assert!(
            PLACES.iter().all(|(_, place)| in_section(place)
                || place.starts_with("kind")
                || place.starts_with("mixer"))
        );
    }

    #[test]
    fn keys_without_their_table_are_moved_into_it() {
        for (bare, expected) in [
            ("attn_cap = 50", "attention.cap = 50"),
            ("rope = 'half'\nrope_on = 'key'", "rope = { pairs = 'half', on = 'key' }"),
            ("kind = 'none'\nreason = 'r'", "kind = { none = 'r' }"),
            ("mixer = 'gdn'\ngdn_gate = 'sigmoid'", "mixer = { gdn = { gate = 'sigmoid' } }"),
            (
                "mixer = { every = 4, full = 'attention', rest = 'gdn' }\ngdn_gate = 'sigmoid'",
                "mixer = { every = 4, full = 'attention', rest = { gdn = { gate = 'sigmoid' } } }",
            ),
            ("window = { kind = 'sliding' }\nwindow_size = 4", "window = { kind = 'sliding', size = 4 }"),
        ] {
            assert_eq!(moved(bare.parse().unwrap()), Ok(expected.parse().unwrap()), "{bare}");
        }
        for (text, place) in [
            ("attn_cap = 50\nattention.cap = 30", ("attn_cap", "attention.cap")),
            ("gdn_gate = 'sigmoid'\nmixer = 'kda'", ("gdn_gate", "mixer.gdn.gate")),
            ("reason = 'r'", ("reason", "kind.none")),
        ] {
            assert_eq!(moved(text.parse().unwrap()), Err(place), "{text}");
        }
    }
}
