//! Observers of routers: one counts, one records the choices of a baseline for a group of chunks.
//!
//! A router is called batch by batch in the order of tokens, so its records need no positions, and nothing depends on
//! threads.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::imatrix::layer_of;
use crate::routing::{LayerRouting, RoutingReport};
use gguf_core::TensorSource;
use gguf_core::sync::Unpoisoned;
use gguf_engine::{GraphPlan, Matrix, Moe, Observer};

/// Returns the routed experts of every layer that has some.
fn routers(plan: &GraphPlan) -> impl Iterator<Item = &Moe> {
    plan.layers.iter().filter_map(|layer| layer.ffn.moe())
}

/// Returns the bytes that a token's choices take in [`Choices`].
pub(crate) fn choice_bytes(plan: &GraphPlan) -> u64 {
    routers(plan).map(|moe| (moe.n_used * size_of::<u16>()) as u64).sum()
}

fn name_of(source: &dyn TensorSource, router: &Matrix) -> String {
    source.tensors().get(router.tensor).map(|meta| meta.name.clone()).unwrap_or_default()
}

/// Choices of one router for the tokens of a group.
#[derive(Clone, Debug, Default, PartialEq)]
struct RouterChoices {
    n_experts: usize,
    n_tokens: usize,
    /// Chosen experts, the same number for each token.
    experts: Vec<u16>,
}

impl RouterChoices {
    /// Returns the experts of a token; empty beyond the last token.
    fn of(&self, token: usize) -> &[u16] {
        let n_used = self.experts.len().checked_div(self.n_tokens).unwrap_or(0);
        self.experts.get(token * n_used..(token + 1) * n_used).unwrap_or_default()
    }
}

/// Choices of all routers for the tokens of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choices {
    routers: BTreeMap<String, RouterChoices>,
}

impl Choices {
    /// Appends the choices of some tokens of another group of the same model.
    pub(crate) fn append(&mut self, other: &Self, tokens: Range<usize>) {
        for (name, chosen) in &other.routers {
            let own = self.routers.entry(name.clone()).or_default();
            own.n_experts = chosen.n_experts;
            own.n_tokens += tokens.len();
            own.experts.extend(tokens.clone().flat_map(|token| chosen.of(token)));
        }
    }

    pub(crate) fn n_bytes(&self) -> u64 {
        self.routers.values().map(|chosen| size_of_val(chosen.experts.as_slice()) as u64).sum()
    }
}

/// Recorder of the choices of a group.
#[derive(Debug, Default)]
pub(crate) struct ChoiceRecorder {
    choices: Mutex<Choices>,
}

impl ChoiceRecorder {
    /// Creates a recorder if the model has routers.
    pub(crate) fn of(plan: &GraphPlan) -> Option<Self> {
        routers(plan).next().map(|_| Self::default())
    }

    pub(crate) fn into_choices(self) -> Choices {
        self.choices.into_inner().unpoisoned()
    }
}

impl Observer for ChoiceRecorder {
    fn routes(&self, source: &dyn TensorSource, router: &Matrix, routes: &mut [Vec<(usize, f32)>]) {
        // No format has so many experts; a baseline that had would not be compared.
        if router.n_rows > usize::from(u16::MAX) {
            return;
        }
        let mut choices = self.choices.lock().unpoisoned();
        let chosen = choices.routers.entry(name_of(source, router)).or_default();
        chosen.n_experts = router.n_rows;
        chosen.n_tokens += routes.len();
        chosen.experts.extend(routes.iter().flatten().map(|&(expert, _)| expert as u16));
    }

    fn wants_inputs(&self) -> bool {
        false
    }
}

/// Counts of a router over a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Tally {
    routed: u64,
    tokens: Vec<u64>,
    /// Choices that were compared with a baseline's, and those that were the same.
    compared: u64,
    same: u64,
}

/// Counter of the choices of a model's routers in a run.
#[derive(Debug, Default)]
pub(crate) struct RouteTally {
    routers: Mutex<BTreeMap<String, Tally>>,
}

impl RouteTally {
    /// Creates a counter if the model has routers.
    pub(crate) fn of(plan: &GraphPlan) -> Option<Self> {
        routers(plan).next().map(|_| Self::default())
    }

    pub(crate) fn into_counts(self) -> RouteCounts {
        RouteCounts(self.routers.into_inner().unpoisoned())
    }

    /// Returns the counts in the order of layers.
    pub(crate) fn into_report(self) -> RoutingReport {
        self.into_counts().into_report()
    }
}

/// Counts of a run, or of a share of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RouteCounts(BTreeMap<String, Tally>);

impl RouteCounts {
    /// Adds the counts of another share. The error names a router with different numbers of experts, or with counts in
    /// only one of the two.
    pub(crate) fn add(&mut self, other: &Self) -> Result<(), String> {
        if let Some(name) = other.0.keys().find(|name| !self.0.contains_key(*name)) {
            return Err(name.clone());
        }
        for (name, own) in &mut self.0 {
            let more = other.0.get(name).filter(|more| more.tokens.len() == own.tokens.len());
            let Some(more) = more else { return Err(name.clone()) };
            let sums = own.tokens.iter_mut().zip(&more.tokens);
            let rest = [
                (&mut own.routed, &more.routed),
                (&mut own.compared, &more.compared),
                (&mut own.same, &more.same),
            ];
            sums.chain(rest).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
        }
        Ok(())
    }

    /// Returns the counts in the order of layers.
    pub(crate) fn into_report(self) -> RoutingReport {
        let mut layers: Vec<LayerRouting> = self
            .0
            .into_iter()
            .map(|(router, tally)| {
                let agreement = (tally.compared > 0).then(|| tally.same as f64 / tally.compared as f64);
                LayerRouting::new(layer_of(&router), router, tally.routed, tally.tokens, agreement)
            })
            .collect();
        layers.sort_by_key(|routing| (routing.layer.is_none(), routing.layer));
        RoutingReport { layers }
    }
}

/// Observer that counts the choices of a group, and forwards to another observer.
pub(crate) struct RouteWatch<'a> {
    other: Option<&'a dyn Observer>,
    tally: &'a RouteTally,
    baseline: Option<&'a Choices>,
    /// Number of tokens of the group that each router has seen.
    seen: Mutex<BTreeMap<String, usize>>,
}

impl<'a> RouteWatch<'a> {
    pub(crate) fn new(
        tally: &'a RouteTally,
        baseline: Option<&'a Choices>,
        other: Option<&'a dyn Observer>,
    ) -> Self {
        Self { other, tally, baseline, seen: Mutex::default() }
    }
}

impl Observer for RouteWatch<'_> {
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        if let Some(other) = self.other {
            other.input(source, matrix, x);
        }
    }

    fn inputs(&self, source: &dyn TensorSource, matrices: &[&Matrix], x: &[f32]) {
        if let Some(other) = self.other {
            other.inputs(source, matrices, x);
        }
    }

    fn enter(&self, layer: usize, batch: usize) {
        if let Some(other) = self.other {
            other.enter(layer, batch);
        }
    }

    fn leave(&self, layer: usize) -> ControlFlow<()> {
        self.other.map_or(ControlFlow::Continue(()), |other| other.leave(layer))
    }

    fn routes(&self, source: &dyn TensorSource, router: &Matrix, routes: &mut [Vec<(usize, f32)>]) {
        if let Some(other) = self.other {
            other.routes(source, router, routes);
        }
        let name = name_of(source, router);
        let mut seen = self.seen.lock().unpoisoned();
        let seen = seen.entry(name.clone()).or_default();
        let chosen = self.baseline.and_then(|choices| choices.routers.get(&name));
        let chosen = chosen.filter(|chosen| chosen.n_experts == router.n_rows);
        let mut routers = self.tally.routers.lock().unpoisoned();
        let tally = routers.entry(name).or_default();
        tally.tokens.resize(router.n_rows, 0);
        tally.routed += routes.len() as u64;
        for (at, route) in routes.iter().enumerate() {
            let others = chosen.map(|chosen| chosen.of(*seen + at));
            for &(expert, _) in route {
                if let Some(n) = tally.tokens.get_mut(expert) {
                    *n += 1;
                }
                if let Some(others) = others {
                    tally.compared += 1;
                    tally.same += u64::from(others.iter().any(|&other| usize::from(other) == expert));
                }
            }
        }
        *seen += routes.len();
    }

    fn wants_inputs(&self) -> bool {
        self.other.is_some_and(Observer::wants_inputs)
    }

    fn slot(&self, layer: usize, name: &str, x: &[f32], n_cols: usize) {
        if let Some(other) = self.other {
            other.slot(layer, name, x, n_cols);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_testkit::memory::MemoryTensors;

    fn router(tensor: usize, n_rows: usize) -> Matrix {
        Matrix { tensor, first_row: 0, n_rows, n_cols: 1, bias: None, scale: None, expert: None }
    }

    fn routes(chosen: &[[usize; 2]]) -> Vec<Vec<(usize, f32)>> {
        chosen.iter().map(|experts| experts.iter().map(|&expert| (expert, 0.5)).collect()).collect()
    }

    #[test]
    fn choices_are_counted_and_compared_batch_by_batch() {
        let routers = ["blk.10.ffn_gate_inp.weight", "blk.2.ffn_gate_inp.weight"];
        let names = MemoryTensors::of_f32(&routers.map(|name| (name, &[4, 1][..], &[0.0; 4][..])));
        let recorder = ChoiceRecorder::default();
        recorder.routes(&names, &router(0, 4), &mut routes(&[[0, 1], [2, 3]]));
        recorder.routes(&names, &router(0, 4), &mut routes(&[[3, 0]]));
        let choices = recorder.into_choices();
        assert_eq!(choices.n_bytes(), 12);
        let mut joined = Choices::default();
        joined.append(&choices, 2..3);
        joined.append(&choices, 0..2);
        let joined = &joined.routers["blk.10.ffn_gate_inp.weight"];
        assert_eq!((joined.n_tokens, joined.experts.as_slice()), (3, &[3, 0, 0, 1, 2, 3][..]));
        let tally = RouteTally::default();
        for group in 0..2 {
            let watch = RouteWatch::new(&tally, Some(&choices).filter(|_| group == 0), None);
            // The same tokens in other batches: the order of a token's experts does not count.
            watch.routes(&names, &router(0, 4), &mut routes(&[[1, 0]]));
            watch.routes(&names, &router(0, 4), &mut routes(&[[2, 0], [1, 2]]));
            watch.routes(&names, &router(1, 3), &mut routes(&[[0, 1]]));
        }
        let report = tally.into_report();
        let [first, second] = &report.layers[..] else { panic!("{report:?}") };
        assert_eq!((first.layer, &first.tokens[..], first.agreement), (Some(2), &[2, 2, 0][..], None));
        assert_eq!((second.layer, &second.tokens[..]), (Some(10), &[4, 4, 4, 0][..]));
        // Only the first group has a baseline: three of six choices agree.
        assert_eq!((second.routed, second.agreement), (6, Some(0.5)));
    }
}
