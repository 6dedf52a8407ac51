//! Operations of a parent's entry that a child's entry takes over: a new name for a tensor does not store it in another
//! way. `ops = []` states that it does.

use toml::{Table, Value as Toml};

use crate::error::CardProblem;

/// Tables of entries, with the block prefix that their targets omit; the second is that of towers.
const SECTIONS: [(&str, &str, &str); 3] = [
    ("tensors", "", ""),
    ("blocks", "blk.{bid}.", "v.blk.{bid}."),
    ("audio_blocks", "a.blk.{bid}.", "a.blk.{bid}."),
];
/// Keys of an entry that change its values.
const OPS: [&str; 2] = ["ops", "pre"];
/// Keys of an entry that is made of several tensors: its operations belong to their arrangement.
const JOINED: [&str; 4] = ["stack", "concat", "with", "join"];

/// Completes the child's entries that replace one of the parent, or have the target of one, by its operations.
///
/// # Errors
/// Several entries of the parent with different operations, of which the child names none.
pub(crate) fn keep(parent: &Table, child: &Table) -> Result<Table, CardProblem> {
    let is_tower =
        [child, parent].iter().any(|card| card.get("kind").and_then(Toml::as_str) == Some("mmproj"));
    let mut kept = child.clone();
    for (section, text, tower) in SECTIONS {
        let prefix = if is_tower { tower } else { text };
        let Some(Toml::Table(entries)) = kept.get_mut(section) else { continue };
        for (name, value) in entries {
            let items = match value {
                Toml::Array(items) => items.iter_mut().collect(),
                value => vec![value],
            };
            for item in items {
                let Some(target) = plain_target(item).map(|target| format!("{prefix}{target}")) else {
                    continue;
                };
                if let Some(ops) = parents_ops(parent, is_tower, (section, name), &target)? {
                    add(item, &ops);
                }
            }
        }
    }
    Ok(kept)
}

/// Returns the target of an entry that states no operations and is made of one tensor.
fn plain_target(value: &Toml) -> Option<String> {
    let is_plain = !value.as_table().is_some_and(|fields| OPS.iter().any(|key| fields.contains_key(*key)));
    single(value).filter(|_| is_plain).map(str::to_owned)
}

/// Returns the target of an entry that turns one tensor into one.
fn single(value: &Toml) -> Option<&str> {
    let target = match value {
        Toml::String(target) => target,
        Toml::Table(fields) if !JOINED.iter().any(|key| fields.contains_key(*key)) => {
            fields.get("to")?.as_str()?
        }
        _ => return None,
    };
    Some(target.strip_suffix(".weight").unwrap_or(target))
}

/// Returns the operations of the parent's entry of this name, or else of its entries with this target.
fn parents_ops(
    parent: &Table,
    is_tower: bool,
    (section, name): (&str, &str),
    target: &str,
) -> Result<Option<Table>, CardProblem> {
    let all = SECTIONS.into_iter().flat_map(|(own, text, tower)| {
        let prefix = if is_tower { tower } else { text };
        let entries = parent.get(own).and_then(Toml::as_table).into_iter().flatten();
        let items = entries.flat_map(|(name, value)| {
            let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            items.iter().map(move |item| (name, item))
        });
        items.map(move |(name, item)| (own, name, prefix, item))
    });
    let same: Vec<_> = all
        .filter(|(.., prefix, item)| {
            single(item).and_then(|own| target.strip_suffix(own)).is_some_and(|front| front == *prefix)
        })
        .collect();
    let is_replaced = |row: &&(&str, &String, &str, &Toml)| (row.0, row.1.as_str()) == (section, name);
    let replaced: Vec<_> = same.iter().filter(is_replaced).collect();
    let rows = if replaced.is_empty() { same.iter().collect() } else { replaced };
    let ops = rows.into_iter().map(|(.., item)| {
        let fields = item.as_table().into_iter().flatten();
        fields
            .filter(|(key, _)| OPS.contains(&key.as_str()))
            .map(|(key, ops)| (key.clone(), ops.clone()))
            .collect()
    });
    let mut ops: Vec<Table> = ops.collect();
    ops.dedup();
    match ops.len() {
        0 | 1 => Ok(ops.pop().filter(|ops| !ops.is_empty())),
        _ => Err(CardProblem::OtherOps { at: format!("[{section}] `{name}`"), target: target.to_owned() }),
    }
}

fn add(value: &mut Toml, ops: &Table) {
    if let Toml::String(target) = value {
        *value = Toml::Table(Table::from_iter([("to".to_owned(), Toml::from(target.as_str()))]));
    }
    if let Toml::Table(fields) = value {
        fields.extend(ops.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "
        [tensors]\n'wpe' = { to = 'position_embd', ops = [{ slice = { start = '2' } }] }
        [blocks]\nq = { to = 'attn_q', ops = [{ permute_rope = 'heads' }] }\nv = 'attn_v'\n
        e = { to = 'ffn_up_exps', stack = 'eid', n = 'n', ops = ['flatten'] }
        [[blocks.d]]\nwhen = 'a'\nto = 'ffn_down.weight'\nops = [{ transpose = [0, 1] }]
        [[blocks.d]]\nwhen = 'not a'\nto = 'ffn_down.weight'";

    /// Returns the operations of the first entry of a child; empty without any.
    fn ops(child: &str) -> Result<Vec<Toml>, String> {
        let table = |text: &str| text.parse::<Table>().unwrap();
        let kept = keep(&table(PARENT), &table(child)).map_err(|problem| problem.to_string())?;
        let sections = ["blocks", "tensors"].iter().filter_map(|key| kept.get(*key)?.as_table());
        let entry = sections.flatten().next().unwrap().1;
        let entry = entry.get(0).unwrap_or(entry);
        Ok(entry.get("ops").and_then(Toml::as_array).cloned().unwrap_or_default())
    }

    #[expect(clippy::unnecessary_wraps, reason = "compared with results")]
    fn list(ops: &str) -> Result<Vec<Toml>, String> {
        Ok(format!("ops = {ops}").parse::<Table>().unwrap()["ops"].as_array().cloned().unwrap())
    }

    #[test]
    fn another_name_is_stored_as_the_parents() {
        let permuted = list("[{ permute_rope = 'heads' }]");
        for child in [
            "[blocks]\nq = 'attn_q'",
            "[blocks]\nwq = 'attn_q'",
            "[blocks]\nwq = { to = 'attn_q', optional = true }",
            "[blocks]\nwq = { to = 'attn_q.weight' }",
            "[[blocks.wq]]\nto = 'attn_q'\nwhen = 'a'",
            "[tensors]\n'h.{bid}.wq' = 'blk.{bid}.attn_q'",
        ] {
            assert_eq!(ops(child), permuted, "{child}");
        }
        assert_eq!(ops("[tensors]\nw = 'position_embd'"), list("[{ slice = { start = '2' } }]"));
        let none = list("[]");
        for child in [
            "[blocks]\nwv = 'attn_v'",
            "[blocks]\nwk = 'attn_k'",
            "[blocks]\nw = { to = 'attn_q', with = ['x'], join = 'concat' }",
            "[blocks]\nw = { to = ['attn_q', 'attn_k'] }",
            "[blocks]\nw = 'ffn_up_exps'",
            "[tensors]\nw = 'attn_q'",
        ] {
            assert_eq!(ops(child), none, "{child}");
        }
        assert_eq!(ops("[blocks]\nwq = { to = 'attn_q', ops = [] }"), none);
        assert_eq!(ops("[blocks]\nwq = { to = 'attn_q', ops = ['flatten'] }"), list("['flatten']"));
        let problem = ops("[blocks]\nw2 = 'ffn_down'").unwrap_err();
        assert!(problem.contains("[blocks] `w2`") && problem.contains("`blk.{bid}.ffn_down`"), "{problem}");
    }
}
