//! Rounding with error feedback: every column compensates for the errors of the columns before it.

use std::ops::Range;

use gguf_blocks::states::StateForm;
use gguf_core::simd::{SimdLevel, VectorLoop};

use crate::Metric;
use crate::lanes::{NearestCodes, add_scaled, errors, times};
use crate::panel::{Lane, Panel, ZERO, product_added};

/// Number of columns that are rounded before their errors are passed to the rest.
const BLOCK: usize = 64;

/// Buffers for the errors in the order of rounding.
pub(crate) struct Feedback {
    errors: Vec<Lane>,
    targets: Vec<Lane>,
}

impl Feedback {
    pub(crate) fn new(n_cols: usize) -> Self {
        Self { errors: vec![ZERO; n_cols], targets: vec![ZERO; BLOCK] }
    }

    /// Chooses the codes of a panel for its present scales; sets codes and errors.
    ///
    /// The target of a column is `w_k + Σ e_j M_jk` over the columns `j` before it. With errors relative to the
    /// original weights this is equivalent to GPTQ.
    pub(crate) fn round(&mut self, form: &StateForm, level: SimdLevel, metric: &Metric, panel: &mut Panel) {
        let order = metric.order();
        let codes = NearestCodes::new(form);
        for first in (0..order.len()).step_by(BLOCK) {
            let places = first..order.len().min(first + BLOCK);
            let targets = &mut self.targets[..places.len()];
            for (target, column) in targets.iter_mut().zip(&order[places.clone()]) {
                *target = panel.w[*column];
            }
            if first > 0 {
                let known = &self.errors[..first];
                product_added(targets, metric.feedback(places.clone()).columns(0..first), known);
            }
            let errors = &mut self.errors[places.clone()];
            level.vectorize(RoundBlock { form, codes: &codes, metric, panel, places, targets, errors });
        }
    }
}

/// Rounding of the columns of one block, one after the other.
struct RoundBlock<'a> {
    form: &'a StateForm,
    codes: &'a NearestCodes,
    metric: &'a Metric,
    panel: &'a mut Panel,
    places: Range<usize>,
    targets: &'a mut [Lane],
    errors: &'a mut [Lane],
}

impl VectorLoop for RoundBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let panel = self.panel;
        let feedback = self.metric.feedback(self.places.clone()).columns(self.places.clone());
        let columns = &self.metric.order()[self.places];
        for (index, (target, column)) in self.targets.iter_mut().zip(columns).enumerate() {
            for (known, coefficient) in self.errors[..index].iter().zip(feedback.row(index)) {
                add_scaled(target, known, *coefficient);
            }
            let (block, group) = (column / self.form.n_elems(), column / self.form.group);
            let step = times(&panel.d[block], &panel.scales[group]);
            let off = times(&panel.d_min[block], &panel.mins[group]);
            panel.v[*column] = self.codes.nearest_values(target, &step, &off);
            panel.e[*column] = errors(&panel.w[*column], &panel.v[*column], &step, &off);
            self.errors[index] = panel.e[*column];
        }
    }
}
