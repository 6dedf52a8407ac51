//! Calibration: weights rounded by what the model computes on a text.
//!
//! [`TextSource::read`] reads one kind of text. [`CalibrationText::new`] shares out the tokens and holds a part back.
//! [`SelfText`] lets the model write its own text, and [`CalibrationText::with_self`] adds it. [`WorkFolder`] keeps the
//! work of a run, so that it can resume after an interrupt. `solve` is all of `gguf-quantize --calibrate`: the run, the
//! solver, and the check against the importance matrix.

mod attempts;
mod costs;
mod error;
mod fidelity;
mod figures;
mod forecast;
mod importance;
mod journal;
mod matrices;
mod memory;
mod options;
mod outlook;
mod program;
mod promise;
mod sampler;
mod search;
mod sequential;
mod solved;
mod solver;
mod text;
mod tuned;
mod types;
mod work;

pub use error::CalibrateError;
pub(crate) use error::Result;
pub use fidelity::{Fidelity, Trial, solve, solving_steps};
pub use figures::HeldOutFigures;
pub use forecast::Forecast;
pub use memory::Needs;
pub use options::{FidelityOptions, Solver};
pub use outlook::Outlook;
pub use promise::{KeptPromise, PROMISE_ERRORS, TriedTypes, expected_types, keep_promise, most_candidates};
pub use sampler::{SelfText, WrittenText};
pub use solved::SolvedBlocks;
pub use solver::{NotSolved, SolverOptions};
pub use text::{CalibrationText, HeldOutText, SELF_NAME, TextKind, TextOptions, TextSource};
pub use types::{ChosenTypes, TypesOptions, choose_types, measure_mix};
pub use work::{WorkError, WorkFolder};
