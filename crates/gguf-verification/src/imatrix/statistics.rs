//! Statistics of an importance matrix: the figures of llama-imatrix's `--show-statistics`.

use std::collections::BTreeMap;

use gguf_format::{ColumnSums, ImatrixSums};
use serde::Serialize;

/// Highest mean square of a column that counts as inactive.
const INACTIVE: f32 = 1e-5;

/// Figures over the mean squares of a tensor's columns, for all experts that saw a token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorStatistics {
    /// Name of the tensor.
    pub name: String,
    /// Layer of the tensor; null if it is in none.
    pub layer: Option<usize>,
    /// Name within the layer: `ffn_down`.
    #[serde(rename = "tensor")]
    pub part: String,
    /// Σ(Act²): sum of the mean squares.
    #[serde(rename = "sum")]
    pub total: f32,
    /// Smallest mean square.
    pub min: f32,
    /// Largest mean square.
    pub max: f32,
    /// Mean μ of the mean squares.
    pub mean: f32,
    /// Standard deviation σ of the mean squares.
    pub stddev: f32,
    /// Share of columns with a mean square above 1e-5, 0 to 1.
    pub active: f32,
    /// Number of columns N, of all experts that saw a token.
    pub elements: usize,
    /// Entropy of the columns' shares of the sum, in bits.
    pub entropy: f32,
    /// Entropy divided by the largest possible one for this number of columns; null for a single column.
    pub entropy_norm: Option<f32>,
    /// Share of columns more than a standard deviation above the mean, 0 to 1.
    pub zd: f32,
    /// Cosine between the sums and those of the same tensor one layer before; null without such a tensor.
    pub cossim: Option<f32>,
    /// Number of experts; 1 for a tensor without experts.
    #[serde(rename = "matrices")]
    pub n_matrices: usize,
}

/// Means over the tensors of a layer, weighted by their columns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerStatistics {
    /// Layer number.
    pub layer: usize,
    /// μΣ(Act²): mean of the sums.
    #[serde(rename = "sum")]
    pub total: f32,
    /// μZD: mean of the shares of outstanding columns, 0 to 1.
    pub zd: f32,
    /// μCosSim: mean of the cosines; a tensor without one counts as 0.
    pub cossim: f32,
}

/// All figures of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct ImatrixStatistics {
    /// Tensors by name within the layer, then by descending sum.
    pub tensors: Vec<TensorStatistics>,
    /// Means of each layer.
    pub layers: Vec<LayerStatistics>,
    /// Tensors without figures, because no token reached them.
    pub unseen: Vec<String>,
}

/// Computes the figures of a matrix.
///
/// # Exactness
/// The formulas and the f32 sums, in the order of the columns, are those of llama-imatrix.
pub fn imatrix_statistics(sums: &ImatrixSums) -> ImatrixStatistics {
    let mut tensors = Vec::new();
    let mut unseen = Vec::new();
    for (name, columns) in &sums.tensors {
        match TensorStatistics::of(name, columns) {
            Some(mut statistics) => {
                statistics.cossim = before(name)
                    .and_then(|before| sums.tensors.get(&before))
                    .filter(|before| before.counts.iter().any(|&count| count > 0))
                    .and_then(|before| cosine(&before.sums, &columns.sums));
                tensors.push(statistics);
            }
            None => unseen.push(name.clone()),
        }
    }
    tensors.sort_by(|a, b| a.part.cmp(&b.part).then(b.total.total_cmp(&a.total)));
    let layers = layers(&tensors);
    ImatrixStatistics { tensors, layers, unseen }
}

/// Returns the layer of a tensor's name.
pub(super) fn layer_of(name: &str) -> Option<usize> {
    let mut words = name.split('.');
    words.find(|&word| word == "blk")?;
    words.next()?.parse().ok()
}

/// Returns the word before `weight`, otherwise the whole name.
fn part_of(name: &str) -> &str {
    let words: Vec<&str> = name.split('.').collect();
    let found = words.windows(2).find(|pair| pair[1] == "weight");
    found.map_or(name, |pair| pair[0])
}

/// Returns the name of the same tensor one layer before.
fn before(name: &str) -> Option<String> {
    let layer = layer_of(name)?;
    let before = layer.checked_sub(1)?;
    Some(name.replacen(&format!("blk.{layer}."), &format!("blk.{before}."), 1))
}

fn cosine(a: &[f64], b: &[f64]) -> Option<f32> {
    if a.len() != b.len() {
        return None;
    }
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).fold(0f32, |sum, (&a, &b)| sum + a as f32 * b as f32);
    let cosine = dot(a, b) / (dot(b, b).sqrt() * dot(a, a).sqrt());
    cosine.is_finite().then_some(cosine)
}

impl TensorStatistics {
    /// Computes the figures of a tensor, without its cosine; `None` if no token reached it.
    fn of(name: &str, columns: &ColumnSums) -> Option<Self> {
        let seen = columns.sums.chunks(columns.n_cols.max(1)).zip(&columns.counts).filter(|(_, n)| **n > 0);
        let means: Vec<f32> =
            seen.flat_map(|(sums, &n)| sums.iter().map(move |&sum| sum as f32 / n as f32)).collect();
        let n = means.len();
        let (&first, size) = (means.first()?, n as f32);
        // ref: sums in f32 in the order of the columns, and the variance as a difference. Kept.
        let total: f32 = means.iter().sum();
        let mean = total / size;
        let squares: f32 = means.iter().map(|mean| mean * mean).sum();
        let stddev = (squares / size - mean * mean).max(0.0).sqrt();
        let inactive = means.iter().filter(|mean| mean.abs() <= INACTIVE).count();
        let shares = means.iter().map(|mean| mean / total).filter(|&share| total > 0.0 && share > 0.0);
        let entropy = shares.fold(0f32, |entropy, share| entropy - share * share.log2());
        let outstanding = means.iter().filter(|&&x| stddev > 0.0 && (x - mean) / stddev > 1.0).count();
        Some(Self {
            name: name.to_owned(),
            layer: layer_of(name),
            part: part_of(name).to_owned(),
            total,
            min: means.iter().copied().fold(first, f32::min),
            max: means.iter().copied().fold(first, f32::max),
            mean,
            stddev,
            active: 1.0 - inactive as f32 / size,
            elements: n,
            entropy,
            entropy_norm: (n > 1).then(|| entropy / size.log2()),
            zd: outstanding as f32 / size,
            cossim: None,
            n_matrices: columns.counts.len(),
        })
    }
}

fn layers(tensors: &[TensorStatistics]) -> Vec<LayerStatistics> {
    /// Sums of figures, each multiplied by the number of columns.
    #[derive(Default)]
    struct WeightedFigures {
        total: f32,
        zd: f32,
        cossim: f32,
        n: usize,
    }
    let mut layers: BTreeMap<usize, WeightedFigures> = BTreeMap::new();
    for tensor in tensors {
        let Some(layer) = tensor.layer else { continue };
        let (weighted, n) = (layers.entry(layer).or_default(), tensor.elements as f32);
        weighted.total += n * tensor.total;
        weighted.zd += n * tensor.zd;
        weighted.cossim += n * tensor.cossim.unwrap_or(0.0);
        weighted.n += tensor.elements;
    }
    let figures = |(layer, w): (usize, WeightedFigures)| {
        let n = w.n as f32;
        LayerStatistics { layer, total: w.total / n, zd: w.zd / n, cossim: w.cossim / n }
    };
    layers.into_iter().map(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(tensors: &[(&str, &[f64], &[i64])]) -> ImatrixSums {
        let columns = |&(name, sums, counts): &(&str, &[f64], &[i64])| {
            let n_cols = sums.len() / counts.len();
            (name.to_owned(), ColumnSums { n_cols, sums: sums.to_vec(), counts: counts.to_vec() })
        };
        let tensors = tensors.iter().map(columns).collect();
        ImatrixSums { tensors, datasets: Vec::new(), n_chunks: 1, chunk_size: 4 }
    }

    #[test]
    fn figures_of_a_tensor() {
        let sums = matrix(&[("blk.0.ffn_up.weight", &[4.0, 4.0, 4.0, 20.0], &[4])]);
        let found = &imatrix_statistics(&sums).tensors[0];
        assert_eq!((found.total, found.min, found.max, found.mean), (8.0, 1.0, 5.0, 2.0));
        // Mean of squares 7, minus the square of the mean.
        assert_eq!((found.stddev, found.zd, found.active), (3f32.sqrt(), 0.25, 1.0));
        // Three eighths with 3 bits each, five eighths with log2(8/5).
        let entropy = 3.0 / 8.0 * 3.0 + 5.0 / 8.0 * (8f32 / 5.0).log2();
        assert!((found.entropy - entropy).abs() < 1e-6, "{found:?}");
        assert!((found.entropy_norm.unwrap() - entropy / 2.0).abs() < 1e-6);
        assert_eq!((found.layer, found.part.as_str(), found.cossim), (Some(0), "ffn_up", None));
    }

    #[test]
    fn experts_that_saw_nothing_do_not_count() {
        let sums = matrix(&[
            ("blk.3.ffn_up_exps.weight", &[2.0, 0.0, 9.0, 9.0], &[2, 0]),
            ("blk.3.ffn_down_exps.weight", &[0.0, 0.0], &[0, 0]),
        ]);
        let found = imatrix_statistics(&sums);
        assert_eq!(found.unseen, ["blk.3.ffn_down_exps.weight"]);
        assert_eq!((found.tensors[0].elements, found.tensors[0].active), (2, 0.5));
        assert_eq!((found.tensors[0].total, found.tensors[0].max), (1.0, 1.0));
    }

    #[test]
    fn layers_are_compared_with_the_one_before_and_averaged_by_columns() {
        let sums = matrix(&[
            ("blk.0.a.weight", &[1.0, 0.0], &[1]),
            ("blk.1.a.weight", &[1.0, 1.0], &[1]),
            ("blk.1.b.weight", &[3.0, 3.0, 3.0, 3.0], &[1]),
            ("output.weight", &[1.0, 1.0], &[1]),
        ]);
        let found = imatrix_statistics(&sums);
        let cossim = |name: &str| found.tensors.iter().find(|t| t.name == name).unwrap().cossim;
        assert!((cossim("blk.1.a.weight").unwrap() - 0.5f32.sqrt()).abs() < 1e-6);
        assert_eq!((cossim("blk.0.a.weight"), cossim("output.weight")), (None, None));
        assert_eq!(found.layers.len(), 2);
        assert_eq!(found.layers[1].total, (2.0 * 2.0 + 4.0 * 12.0) / 6.0);
        // By part, and within a part the largest sum first.
        let names: Vec<&str> = found.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["blk.1.a.weight", "blk.0.a.weight", "blk.1.b.weight", "output.weight"]);
    }

    #[test]
    fn names_of_any_kind_have_a_layer_and_a_part_or_none() {
        for (name, layer, part) in [
            ("blk.12.ffn_down_exps.weight", Some(12), "ffn_down_exps"),
            ("output.weight", None, "output"),
            ("blk.x.weight", None, "x"),
            ("blk", None, "blk"),
            ("weight", None, "weight"),
            ("", None, ""),
        ] {
            assert_eq!((layer_of(name), part_of(name)), (layer, part), "{name}");
        }
    }
}
