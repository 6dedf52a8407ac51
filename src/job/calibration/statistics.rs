//! Statistics of the model and kept work of a calibration.

use crate::calibrate::{CalibrateError, CalibrationText, Statistics, WorkFolder};
use crate::core::output::NewDirectory;
use crate::job::calibration::{Calibration, GivenStatistics};
use crate::job::{Contradiction, Events, JobError};
use crate::verify::Model;

impl Calibration {
    /// Opens the given statistics, if any, and checks the folder in which new ones would be kept.
    ///
    /// # Errors
    /// A solver that does not use them; a folder that holds no statistics.
    pub(super) fn open_statistics(&self) -> Result<Option<Statistics>, JobError> {
        let option = if self.statistics.is_some() { "--stats" } else { "--save-stats" };
        let has_any = self.statistics.is_some() || self.save_statistics.is_some();
        if has_any && self.solver.follows() {
            let solver = self.solver.name();
            return Err(Contradiction::StatisticsOfFollower { option, solver }.into());
        }
        if let Some(path) = &self.save_statistics {
            // Statistics that this very run has kept before are compared once its text is known.
            if Statistics::open(path).is_err() {
                NewDirectory::of(path)?;
            }
        }
        let given = self.statistics.as_ref();
        let found = given.map(|given| Statistics::open(&given.path)).transpose();
        Ok(found.map_err(CalibrateError::from)?)
    }

    /// Checks existing statistics in the folder for new ones: those of another model are refused.
    ///
    /// # Errors
    /// The statistics are not of this model; a model that cannot be read.
    pub(super) fn check_saved(&self, model: &Model<'_>) -> Result<(), JobError> {
        let Some(path) = &self.save_statistics else { return Ok(()) };
        if let Ok(found) = Statistics::open(path)
            && found.check(model).is_err()
        {
            NewDirectory::of(path)?;
        }
        Ok(())
    }

    /// Returns the text of the given statistics. Its held-out part is used unless separate text is given.
    ///
    /// # Errors
    /// Statistics of another model; kinds of text that they do not have.
    pub(super) fn kept_text(
        &self,
        statistics: &Statistics,
        model: &Model<'_>,
    ) -> Result<CalibrationText, CalibrateError> {
        statistics.check(model)?;
        let kinds = self.statistics.as_ref().map(|GivenStatistics { kinds, .. }| kinds.as_slice());
        let mut text = CalibrationText::of_statistics(statistics, kinds.unwrap_or_default())?;
        if !self.held_out_texts.is_empty() {
            for kind in &mut text.kinds {
                kind.held_out.clear();
            }
        }
        Ok(text)
    }

    /// Opens the working folder, if one is given.
    pub(super) fn open_work(&self, sync: bool) -> Result<Option<WorkFolder>, CalibrateError> {
        let work = self.work_dir.as_ref().map(|path| WorkFolder::open(path, sync));
        Ok(work.transpose()?)
    }
}

/// Notes what is kept of a failed run, or clears what is no longer needed.
pub(super) fn end_work<T>(
    events: &dyn Events,
    work: Option<WorkFolder>,
    done: Result<T, JobError>,
) -> Result<T, JobError> {
    let Some(work) = work else { return done };
    match &done {
        Err(_) if work.is_begun() => events.note(&format!(
            "the work is kept in {}: the same command resumes from it",
            work.path().display()
        )),
        Err(_) => {}
        Ok(_) => {
            let path = work.path().to_owned();
            if let Err(error) = work.clear() {
                let text = format!("{}: the work is not needed any more: {error}", path.display());
                events.progress().warn(&text);
            }
        }
    }
    done
}
