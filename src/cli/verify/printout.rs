//! Verdicts on the screen: one file in full, several as a table.

use std::io::Write;

use crate::cli::render::{Align, Table, plural};
use crate::cli::verify::report::{self, Detail, ModelReport};
use crate::cli::verify::{file_rows, overview, pairs, reasons, statistics, tasks};
use crate::core::text::escape;
use crate::verify::{
    Better, Distribution, Divergence, EmbeddingReport, Figure, MaskedReport, Report, Verdict, WeightReport,
};

impl ModelReport {
    fn print(&self, out: &mut dyn Write, detail: Detail) -> std::io::Result<()> {
        let report = &self.report;
        let has_details = detail == Detail::Full;
        reasons::print(report, detail, out)?;
        if let Some(label) = &report.label {
            let bits = report.bits_per_weight.map(|bits| format!(", {bits:.2} bits per weight"));
            writeln!(out, "types         {}{}", label.recipe, bits.unwrap_or_default())?;
        }
        if let Some(weights) = &report.weights {
            print_weights(weights, has_details, out)?;
        }
        if let Some(p) = &report.perplexity {
            let limit = self.limit(Figure::Ppl);
            writeln!(
                out,
                "perplexity    {:.4} ± {:.4} over {}{limit}",
                p.value,
                p.stderr,
                plural(p.tokens as u64, "token")
            )?;
        }
        if let Some(bits) = report.bits_per_byte.filter(|_| has_details) {
            writeln!(out, "bits per byte {bits:.4}")?;
        }
        if has_details && report.prompts.len() > 1 {
            prompts(report).print(out)?;
        }
        if let Some(table) = file_rows::table(std::slice::from_ref(self)) {
            table.print(out)?;
        }
        for answered in &report.tasks {
            tasks::print(answered, out)?;
        }
        if let Some(d) = &report.divergence {
            self.print_divergence(d, has_details, out)?;
        }
        if let Some(embeddings) = &report.embeddings {
            self.print_embeddings(embeddings, out)?;
        }
        match &report.masked {
            Some(Ok(masked)) => self.print_masked(masked, out)?,
            Some(Err(why)) => writeln!(out, "masked tokens {why}")?,
            None => {}
        }
        if let Some(speed) = report.tokens_per_second.filter(|_| has_details) {
            writeln!(out, "speed         {speed:.0} tokens/s")?;
        }
        let checked = if has_details { reasons::checked(report) } else { Vec::new() };
        for line in checked.into_iter().chain(reasons::warnings(report, detail)) {
            writeln!(out, "{line}")?;
        }
        if let Some(next) = self.next.as_ref().filter(|_| report.verdict == Verdict::Partial) {
            writeln!(out, "to judge it   {next}")?;
        }
        reasons::print_verdict(report.verdict, out)
    }

    fn print_divergence(
        &self,
        d: &Divergence,
        has_details: bool,
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        let (kld, quantiles, delta) = (&d.kld, &d.kld.quantiles, &d.delta_ln_ppl);
        writeln!(out, "mean KLD      {:.6} ± {:.6}{}", kld.mean, kld.stderr, self.limit(Figure::Kld))?;
        writeln!(out, "99 % KLD      {:.6}{}", quantiles.p99, self.limit(Figure::Kld99))?;
        if has_details {
            let Distribution { median, p999, max, .. } = quantiles;
            writeln!(out, "              median {median:.6}, 99.9 % {p999:.6}, max {max:.6}")?;
        }
        statistics::print(d, &self.limit(Figure::Top1), has_details, out)?;
        writeln!(
            out,
            "Δ ln(PPL)     {:.6} ± {:.6} (baseline {:.4}){}",
            delta.value,
            delta.stderr,
            d.baseline_ppl,
            self.limit(Figure::PplIncrease)
        )?;
        if has_details {
            statistics::print_all(d, out)?;
            for worst in &d.worst {
                let Some(context) = &worst.context else { continue };
                writeln!(out, "  {:.4} prompt {} token {}: …{context}", worst.kld, worst.prompt, worst.at)?;
            }
        }
        Ok(())
    }

    fn print_embeddings(&self, embeddings: &EmbeddingReport, out: &mut dyn Write) -> std::io::Result<()> {
        let EmbeddingReport { width, pooling, against, .. } = embeddings;
        let texts = plural(embeddings.texts as u64, "text");
        let tokens = plural(embeddings.tokens as u64, "token");
        writeln!(out, "vectors       {texts}, {tokens}, {width} values each (pooling: {pooling})")?;
        let Some(against) = against else { return Ok(()) };
        if let Some(error) = against.score_error {
            let limit = self.limit(Figure::ScoreError);
            writeln!(out, "scores        off by {error:.6} of their spread{limit}")?;
            if let Some(ranks) = against.rank_correlation {
                writeln!(out, "ranks         correlation {ranks:.6}")?;
            }
            return Ok(());
        }
        writeln!(out, "cosine        mean {:.8}{}", against.mean_cosine, self.limit(Figure::Cosine))?;
        let limit = self.limit(Figure::WorstCosine);
        let (worst, prompt) = (against.worst_cosine, against.worst_prompt);
        writeln!(out, "              worst {worst:.8}, prompt {prompt}{limit}")?;
        if let (Some(same), Some(ranks)) = (against.same_neighbour, against.rank_correlation) {
            let same = 100.0 * same;
            writeln!(out, "neighbours    {same:.2} % the same, correlation of ranks {ranks:.6}")?;
        }
        Ok(())
    }

    fn print_masked(&self, masked: &MaskedReport, out: &mut dyn Write) -> std::io::Result<()> {
        let (p, limit) = (&masked.perplexity, self.limit(Figure::PseudoPpl));
        let (value, stderr, tokens) = (p.value, p.stderr, plural(p.tokens as u64, "masked token"));
        writeln!(out, "pseudo-ppl    {value:.4} ± {stderr:.4} over {tokens}{limit}")?;
        let Some(d) = &masked.divergence else { return Ok(()) };
        let (kld, delta) = (&d.kld, &d.delta_ln_ppl);
        let limit = self.limit(Figure::MaskedKld);
        writeln!(out, "              divergence {:.6} ± {:.6}{limit}", kld.mean, kld.stderr)?;
        let limit = self.limit(Figure::MaskedTop1);
        writeln!(out, "              same first choice {:.2} %{limit}", 100.0 * d.top1_agreement)?;
        let baseline = d.baseline_ppl;
        writeln!(out, "              Δ ln {:.6} ± {:.6} (baseline {baseline:.4})", delta.value, delta.stderr)
    }

    /// Returns the limit of a figure, to be printed after it.
    fn limit(&self, figure: Figure) -> String {
        let line = self.report.limits.iter().find(|line| line.figure == figure);
        let most = if figure.row().better == Better::Less { "most" } else { "least" };
        line.map(|line| format!("   (allowed: at {most} {})", figure.show(line.limit))).unwrap_or_default()
    }
}

/// Prints the number of tensors that are as expected; with details, also the tensors with an error, the worst first.
fn print_weights(weights: &WeightReport, has_details: bool, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "weights       {}", weights.summary())?;
    let mut worst: Vec<_> = weights.tensors.iter().filter(|tensor| tensor.error != 0.0).collect();
    worst.sort_by(|a, b| b.error.total_cmp(&a.error));
    if !has_details || worst.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("type", Align::Left),
        ("error", Align::Right),
        ("of its type", Align::Right),
        ("ratio", Align::Right),
    ]);
    for tensor in worst {
        let figures = [tensor.error, tensor.own_error].map(|error| format!("{error:.4}"));
        let [error, own] = figures;
        table.row([
            escape(&tensor.name).into_owned(),
            tensor.ty.to_string(),
            error,
            own,
            format!("{:.2}", tensor.ratio),
        ]);
    }
    table.print(out)
}

fn prompts(report: &Report) -> Table {
    let heads = [
        ("prompt", Align::Right),
        ("perplexity", Align::Right),
        ("±", Align::Right),
        ("tokens", Align::Right),
    ];
    let mut table = Table::new(&heads);
    for prompt in &report.prompts {
        let Some(p) = &prompt.perplexity else { continue };
        table.row([
            prompt.prompt.to_string(),
            format!("{:.4}", p.value),
            format!("{:.4}", p.stderr),
            p.tokens.to_string(),
        ]);
    }
    table
}

/// Prints one report in full; of several the findings, then a row each. `has_failed` is true if others could not be judged.
pub(super) fn print(
    entries: &[ModelReport],
    has_failed: bool,
    out: &mut dyn Write,
    detail: Detail,
) -> std::io::Result<()> {
    if let ([entry], false) = (entries, has_failed) {
        return entry.print(out, detail);
    }
    let named = entries.iter().map(|entry| {
        let name = entry.path.display().to_string();
        (escape(&name).into_owned(), &entry.report)
    });
    reasons::print_all(named, detail, out)?;
    if let Some(table) = file_rows::table(entries) {
        table.print(out)?;
        writeln!(out)?;
    }
    overview::table(entries).print(out)?;
    pairs::print(&pairs::pairs(report::scored(entries)), out)?;
    reasons::print_verdict(report::verdict(entries, has_failed), out)
}
