//! A subset of a source's weights, or all of them, under other names.

use std::sync::Arc;

use gguf_core::{SourceError, WeightMeta, WeightSource};

/// Weights of another source: a subset, or all under other names.
pub struct SelectedWeights {
    base: Arc<dyn WeightSource + Send>,
    metas: Vec<WeightMeta>,
    /// Index into `base` of each weight.
    places: Vec<usize>,
}

impl SelectedWeights {
    /// Selects the weights whose names satisfy `keeps`.
    pub fn only(base: Arc<dyn WeightSource + Send>, keeps: impl Fn(&str) -> bool) -> Self {
        let all = base.weights().iter().enumerate().filter(|(_, meta)| keeps(&meta.name));
        let (places, metas) = all.map(|(at, meta)| (at, meta.clone())).unzip();
        Self { base, metas, places }
    }

    /// Selects the weights for which `name` returns a name, under that name.
    pub fn mapped(base: Arc<dyn WeightSource + Send>, name: impl Fn(&str) -> Option<String>) -> Self {
        let all = base.weights().iter().enumerate();
        let named =
            all.filter_map(|(at, meta)| Some((at, WeightMeta { name: name(&meta.name)?, ..meta.clone() })));
        let (places, metas) = named.unzip();
        Self { base, metas, places }
    }

    /// Selects all weights, renamed by `name`.
    pub fn renamed(base: Arc<dyn WeightSource + Send>, name: impl Fn(&str) -> String) -> Self {
        let rename = |meta: &WeightMeta| WeightMeta { name: name(&meta.name), ..meta.clone() };
        let metas: Vec<WeightMeta> = base.weights().iter().map(rename).collect();
        let places = (0..metas.len()).collect();
        Self { base, metas, places }
    }

    /// Returns all weights under other names, and in shapes of as many elements.
    pub fn reshaped(
        base: Arc<dyn WeightSource + Send>,
        original: impl Fn(&WeightMeta) -> WeightMeta,
    ) -> Self {
        let metas: Vec<WeightMeta> = base.weights().iter().map(original).collect();
        let places = (0..metas.len()).collect();
        Self { base, metas, places }
    }
}

impl WeightSource for SelectedWeights {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.base.read_elems(self.places[weight], first, out)
    }

    fn origin(&self, weight: usize) -> Option<(&dyn WeightSource, usize)> {
        Some((&*self.base, self.places[weight]))
    }
}
