//! Reports for other programs: a table of figures (`--report FILE.csv`) and test cases (`--junit FILE`).

use std::fmt::Write;

use crate::cli::verify::page::data::{FileData, NOT_JUDGED, PageData, ReportReason};

/// Heads of the columns of a table.
pub(super) const HEADS: &str = "file,type,size_bytes,bits_per_weight,perplexity,perplexity_stderr,mean_kld,\
                                mean_kld_stderr,kld_99,same_first_choice,quality,verdict";

/// Returns a table with a row for each file; what was not measured is empty.
pub(super) fn csv(page: &PageData) -> String {
    let quoted = |text: &str| {
        // A cell that begins like a formula is text for a spreadsheet.
        let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_owned() };
        if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
    };
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let row = |file: &FileData| {
        let (p, d) = (file.perplexity.as_ref(), file.divergence.as_ref());
        [
            quoted(&file.file),
            quoted(file.file_type.as_deref().unwrap_or_default()),
            file.size_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
            number(file.bits_per_weight),
            number(p.map(|p| p.value)),
            number(p.map(|p| p.stderr)),
            number(d.map(|d| d.kld.mean)),
            number(d.map(|d| d.kld.stderr)),
            number(d.map(|d| d.kld.quantiles.p99)),
            number(d.map(|d| d.top1_agreement)),
            file.quality.unwrap_or_default().to_owned(),
            file.verdict.to_owned(),
        ]
        .join(",")
    };
    let rows: Vec<String> = std::iter::once(HEADS.to_owned()).chain(page.files.iter().map(row)).collect();
    rows.join("\n") + "\n"
}

/// Returns a test case for each file: it fails with the errors, and is skipped with the open questions of a partial
/// verdict.
pub(super) fn junit(page: &PageData) -> String {
    let count = |verdict| page.files.iter().filter(|file| file.verdict == verdict).count();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"gguf-verify\">\n<testsuite name=\"{}\" \
         tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\">\n",
        xml(&page.title),
        page.files.len(),
        count("fail"),
        count(NOT_JUDGED),
        count("partial"),
    );
    let line = |reason: &ReportReason| {
        let tensor = reason.tensor.as_ref().map(|tensor| format!(" {tensor}")).unwrap_or_default();
        format!("{}:{tensor} {}", reason.check, reason.message)
    };
    for file in &page.files {
        let _ = write!(out, "<testcase classname=\"gguf-verify\" name=\"{}\">", xml(&file.file));
        let reasons: Vec<String> = file.reasons.iter().map(line).collect();
        let text = xml(&reasons.join("\n"));
        let answer = xml(&file.answer);
        let _ = match file.verdict {
            "fail" => write!(out, "<failure message=\"{answer}\">{text}</failure>"),
            NOT_JUDGED => write!(out, "<error message=\"{answer}\">{text}</error>"),
            "partial" => write!(out, "<skipped message=\"{answer}\"/>"),
            _ => Ok(()),
        };
        out.push_str("</testcase>\n");
    }
    out + "</testsuite>\n</testsuites>\n"
}

fn xml(text: &str) -> String {
    let pairs = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;")];
    let escaped = |c: char| {
        pairs.iter().find(|(own, _)| *own == c).map_or(c.to_string(), |(_, text)| (*text).to_owned())
    };
    text.chars().map(escaped).collect()
}
