//! HTML page: one file without scripts that makes a browser fetch nothing.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::value::Serde;
use minijinja::{Value as Jinja, context};
use serde::Serialize;

use super::data::{FileData, PageData, TensorError};
use super::{charts, render};

/// Maximum number of cells of a map. No model has more, and no browser would show them.
const MAX_CELLS: usize = 20_000;

pub(super) fn render(page: &PageData) -> anyhow::Result<String> {
    let mut environment = render::environment();
    environment.add_template("style.css", include_str!("style.css"))?;
    environment.add_template("file.html", include_str!("file.html"))?;
    environment.add_template("page.html", include_str!("page.html"))?;
    let histograms: Vec<_> =
        page.files.iter().enumerate().map(|(at, file)| charts::histogram(at, file)).collect();
    let maps: Vec<Option<Map<'_>>> = page.files.iter().map(Map::of).collect();
    let rendered = environment.get_template("page.html")?.render(context! {
        page => Jinja::from(Serde(page)),
        size_chart => Jinja::from(Serde(charts::size_against_kld(&charts::points(&page.files)))),
        quantile_chart => Jinja::from(Serde(charts::quantiles(&page.files))),
        histograms => Jinja::from(Serde(histograms)),
        maps => Jinja::from(Serde(maps)),
    })?;
    Ok(rendered)
}

/// Map of a file's tensors: a row for each layer, a column for each role.
#[derive(Debug, Serialize)]
struct Map<'a> {
    roles: Vec<&'a str>,
    rows: Vec<LayerRow<'a>>,
    /// Tensors that belong to no layer.
    others: Vec<TensorCell<'a>>,
    reproduced: usize,
    tensors: usize,
}

#[derive(Debug, Serialize)]
struct LayerRow<'a> {
    layer: u32,
    cells: Vec<Option<TensorCell<'a>>>,
}

#[derive(Debug, Serialize)]
struct TensorCell<'a> {
    tensor: &'a TensorError,
    /// Grade of the error: 0 (as good as possible) to 5 (damaged).
    level: u8,
}

impl<'a> TensorCell<'a> {
    fn of(tensor: &'a TensorError) -> Self {
        let level = match (tensor.reproduced, tensor.ratio) {
            (true, _) => 0,
            _ if tensor.is_damaged => 5,
            (false, None) => 1,
            (false, Some(ratio)) => match ratio {
                ratio if ratio <= 1.05 => 1,
                ratio if ratio <= 1.25 => 2,
                ratio if ratio <= 1.6 => 3,
                ratio if ratio <= 2.5 => 4,
                // Also NaN.
                _ => 5,
            },
        };
        Self { tensor, level }
    }
}

impl<'a> Map<'a> {
    fn of(file: &'a FileData) -> Option<Self> {
        if file.weights.is_empty() {
            return None;
        }
        let (mut roles, mut layers): (Vec<&str>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for tensor in &file.weights {
            let Some(layer) = tensor.layer else { continue };
            layers.push(layer);
            if seen.insert(&tensor.role) {
                roles.push(&tensor.role);
            }
        }
        layers.sort_unstable();
        layers.dedup();
        if layers.len().saturating_mul(roles.len()) > MAX_CELLS {
            return None;
        }
        let known: BTreeMap<(u32, &str), &TensorError> =
            file.weights.iter().filter_map(|t| Some(((t.layer?, t.role.as_str()), t))).collect();
        let cell = |layer: u32, role: &str| known.get(&(layer, role)).copied().map(TensorCell::of);
        let row =
            |&layer: &u32| LayerRow { layer, cells: roles.iter().map(|role| cell(layer, role)).collect() };
        Some(Self {
            rows: layers.iter().map(row).collect(),
            others: file.weights.iter().filter(|tensor| tensor.layer.is_none()).map(TensorCell::of).collect(),
            reproduced: file.weights.iter().filter(|tensor| tensor.reproduced).count(),
            tensors: file.weights.len(),
            roles,
        })
    }
}
