//! Types as rules, in the format that `--write-types` writes and `--tensor-type-file` reads.

use std::fmt::Write as _;

use crate::{OptionError, QuantizePlan, Reason, TensorTypeRule};
use gguf_core::{GgmlType, TensorSource as _};

/// Regular expression that matches this name only.
///
/// Rules are lower-cased as a whole and separated by white space, and the first `=` ends the expression. So upper-case
/// letters and all ASCII punctuation except `_` and `-` are escaped.
pub(super) fn pattern(name: &str) -> String {
    let mut out = String::from("^");
    for c in name.chars() {
        match c {
            'a'..='z' | '0'..='9' | '_' | '-' => out.push(c),
            '.' => out.push_str("\\."),
            // Writing to a string does not fail.
            c if c.is_ascii() => drop(write!(out, "\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('$');
    out
}

/// Rule that gives a tensor of this name this type.
pub(super) fn rule(name: &str, ty: GgmlType) -> Result<TensorTypeRule, OptionError> {
    TensorTypeRule::parse(&line(name, ty))
}

fn line(name: &str, ty: GgmlType) -> String {
    format!("{}={}", pattern(name), ty.name().to_ascii_lowercase())
}

/// Formats the types of a plan for `--tensor-type-file`, with one rule per line for each quantized tensor. With these
/// rules, any quantized file type gives the same types.
pub fn type_rules(plan: &QuantizePlan<'_>) -> String {
    let steps = plan.steps().iter().zip(plan.tensors());
    let chosen = steps.filter(|(step, _)| step.choice.reason != Reason::Kept);
    chosen.map(|(_, tensor)| line(&tensor.name, tensor.ty) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_finds_its_name_alone() {
        let names = [
            "blk.1.attn_q.weight",
            "blk.11.attn_q.weight",
            "blk.1.attn_q.weight2",
            "blk-1.attn_q.weight",
            "Blk.1.ATTN_Q.weight",
            "a b=c\tweight",
            "[x](y)*{2}|$^+?\\weight",
            "größe.weight",
            "",
        ];
        for name in names {
            let rule = rule(name, GgmlType::Q4K).unwrap();
            let found: Vec<_> = names.iter().filter(|other| rule.matches(other)).collect();
            assert_eq!((found, rule.ty), (vec![&name], GgmlType::Q4K));
            assert!(
                !rule.pattern.contains(|c: char| c.is_ascii_whitespace() || c == '='),
                "{}",
                rule.pattern
            );
        }
        assert_eq!(line("blk.0.attn_v.weight", GgmlType::Iq4Xs), "^blk\\.0\\.attn_v\\.weight$=iq4_xs");
    }

    #[test]
    fn all_types_are_found_again_by_their_names() {
        for ty in GgmlType::all() {
            assert_eq!(rule("x", ty).unwrap().ty, ty);
        }
    }
}
