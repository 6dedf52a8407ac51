//! How verdicts are shown: one file in full, several as a table.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};

use crate::cli::render::{Align, Cell, Style, Table, styled};
use crate::cli::verify::file_rows;
use crate::core::text;
use crate::core::text::escape;
use crate::verify::{Report, Severity, Verdict};

/// Prompts up to which each is shown by itself.
const MAX_PROMPTS: usize = 16;

/// How many prompts are shown, each in a row of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptRows {
    /// All if there are few, else none.
    Few,
    All,
}

/// The colour of a verdict.
fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Pass => Style::Good,
        Verdict::Partial => Style::Doubtful,
        Verdict::Fail => Style::Bad,
    }
}

/// A file and its verdict.
pub(super) struct ModelReport {
    /// As it was given.
    pub(super) path: PathBuf,
    /// Bytes of all parts; unknown for a checkpoint.
    pub(super) size_bytes: Option<u64>,
    /// What the file says that it is (`Q4_K_M`).
    pub(super) file_type: Option<String>,
    /// The verdict.
    pub(super) report: Report,
}

impl ModelReport {
    fn to_json(&self) -> Json {
        let mut map = Map::new();
        map.insert("file".to_owned(), json!(self.path.display().to_string()));
        map.insert("size_bytes".to_owned(), json!(self.size_bytes));
        map.insert("type".to_owned(), json!(self.file_type));
        if let Json::Object(report) = self.report.to_json() {
            map.extend(report);
        }
        Json::Object(map)
    }

    fn findings(&self, out: &mut dyn Write, prefix: &str) -> std::io::Result<()> {
        for finding in &self.report.findings {
            let tensor =
                finding.tensor.as_ref().map(|name| format!(" `{}`", escape(name))).unwrap_or_default();
            let (severity, check) = (finding.severity.name(), finding.check);
            writeln!(out, "{prefix}{severity:<9} {check}:{tensor} {}", finding.message)?;
        }
        Ok(())
    }

    fn print(&self, out: &mut dyn Write, rows: PromptRows) -> std::io::Result<()> {
        let report = &self.report;
        self.findings(out, "")?;
        if let Some(p) = &report.perplexity {
            writeln!(out, "perplexity    {:.4} ± {:.4} over {} tokens", p.value, p.stderr, p.tokens)?;
        }
        if let Some(bits) = report.bits_per_byte {
            writeln!(out, "bits per byte {bits:.4}")?;
        }
        let limit = match rows {
            PromptRows::Few => MAX_PROMPTS,
            PromptRows::All => usize::MAX,
        };
        if (2..=limit).contains(&report.prompts.len()) {
            prompts(report).print(out)?;
        }
        if let Some(table) = file_rows::table(std::slice::from_ref(self)) {
            table.print(out)?;
        }
        if let Some(d) = &report.divergence {
            let mean = &d.mean;
            writeln!(
                out,
                "divergence    mean {:.6} ± {:.6}, median {:.6}",
                mean.value, mean.stderr, d.median
            )?;
            writeln!(out, "              99 % {:.6}, 99.9 % {:.6}, max {:.6}", d.p99, d.p999, d.max)?;
            writeln!(out, "same choice   {:.3} %", 100.0 * d.top1_agreement)?;
            writeln!(out, "rms Δp        {:.3} %", 100.0 * d.rms_dp)?;
            let delta = &d.delta_ln_ppl;
            writeln!(
                out,
                "Δ ln(PPL)     {:.6} ± {:.6} (baseline {:.4})",
                delta.value, delta.stderr, d.baseline_ppl
            )?;
            for (worst, context) in d.worst.iter().zip(report.contexts.iter()) {
                writeln!(out, "  {:.4} prompt {} token {}: …{context}", worst.kld, worst.prompt, worst.at)?;
            }
        }
        if let Some(speed) = report.tokens_per_second {
            writeln!(out, "speed         {speed:.0} tokens/s")?;
        }
        let unchecked = report.findings.iter().filter(|f| f.severity == Severity::Unchecked).count();
        let rest = if unchecked > 0 { format!(" ({unchecked} not judged)") } else { String::new() };
        writeln!(out, "verdict       {}{rest}", styled(style(report.verdict), report.verdict.name()))
    }
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

/// The worst of all verdicts.
pub(super) fn verdict(entries: &[ModelReport]) -> Verdict {
    entries.iter().map(|entry| entry.report.verdict).max().unwrap_or(Verdict::Pass)
}

/// One report as it is; several under `models`, with the worst verdict.
pub(super) fn to_json(entries: &[ModelReport]) -> Json {
    match entries {
        [entry] => entry.to_json(),
        _ => json!({
            "verdict": verdict(entries).name(),
            "models": entries.iter().map(ModelReport::to_json).collect::<Vec<_>>(),
        }),
    }
}

/// One report in full; of several the findings, then a row each.
pub(super) fn print(entries: &[ModelReport], out: &mut dyn Write, rows: PromptRows) -> std::io::Result<()> {
    if let [entry] = entries {
        return entry.print(out, rows);
    }
    for entry in entries {
        let name = entry.path.display().to_string();
        entry.findings(out, &format!("{}: ", escape(&name)))?;
    }
    let has_reference = entries.iter().any(|entry| entry.report.divergence.is_some());
    let mut heads = vec![
        ("file", Align::Left),
        ("type", Align::Left),
        ("size", Align::Right),
        ("bits/weight", Align::Right),
        ("perplexity", Align::Right),
    ];
    if has_reference {
        heads.extend([
            ("Δ ppl", Align::Right),
            ("mean KLD", Align::Right),
            ("99 % KLD", Align::Right),
            ("same choice", Align::Right),
        ]);
    }
    heads.push(("verdict", Align::Left));
    let mut table = Table::new(&heads);
    for entry in entries {
        let report = &entry.report;
        let file = entry.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let mut row = vec![
            escape(&file.unwrap_or_else(|| entry.path.display().to_string())).into_owned(),
            entry.file_type.as_deref().map(|name| escape(name).into_owned()).unwrap_or_default(),
            entry.size_bytes.map(text::bytes).unwrap_or_default(),
            report.bits_per_weight.map(|bits| format!("{bits:.2}")).unwrap_or_default(),
            report.perplexity.as_ref().map(|p| format!("{:.4}", p.value)).unwrap_or_default(),
        ];
        if has_reference {
            row.extend(match &report.divergence {
                Some(d) => [
                    format!("{:+.2} %", 100.0 * d.delta_ln_ppl.value.exp_m1()),
                    format!("{:.6}", d.mean.value),
                    format!("{:.6}", d.p99),
                    format!("{:.2} %", 100.0 * d.top1_agreement),
                ],
                None => Default::default(),
            });
        }
        let verdict = Cell::styled(style(report.verdict), report.verdict.name());
        table.row(row.into_iter().map(Cell::from).chain([verdict]));
    }
    table.print(out)?;
    match file_rows::table(entries) {
        Some(table) => {
            writeln!(out)?;
            table.print(out)
        }
        None => Ok(()),
    }
}
