//! Reports of a job to its caller: progress, remarks, the plan of a run.

use std::io;

use crate::core::progress::{CancelFlag, Progress, Silent};
use crate::job::{JobPlan, Remark};

/// Receiver of the reports of a job. Everything but the progress may be ignored.
pub trait Events {
    /// Returns the receiver of progress and warnings, which also tells whether to stop.
    fn progress(&self) -> &dyn Progress;

    /// Receives an oddity of the input; by default it becomes a warning.
    fn oddity(&self, text: &str) {
        self.progress().warn(text);
    }

    /// Receives a remark; by default it becomes a warning with all its names.
    fn remark(&self, remark: &Remark) {
        self.progress().warn(&remark.to_string());
    }

    /// Receives a fact that is no warning.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// Receives a detail, such as the reason why a tensor of the checkpoint is left out.
    fn detail(&self, text: &str) {
        let _ = text;
    }

    /// Receives the plan of a run before it writes. A run whose types are measured on a text reports a plan when they
    /// are chosen.
    fn planned(&self, plan: &JobPlan) -> io::Result<()> {
        let _ = plan;
        Ok(())
    }
}

impl Events for Silent {
    fn progress(&self) -> &dyn Progress {
        self
    }
}

impl Events for CancelFlag {
    fn progress(&self) -> &dyn Progress {
        self
    }
}
