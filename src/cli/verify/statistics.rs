//! Table of quantiles of divergences and probabilities.

use std::io::Write;

use crate::cli::render::{Align, Table};
use crate::verify::{Divergence, Statistics};

/// Prints the share of equal choices with its `limit`; with details also Δp and the ratio of the perplexities.
pub(super) fn print(
    d: &Divergence,
    limit: &str,
    has_details: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let Statistics { mean_dp, rms_dp, same_top, ppl_ratio, ln_ppl_correlation, .. } = &d.statistics;
    let percent = |share: f64| 100.0 * share;
    writeln!(
        out,
        "same first choice  {:.3} ± {:.3} %{limit}",
        percent(same_top.value),
        percent(same_top.stderr)
    )?;
    if !has_details {
        return Ok(());
    }
    writeln!(out, "mean Δp       {:.3} ± {:.3} %", percent(mean_dp.value), percent(mean_dp.stderr))?;
    writeln!(out, "rms Δp        {:.3} ± {:.3} %", percent(rms_dp.value), percent(rms_dp.stderr))?;
    let correlation = match ln_ppl_correlation {
        r if r.is_finite() => format!(", correlation {:.2} %", percent(*r)),
        _ => String::new(),
    };
    writeln!(out, "PPL ratio     {:.6} ± {:.6}{correlation}", ppl_ratio.value, ppl_ratio.stderr)
}

/// Prints all quantiles, and the difference of the perplexities.
pub(super) fn print_all(d: &Divergence, out: &mut dyn Write) -> std::io::Result<()> {
    let s = &d.statistics;
    writeln!(out, "PPL(baseline) {:.6} ± {:.6}", d.baseline_ppl, s.baseline_ppl_stderr)?;
    let difference = &s.ppl_difference;
    writeln!(out, "PPL increase  {:.6} ± {:.6}", difference.value, difference.stderr)?;
    let heads = [("tokens", Align::Left), ("divergence", Align::Right), ("Δp", Align::Right)];
    let mut table = Table::new(&heads);
    for ((name, kld), (_, dp)) in s.kld.named().into_iter().zip(s.dp.named()) {
        table.row([label(name), format!("{kld:.6}"), format!("{:.3} %", 100.0 * dp)]);
    }
    table.print(out)
}

/// Label of a quantile: `99.9 %` for `p999`.
fn label(name: &str) -> String {
    let Some((whole, rest)) = name.strip_prefix('p').and_then(|digits| digits.split_at_checked(2)) else {
        return name.to_owned();
    };
    let whole = whole.strip_prefix('0').unwrap_or(whole);
    if rest.is_empty() { format!("{whole} %") } else { format!("{whole}.{rest} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_percent() {
        let found = ["max", "p999", "p99", "p05", "p001", "median"].map(label);
        assert_eq!(found, ["max", "99.9 %", "99 %", "5 %", "0.1 %", "median"]);
    }
}
