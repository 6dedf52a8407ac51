//! `--against`: an earlier report, than which no file may be worse.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::cli::verify::report::ModelReport;
use crate::core::text::escape;
use crate::verify::{Check, Estimate, Finding};

const CHECK: Check = Check::Against;

/// Report of an earlier run.
pub(super) struct Earlier {
    path: PathBuf,
    models: Vec<Json>,
}

impl Earlier {
    /// Reads what `--json` printed or `--report FILE.json` wrote, of this version or of one that wrote a single file
    /// without a list.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = || escape(&path.to_string_lossy()).into_owned();
        let text = crate::core::input::read_to_string(path)?;
        let mut report: Json = serde_json::from_str(&text).unwrap_or_default();
        let models = match report.get_mut("models").map(Json::take) {
            Some(Json::Array(models)) => models,
            _ if report.get("verdict").is_some() && report.get("file").is_some() => vec![report],
            _ => anyhow::bail!(
                "{}: no report of gguf-verify: expected what `--json` prints or `--report FILE.json` writes",
                name()
            ),
        };
        Ok(Self { path: path.to_owned(), models })
    }

    /// Compares a file with its earlier report: the one of the same file name, or the only one of a single file.
    pub(super) fn findings(&self, entry: &ModelReport, is_alone: bool) -> Vec<Finding> {
        let named = |model: &&Json| {
            let path = model["file"].as_str().map(Path::new).and_then(Path::file_name);
            path.is_some() && path == entry.path.file_name()
        };
        let only = match self.models.as_slice() {
            [one] if is_alone => Some(one),
            _ => None,
        };
        let shown = escape(&self.path.to_string_lossy()).into_owned();
        let Some(old) = self.models.iter().find(named).or(only) else {
            let name = entry.path.file_name().unwrap_or(OsStr::new("")).to_string_lossy();
            let message = format!("`{shown}` has no file named `{}`", escape(&name));
            return vec![Finding::unchecked(CHECK, message)];
        };
        let now = &entry.report;
        let perplexity = now.perplexity.as_ref();
        let (tokens, ids) = (old["perplexity"]["tokens"].as_u64(), old["perplexity"]["ids_digest"].as_u64());
        let is_same_text = perplexity.is_some_and(|own| {
            let own_ids = own.ids_digest.map(u64::from);
            tokens == Some(own.tokens as u64) && (ids.is_none() || own_ids.is_none() || ids == own_ids)
        });
        let figures = [
            (
                "mean KLD",
                now.divergence.as_ref().map(|own| own.kld.estimate()),
                estimate(&old["kld"], "mean"),
            ),
            (
                "perplexity",
                perplexity.map(|own| Estimate { value: own.value, stderr: own.stderr }),
                estimate(&old["perplexity"], "value"),
            ),
        ];
        let Some((name, now, then)) = figures
            .into_iter()
            .find_map(|(name, now, then)| Some((name, now?, then?)))
            .filter(|_| is_same_text)
        else {
            let message = format!("not compared with `{shown}`: it is of another text, or has other figures");
            return vec![Finding::unchecked(CHECK, message)];
        };
        let (by, error) = (now.value - then.value, now.stderr.hypot(then.stderr));
        if by <= error {
            return Vec::new();
        }
        let message = format!(
            "worse than in `{shown}`: {name} {:.4} ± {:.4}, then {:.4} ± {:.4}",
            now.value, now.stderr, then.value, then.stderr
        );
        vec![Finding::error(CHECK, message)]
    }
}

/// Returns a figure of a report with its error.
fn estimate(figure: &Json, key: &str) -> Option<Estimate> {
    Some(Estimate { value: figure[key].as_f64()?, stderr: figure["stderr"].as_f64()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Perplexity, Report, Severity, Thresholds};

    fn entry(name: &str, value: f64) -> ModelReport {
        let mut report = Report::new(None, None, Thresholds::default());
        report.perplexity =
            Some(Perplexity { value, stderr: 0.3, tokens: 100, ids_digest: None, total_nll: 0.0 });
        ModelReport::new(name.into(), report, Vec::new())
    }

    #[test]
    fn worse_by_more_than_the_error_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let open = |text: &str| {
            let path = dir.path().join("old.json");
            fs_err::write(&path, text).unwrap();
            Earlier::open(&path)
        };
        let old = r#"{"file": "x/a.gguf", "verdict": "pass", "perplexity": {"value": 10.0, "stderr": 0.4, "tokens": 100}}"#;
        let marked = old.replace("\"tokens\": 100", "\"tokens\": 100, \"ids_digest\": 5");
        for text in
            [old.to_owned(), marked, format!(r#"{{"verdict": "pass", "models": [{old}], "run": {{}}}}"#)]
        {
            let old = open(&text).unwrap();
            let found = |entry: &ModelReport, is_alone| {
                let found = old.findings(entry, is_alone);
                found.first().map(|finding| (finding.severity, finding.message.clone()))
            };
            // The error of the difference is 0.5.
            assert_eq!(found(&entry("a.gguf", 10.5), true), None);
            let (severity, message) = found(&entry("a.gguf", 10.6), true).unwrap();
            assert_eq!(severity, Severity::Error);
            assert!(message.ends_with("perplexity 10.6000 ± 0.3000, then 10.0000 ± 0.4000"), "{message}");
            assert_eq!(found(&entry("a.gguf", 9.0), true), None);
            // Another name: the only file of the report, unless there are several now.
            assert_eq!(found(&entry("b.gguf", 10.6), true).unwrap().0, Severity::Error);
            assert_eq!(found(&entry("b.gguf", 10.6), false).unwrap().0, Severity::Unchecked);
            let mut other = entry("a.gguf", 10.6);
            other.report.perplexity.as_mut().unwrap().tokens = 99;
            assert_eq!(found(&other, true).unwrap().0, Severity::Unchecked, "another text");
            let mut other = entry("a.gguf", 10.6);
            other.report.perplexity.as_mut().unwrap().ids_digest = Some(7);
            let is_told = !text.contains("ids_digest");
            assert_eq!(
                found(&other, true).unwrap().0,
                if is_told { Severity::Error } else { Severity::Unchecked }
            );
        }
        for text in ["{}", "[]", "{\"models\": 1}", "no JSON"] {
            assert!(open(text).is_err(), "{text}");
        }
    }
}
