//! `--trace`: the intermediates of one layer, a line each.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cli::Session;
use crate::engine::Observer;

/// Prints the intermediates of one layer to standard error, above the progress.
pub(super) struct Trace<'a> {
    layer: usize,
    session: &'a Session,
    has_printed: AtomicBool,
}

impl<'a> Trace<'a> {
    pub(super) fn new(layer: usize, session: &'a Session) -> Self {
        Self { layer, session, has_printed: AtomicBool::new(false) }
    }

    /// Returns a sentence if the model does not have the layer.
    pub(super) fn missed(&self) -> Option<String> {
        let missed = !self.has_printed.load(Ordering::Relaxed);
        missed.then(|| format!("nothing to trace: layer {} was not run", self.layer))
    }
}

impl Observer for Trace<'_> {
    fn slot(&self, layer: usize, name: &str, x: &[f32], n_cols: usize) {
        if layer != self.layer || x.is_empty() {
            return;
        }
        self.has_printed.store(true, Ordering::Relaxed);
        let n = x.len() as f64;
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let rms = (x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / n).sqrt();
        let first: Vec<String> = x.iter().take(4).map(|v| format!("{v:.6}")).collect();
        let n_rows = x.len() / n_cols.max(1);
        let first = first.join(" ");
        self.session.progress.suspend(|| {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(
                std::io::stderr().lock(),
                "layer {layer} {name}: {n_rows} x {n_cols}, mean {mean:.6e}, rms {rms:.6e}, first {first}"
            );
        });
    }
}
