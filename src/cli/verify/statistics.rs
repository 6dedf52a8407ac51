//! Table of quantiles of divergences and probabilities.

use std::io::Write;

use crate::cli::render::{Align, Table};
use crate::verify::Divergence;

/// Prints the share of equal choices with its `limit`; with details also Δp and the ratio of the perplexities.
pub(super) fn print(
    d: &Divergence,
    limit: &str,
    has_details: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let percent = |share: f64| 100.0 * share;
    let (same, stderr) = (percent(d.top1_agreement), percent(d.top1_stderr));
    writeln!(out, "same first choice  {same:.3} ± {stderr:.3} %{limit}")?;
    if !has_details {
        return Ok(());
    }
    writeln!(out, "mean Δp       {:.3} ± {:.3} %", percent(d.dp.mean), percent(d.dp.stderr))?;
    writeln!(out, "rms Δp        {:.3} ± {:.3} %", percent(d.rms_dp), percent(d.rms_dp_stderr))?;
    let correlation = match d.ln_ppl_correlation {
        r if r.is_finite() => format!(", correlation {:.2} %", percent(r)),
        _ => String::new(),
    };
    writeln!(out, "PPL ratio     {:.6} ± {:.6}{correlation}", d.ppl_ratio.value, d.ppl_ratio.stderr)
}

/// Prints all quantiles, and the difference of the perplexities.
pub(super) fn print_all(d: &Divergence, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "PPL(baseline) {:.6} ± {:.6}", d.baseline_ppl, d.baseline_ppl_stderr)?;
    let difference = &d.ppl_difference;
    writeln!(out, "PPL increase  {:.6} ± {:.6}", difference.value, difference.stderr)?;
    let heads = [("tokens", Align::Left), ("divergence", Align::Right), ("Δp", Align::Right)];
    let mut table = Table::new(&heads);
    for ((name, kld), (_, dp)) in d.kld.quantiles.named().into_iter().zip(d.dp.quantiles.named()) {
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
