//! Files compared with one another over the same tokens: the error of a difference is smaller than that of each figure.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::cli::verify::names::distinct_names;
use crate::core::text::escape;
use crate::core::written::as_path;
use crate::verify::Position;

/// Comparison of a file with the next worse one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Pair<'a> {
    /// File with the lower figure.
    #[serde(serialize_with = "as_path")]
    better: &'a Path,
    /// File with the next higher figure.
    #[serde(serialize_with = "as_path")]
    worse: &'a Path,
    /// Mean difference in nats per token: of the divergences, or of the losses without a baseline.
    by: f64,
    /// Standard error of the mean difference, over the same tokens.
    stderr: f64,
}

/// Returns the divergence of each scored token, or its loss without a baseline.
pub(super) fn losses(positions: &[Position]) -> Vec<f64> {
    let scored = positions.iter().filter(|position| position.is_scored);
    scored.map(|position| position.reference.map_or(position.score.nll, |reference| reference.kld)).collect()
}

/// Compares each file with the next worse one; files of other tokens, or with a figure that is no number, are left out.
pub(super) fn pairs<'a>(files: impl Iterator<Item = (&'a Path, &'a [f64])>) -> Vec<Pair<'a>> {
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let mut ranked: Vec<(f64, &Path, &[f64])> =
        files.map(|(path, losses)| (mean(losses), path, losses)).collect();
    ranked.retain(|(mean, _, losses)| losses.len() > 1 && mean.is_finite());
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let pair = |two: &[(f64, &'a Path, &'a [f64])]| {
        let &[(_, better, low), (_, worse, high)] = two else { return None };
        let n = low.len();
        (high.len() == n).then_some(())?;
        let differences: Vec<f64> = high.iter().zip(low).map(|(a, b)| a - b).collect();
        let by = mean(&differences);
        let squares: f64 = differences.iter().map(|value| (value - by).powi(2)).sum();
        Some(Pair { better, worse, by, stderr: (squares / (n - 1) as f64 / n as f64).sqrt() })
    };
    ranked.windows(2).filter_map(pair).collect()
}

pub(super) fn print(pairs: &[Pair<'_>], out: &mut dyn Write) -> std::io::Result<()> {
    let paths: Vec<&Path> = pairs.iter().flat_map(|pair| [pair.better, pair.worse]).collect();
    let names = distinct_names(&paths);
    for (&Pair { by, stderr, .. }, names) in pairs.iter().zip(names.chunks(2)) {
        let [better, worse] = names else { continue };
        let (better, worse) = (escape(better), escape(worse));
        if by > stderr {
            writeln!(out, "{better} is better than {worse} by {by:.4} ± {stderr:.4} over the same tokens")?;
        } else {
            writeln!(out, "{better} and {worse} do not differ over the same tokens: {by:.4} ± {stderr:.4}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs<'a>(files: &[(&'a str, &'a [f64])]) -> Vec<Pair<'a>> {
        super::pairs(files.iter().map(|(name, losses)| (Path::new(*name), *losses)))
    }

    #[test]
    fn neighbours_are_compared_token_by_token() {
        let files: [(&'static str, &'static [f64]); 5] = [
            ("worst", &[0.5, 0.7, 0.9]),
            ("best", &[0.1, 0.2, 0.3]),
            ("other text", &[0.2, 0.3]),
            ("broken", &[f64::NAN, 0.3, 0.1]),
            ("not run", &[]),
        ];
        let found = pairs(&files[..2]);
        assert_eq!((found[0].better, found[0].worse), (Path::new("best"), Path::new("worst")));
        assert!((found[0].by - 0.5).abs() < 1e-12);
        // Differences of 0.4, 0.5 and 0.6: the error of their mean is 0.1 / sqrt(3), that of either figure twice it.
        assert!((found[0].stderr - 0.1 / 3f64.sqrt()).abs() < 1e-12);
        assert!(pairs(&files).is_empty(), "the file between them has other tokens");
        assert!(pairs(&files[3..]).is_empty());
        let mut text = Vec::new();
        print(&found, &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text.clone()).unwrap(),
            "best is better than worst by 0.5000 ± 0.0577 over the same tokens\n"
        );
        let same_name = [("q.gguf", &[0.1, 0.2][..]), ("old/q.gguf", &[0.3, 0.3])];
        text.clear();
        print(&pairs(&same_name), &mut text).unwrap();
        assert!(String::from_utf8(text.clone()).unwrap().starts_with("q.gguf is better than old/q.gguf by"));
        // Differences of 0.1, -0.1 and 0.03: within their error.
        let alike = [("a", &[0.1, 0.3, 0.2][..]), ("b", &[0.2, 0.2, 0.23])];
        text.clear();
        print(&pairs(&alike), &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text.clone()).unwrap(),
            "a and b do not differ over the same tokens: 0.0100 ± 0.0586\n"
        );
    }
}
