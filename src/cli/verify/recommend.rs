//! Recommendations among several files: a phrase for each row of a report.

use crate::verify::{Quality, Verdict};

/// Figures that a recommendation depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FileFigures {
    pub(super) verdict: Verdict,
    pub(super) size_bytes: Option<u64>,
    pub(super) mean_kld: Option<f64>,
    pub(super) quality: Option<Quality>,
}

/// Returns a phrase for each of several files: the smallest very good one, the smallest good one, one that another file
/// beats at the same or a smaller size, one that is too poor. Empty if its size or divergence is unknown.
pub(super) fn recommend(files: &[FileFigures]) -> Vec<String> {
    let smallest = |least: Quality| {
        let fit = files.iter().enumerate().filter(|(_, file)| {
            file.verdict != Verdict::Fail && file.quality.is_some_and(|quality| quality <= least)
        });
        fit.min_by_key(|(_, file)| file.size_bytes.unwrap_or(u64::MAX)).map(|(at, _)| at)
    };
    let (best_value, small) = (smallest(Quality::VeryGood), smallest(Quality::Good));
    let word = |(at, file): (usize, &FileFigures)| {
        if file.verdict == Verdict::Fail {
            return "do not use".to_owned();
        }
        let (Some(size), Some(kld)) = (file.size_bytes, file.mean_kld) else { return String::new() };
        let is_beaten = files.iter().any(|other| {
            let (Some(other_size), Some(other_kld)) = (other.size_bytes, other.mean_kld) else {
                return false;
            };
            other.verdict != Verdict::Fail && other_size <= size && other_kld < kld
        });
        let text = match file.quality {
            _ if best_value == Some(at) => "recommended, the smallest that is very good",
            _ if small == Some(at) => "the smallest that is good",
            _ if is_beaten => "another file here is smaller and better",
            Some(Quality::NearLossless) => "where size does not matter",
            Some(Quality::Fair) => "only where memory is short",
            Some(Quality::Poor) => "too poor for most uses",
            _ => "",
        };
        text.to_owned()
    };
    if files.len() < 2 {
        vec![String::new(); files.len()]
    } else {
        files.iter().enumerate().map(word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_good_enough_file_is_recommended() {
        let file = |size: u64, kld: f64| FileFigures {
            verdict: Verdict::Pass,
            size_bytes: Some(size),
            mean_kld: Some(kld),
            quality: Some(Quality::of(kld, 0.99)),
        };
        let found = recommend(&[
            file(800, 0.001),
            file(500, 0.012),
            file(520, 0.04),
            file(400, 0.05),
            file(300, 0.1),
            file(200, 0.9),
        ]);
        assert_eq!(
            found,
            [
                "where size does not matter",
                "recommended, the smallest that is very good",
                "another file here is smaller and better",
                "the smallest that is good",
                "only where memory is short",
                "too poor for most uses",
            ]
        );
        let broken = FileFigures { verdict: Verdict::Fail, ..file(100, 0.001) };
        assert_eq!(recommend(&[broken, file(500, 0.012)])[0], "do not use");
        assert_eq!(recommend(&[file(1, 0.0)]), [""]);
        let unknown = FileFigures { size_bytes: None, ..file(1, 0.1) };
        assert_eq!(recommend(&[unknown, unknown]), ["", ""]);
    }
}
