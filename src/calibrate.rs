//! What a model's own activations say about its weights: calibration text, and the second moments of every matrix's input.
//!
//! [`TextSource::read`] reads one kind of text, [`CalibrationText::new`] shares the tokens out and holds a part back,
//! [`SelfText`] lets the model write text of its own, [`CalibrationText::with_self`] puts it beside, [`CalibrationRun`] runs the model once and hands out the [`LayerMoments`] of one layer after the other, with the
//! importance sums at the end. [`WorkFolder`] keeps what a run has done, so that it can go on after an interrupt. [`StatisticsWriter`] keeps them in a directory, [`Statistics`] reads them back. `solve` is
//! all of `gguf-quantize --calibrate`: the run, the solver, and the check against the importance matrix.

mod attempts;
mod collector;
mod costs;
mod error;
mod fidelity;
mod groups;
mod importance;
mod matrices;
mod memory;
mod moments;
mod outlook;
mod run;
mod sampler;
mod sequential;
mod solved;
mod solver;
mod store;
mod text;
mod types;
mod work;

pub use collector::Wanted;
pub use costs::{MeasureOptions, measure_costs};
pub use error::CalibrateError;
pub use fidelity::{Fidelity, FidelityOptions, Judged, Keep, Solver, Trial, WORTH_IT, solve};
pub use importance::{ImportanceSums, total_importance};
pub use memory::Needs;
pub use moments::{
    Layer, LayerMoments, LayerSums, MatrixName, MeanMoments, MomentSums, Moments, SharedInput,
};
pub use outlook::Outlook;
pub use run::{BatchRange, CalibrateOptions, CalibrationRun};
pub use sampler::{SelfText, WrittenText};
pub use solved::SolvedBlocks;
pub use solver::{NotSolved, SolverOptions};
pub use store::{
    CombinedStatistics, PartWriter, Statistics, StatisticsError, StatisticsKind, StatisticsPart,
    StatisticsWriter, combine_statistics,
};
pub use text::{CalibrationText, CheckText, SELF_NAME, TextKind, TextOptions, TextSource};
pub use types::{ChosenTypes, TypesOptions, choose_types, measure_mix};
pub use work::{SelfTextKeeper, WorkError, WorkFolder};
