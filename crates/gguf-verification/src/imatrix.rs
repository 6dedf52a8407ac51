//! Importance matrices: the mean square of every column of every matrix's input, collected while the model runs, and
//! statistics of such matrices.

mod collector;
mod coverage;
mod fingerprint;
mod importance_run;
mod statistics;

pub use collector::{ExactColumns, SumCollector};
pub use coverage::{ExpertCoverage, expert_coverage};
pub use fingerprint::Fingerprint;
pub use importance_run::{Collected, ImportanceOptions, ImportanceRun};
pub use statistics::{ImatrixStatistics, LayerStatistics, TensorStatistics, imatrix_statistics};
