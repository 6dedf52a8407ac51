//! Importance of a tensor's columns: from its own entry of the importance matrix, or that of a tensor with the same
//! input.

use std::borrow::Cow;

use crate::class::n_matrices;
use gguf_core::TensorMeta;
use gguf_format::{Imatrix, ImatrixEntry};

/// Parts of names of tensors that are multiplied with the same input, in each layer. Importance is a property of the
/// input, so one of them can replace another. This matters if the measured file has other tensors than the quantized
/// one.
static SAME_INPUT: &[&[&str]] = &[
    &["attn_qkv", "attn_q", "attn_k", "attn_v", "attn_q_a", "attn_kv_a_mqa"],
    &["ffn_up", "ffn_gate"],
    &["ffn_gate_up_exps", "ffn_up_exps", "ffn_gate_exps"],
    &["ffn_up_shexp", "ffn_gate_shexp"],
    &["ffn_up_chexps", "ffn_gate_chexps"],
    &["ffn_down_exps"],
];

/// Suffix of the names of stacks of experts.
pub(crate) const STACK: &str = "_exps";

/// Importance of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Importance<'a> {
    /// One weight per column, matrix after matrix if the tensor is a stack.
    pub weights: Cow<'a, [f32]>,
    /// Names of the entries that replace a missing own entry.
    pub stand_in: Vec<String>,
    /// Matrices without importance: no token reached them, or the importance of all their columns is zero. All their
    /// columns get the same weight.
    pub unseen: Vec<usize>,
}

/// Result of looking up a tensor in an importance matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Lookup<'a> {
    /// Importance of the tensor.
    Found(Importance<'a>),
    /// Entry with this many values, which is not one for each column.
    OtherSize(usize),
    /// No entry, but the named entry belongs to a tensor with the same input.
    Elsewhere(String),
    /// No entry.
    Absent,
}

/// Looks up the importance of a tensor. With `shared`, an entry of another tensor with the same input may be used.
pub(crate) fn lookup<'a>(imatrix: &'a Imatrix, tensor: &TensorMeta, shared: bool) -> Lookup<'a> {
    let n_cols = usize::try_from(tensor.shape.n_cols()).unwrap_or(usize::MAX);
    let n = usize::try_from(n_matrices(tensor)).unwrap_or(usize::MAX);
    let expected = n_cols.saturating_mul(n);
    if let Some(entry) = imatrix.get(&tensor.name) {
        if entry.weights.len() != expected {
            return Lookup::OtherSize(entry.weights.len());
        }
        let uncounted = |matrix: &usize| entry.counts.get(*matrix).is_some_and(|&count| count <= 0);
        let unseen = (0..entry.counts.len()).filter(uncounted).collect();
        return Lookup::Found(leveled(Cow::Borrowed(&entry.weights), n_cols, unseen, Vec::new()));
    }
    if imatrix.is_withheld(&tensor.name) {
        return Lookup::Absent;
    }
    match stand_in(imatrix, &tensor.name, n_cols, n) {
        Some((weights, from)) if shared => Lookup::Found(leveled(weights, n_cols, Vec::new(), from)),
        Some((_, from)) => from.into_iter().next().map_or(Lookup::Absent, Lookup::Elsewhere),
        None => Lookup::Absent,
    }
}

/// Sets the weights of all-zero matrices to 1 in each column.
fn leveled(
    mut weights: Cow<'_, [f32]>,
    n_cols: usize,
    mut unseen: Vec<usize>,
    stand_in: Vec<String>,
) -> Importance<'_> {
    let is_zero = |matrix: &[f32]| matrix.iter().all(|&weight| weight == 0.0);
    let zero: Vec<usize> =
        (0..).zip(weights.chunks(n_cols.max(1))).filter(|row| is_zero(row.1)).map(|row| row.0).collect();
    for &matrix in &zero {
        weights.to_mut()[matrix * n_cols..(matrix + 1) * n_cols].fill(1.0);
    }
    unseen.extend(zero);
    unseen.sort_unstable();
    unseen.dedup();
    Importance { weights, stand_in, unseen }
}

/// Importance of a tensor with the same input, with the names of the entries. Experts are looked up in both forms: as a
/// stack, and as separate matrices (`ffn_up.0`).
fn stand_in<'a>(
    imatrix: &'a Imatrix,
    name: &str,
    n_cols: usize,
    n_matrices: usize,
) -> Option<(Cow<'a, [f32]>, Vec<String>)> {
    let stem = name.strip_suffix(".weight")?;
    let (before, part) = stem.rsplit_once("blk.").and_then(|(_, rest)| {
        let (_, part) = rest.split_once('.')?;
        Some((&stem[..stem.len() - part.len()], part))
    })?;
    let entry = |part: &str| -> Option<(&'a ImatrixEntry, String)> {
        let name = format!("{before}{part}.weight");
        Some((imatrix.get(&name)?, name))
    };
    let (part, expert) = match part.rsplit_once('.') {
        Some((part, number)) => (format!("{part}{STACK}"), Some(number.parse::<usize>().ok()?)),
        None => (part.to_owned(), None),
    };
    let group = SAME_INPUT.iter().find(|group| group.contains(&part.as_str()))?;
    for other in *group {
        match expert {
            None => {
                if let Some((entry, name)) = entry(other)
                    && entry.weights.len() == n_cols.saturating_mul(n_matrices)
                {
                    return Some((Cow::Borrowed(&entry.weights), vec![name]));
                }
            }
            Some(expert) => {
                let slice = |entry: &'a ImatrixEntry| {
                    let is_stack = entry.weights.len().is_multiple_of(n_cols.max(1));
                    entry.weights.chunks_exact(n_cols.max(1)).nth(expert).filter(|_| is_stack)
                };
                if let Some((entry, name)) = entry(other)
                    && let Some(weights) = slice(entry)
                {
                    return Some((Cow::Borrowed(weights), vec![name]));
                }
            }
        }
        if let Some(single) = other.strip_suffix(STACK) {
            let experts = expert.map_or(0..n_matrices, |expert| expert..expert.saturating_add(1));
            let mut weights = Vec::new();
            let mut names = Vec::new();
            for expert in experts {
                let Some((entry, name)) = entry(&format!("{single}.{expert}")) else { break };
                if entry.weights.len() != n_cols {
                    break;
                }
                weights.extend_from_slice(&entry.weights);
                names.push(name);
            }
            if !names.is_empty() && names.len() == if expert.is_some() { 1 } else { n_matrices } {
                return Some((Cow::Owned(weights), names));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};
    use gguf_format::{ColumnSums, ImatrixSums};

    fn tensor(name: &str, dims: &[u64]) -> TensorMeta {
        TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty: GgmlType::F16 }
    }

    /// Entries with two columns per matrix.
    fn imatrix(entries: &[(&str, &[f64])]) -> Imatrix {
        let sums =
            |sums: &[f64]| ColumnSums { n_cols: 2, sums: sums.to_vec(), counts: vec![1; sums.len() / 2] };
        Imatrix::of_sums(&ImatrixSums {
            tensors: entries.iter().map(|(name, values)| ((*name).to_owned(), sums(values))).collect(),
            datasets: Vec::new(),
            n_chunks: 1,
            chunk_size: 1,
        })
        .unwrap()
    }

    fn found(
        entries: &[(&str, &[f64])],
        name: &str,
        dims: &[u64],
    ) -> Option<(Vec<f32>, Vec<String>, Vec<usize>)> {
        match lookup(&imatrix(entries), &tensor(name, dims), true) {
            Lookup::Found(found) => Some((found.weights.into_owned(), found.stand_in, found.unseen)),
            _ => None,
        }
    }

    #[test]
    fn zeros_say_nothing() {
        let name = "blk.0.ffn_up_exps.weight";
        let found = found(&[(name, &[0.0, 0.0, 0.0, 2.0, 3.0, 4.0])], name, &[3, 5, 2]).unwrap();
        assert_eq!(found, (vec![1.0, 1.0, 0.0, 2.0, 3.0, 4.0], Vec::new(), vec![0]));
    }

    #[test]
    fn tensors_with_the_same_input_stand_in_for_one_another() {
        let own = "blk.3.attn_q.weight".to_owned();
        for name in ["attn_k", "attn_v", "attn_qkv", "attn_q_a"] {
            let name = format!("blk.3.{name}.weight");
            assert_eq!(
                found(&[(&own, &[5.0, 6.0])], &name, &[7, 2]),
                Some((vec![5.0, 6.0], vec![own.clone()], vec![]))
            );
        }
        for (entry, wanted) in [
            ("blk.3.ffn_up.weight", "blk.3.ffn_gate.weight"),
            ("enc.blk.3.ffn_up.weight", "enc.blk.3.ffn_gate.weight"),
            ("blk.3.ffn_gate_shexp.weight", "blk.3.ffn_up_shexp.weight"),
        ] {
            assert!(found(&[(entry, &[5.0, 6.0])], wanted, &[7, 2]).is_some(), "{wanted}");
        }
        // Unless sharing is asked for, only the entry's name is returned.
        let matrix = imatrix(&[(&own, &[5.0, 6.0])]);
        let elsewhere = lookup(&matrix, &tensor("blk.3.attn_k.weight", &[7, 2]), false);
        assert_eq!(elsewhere, Lookup::Elsewhere(own.clone()));
        // Another input, another layer, another side of the model, another width.
        for (entry, wanted) in [
            ("blk.3.attn_q.weight", "blk.3.attn_output.weight"),
            ("blk.3.attn_q.weight", "blk.4.attn_k.weight"),
            ("enc.blk.3.attn_q.weight", "dec.blk.3.attn_k.weight"),
            ("blk.3.ffn_up.weight", "blk.3.ffn_down.weight"),
            ("blk.3.ffn_up.weight", "blk.3.ffn_up_shexp.weight"),
        ] {
            assert_eq!(found(&[(entry, &[5.0, 6.0])], wanted, &[7, 2]), None, "{wanted}");
        }
        assert_eq!(found(&[(&own, &[5.0, 6.0])], "blk.3.attn_k.weight", &[7, 4]), None);
    }

    #[test]
    fn experts_in_both_forms() {
        let stack = "blk.0.ffn_gate_exps.weight";
        let values = [1.0, 2.0, 3.0, 4.0];
        let fused = found(&[(stack, &values)], "blk.0.ffn_gate_up_exps.weight", &[2, 5, 2]).unwrap();
        assert_eq!(fused, (vec![1.0, 2.0, 3.0, 4.0], vec![stack.to_owned()], vec![]));
        let single = found(&[(stack, &values)], "blk.0.ffn_up.1.weight", &[5, 2]).unwrap();
        assert_eq!(single, (vec![3.0, 4.0], vec![stack.to_owned()], vec![]));
        assert_eq!(found(&[(stack, &values)], "blk.0.ffn_up.2.weight", &[5, 2]), None);
        let (first, second) = ("blk.0.ffn_down.0.weight", "blk.0.ffn_down.1.weight");
        let joined =
            found(&[(first, &[1.0, 2.0]), (second, &[0.0, 0.0])], "blk.0.ffn_down_exps.weight", &[2, 5, 2]);
        assert_eq!(
            joined,
            Some((vec![1.0, 2.0, 1.0, 1.0], vec![first.to_owned(), second.to_owned()], vec![1]))
        );
        assert_eq!(found(&[(first, &[1.0, 2.0])], "blk.0.ffn_down_exps.weight", &[2, 5, 2]), None);
    }

    #[test]
    fn what_is_left_out_on_purpose_gets_no_stand_in() {
        let entries: [(&str, &[f64]); 2] =
            [("blk.0.attn_q.weight", &[5.0, 6.0]), ("blk.0.attn_k.weight", &[5.0, 6.0])];
        let mut without = imatrix(&entries);
        assert!(without.exclude(&["attn_q".to_owned()]).is_empty());
        assert_eq!(without.exclude(&["no_such".to_owned()]), ["no_such"]);
        assert_eq!(lookup(&without, &tensor("blk.0.attn_q.weight", &[7, 2]), true), Lookup::Absent);
        assert!(matches!(lookup(&without, &tensor("blk.0.attn_v.weight", &[7, 2]), true), Lookup::Found(_)));
    }
}
