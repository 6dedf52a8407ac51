//! Output of the coverage of experts.

use std::fmt::Write as _;

use crate::cli::render::{Align, Table};
use crate::core::text::escape;
use crate::verify::ExpertCoverage;

/// Maximum number of experts that a list names.
const MAX_NAMED: usize = 64;

/// Returns a table with a row for each layer; with `all` also the tokens of each expert.
pub(super) fn table(coverage: &[ExpertCoverage], all: bool) -> Table {
    let mut heads = vec![
        ("layer", Align::Right),
        ("experts of", Align::Left),
        ("experts", Align::Right),
        ("min tokens", Align::Right),
        ("median", Align::Right),
        ("max", Align::Right),
        ("never seen", Align::Right),
    ];
    if all {
        heads.push(("tokens of each", Align::Left));
    }
    let mut table = Table::new(&heads);
    for layer in coverage {
        let mut row = vec![
            layer.layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string()),
            parts(layer),
            layer.n_experts.to_string(),
            layer.min.to_string(),
            layer.median.to_string(),
            layer.max.to_string(),
            layer.unseen.len().to_string(),
        ];
        if all {
            row.push(layer.tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        }
        table.row(row);
    }
    table
}

/// Names of the tensors within their layer.
fn parts(layer: &ExpertCoverage) -> String {
    let short = |name: &String| {
        let name = name.strip_suffix(".weight").unwrap_or(name);
        escape(name.rsplit('.').next().unwrap_or(name)).into_owned()
    };
    layer.tensors.iter().map(short).collect::<Vec<_>>().join(", ")
}

/// Returns the range of tokens per expert over all layers, in a line; `None` for a model without experts.
pub(super) fn summary(coverage: &[ExpertCoverage]) -> Option<String> {
    let least = coverage.iter().map(|layer| layer.min).min()?;
    let most = coverage.iter().map(|layer| layer.max).max()?;
    let n_experts: usize = coverage.iter().map(|layer| layer.n_experts).sum();
    Some(format!("experts    {n_experts}, each saw {least} to {most} tokens"))
}

/// Returns a sentence about experts that no token reached; `None` if there are none.
pub(super) fn warning(coverage: &[ExpertCoverage]) -> Option<String> {
    let n_experts: usize = coverage.iter().map(|layer| layer.n_experts).sum();
    let n_unseen: usize = coverage.iter().map(|layer| layer.unseen.len()).sum();
    if n_unseen == 0 {
        return None;
    }
    let places = coverage.iter().filter(|layer| !layer.unseen.is_empty()).map(|layer| {
        let place = layer.layer.map_or_else(|| parts(layer), |layer| format!("layer {layer}"));
        (place, layer.unseen.clone())
    });
    let list = named(places, MAX_NAMED);
    Some(format!(
        "{n_unseen} of {n_experts} experts saw no token, and the matrix has no data for them (more text reaches more): {list}"
    ))
}

/// Lists experts by place, up to `most` of them: `layer 3: 7 12; layer 9: 1; and 5 more`.
fn named(places: impl Iterator<Item = (String, Vec<usize>)>, most: usize) -> String {
    let mut list = String::new();
    let (mut n_named, mut n_all) = (0, 0);
    for (place, experts) in places.filter(|(_, experts)| !experts.is_empty()) {
        n_all += experts.len();
        let shown: Vec<String> = experts.iter().take(most - n_named).map(ToString::to_string).collect();
        if shown.is_empty() {
            continue;
        }
        n_named += shown.len();
        let _ = write!(list, "{}{place}: {}", if list.is_empty() { "" } else { "; " }, shown.join(" "));
    }
    if n_named < n_all {
        let _ = write!(list, "; and {} more", n_all - n_named);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(layer: usize, tokens: &[i64]) -> ExpertCoverage {
        let tensors = vec![format!("blk.{layer}.ffn_up_exps.weight")];
        ExpertCoverage::new(Some(layer), tensors, tokens.to_vec())
    }

    #[test]
    fn experts_that_saw_nothing_are_named_up_to_a_limit() {
        assert_eq!(warning(&[layer(0, &[1, 2])]), None);
        let text = warning(&[layer(0, &[1, 2]), layer(3, &[0, 7, 0]), layer(4, &[0, 1])]).unwrap();
        assert!(text.starts_with("3 of 7 experts saw no token"), "{text}");
        assert!(text.ends_with(": layer 3: 0 2; layer 4: 0"), "{text}");
        let text = warning(&[layer(0, &[0; 60]), layer(1, &[0; 60])]).unwrap();
        assert!(text.ends_with("; layer 1: 0 1 2 3; and 56 more"), "{text}");
    }
}
