//! Two runs of one model, side by side: what the unquantized one computes is handed over at the very place where the
//! quantized one needs it. One of the two computes at a time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use crate::core::TensorSource;
use crate::engine::plan::Matrix;
use crate::engine::{Buffer, Buffers, Engine, Observer};
use crate::verify::SumCollector;

/// The experts that each token is sent to.
pub(super) type Routes = Vec<Vec<(usize, f32)>>;

/// What the unquantized run has come to.
pub(super) enum Event {
    /// Rows that matrices are multiplied with; none if no matrix is to be solved.
    Inputs(Buffer),
    /// The stream that a branch will be added to.
    Branch(Buffer),
    /// What a router chose.
    Routes(Routes),
}

/// The end of the unquantized run.
pub(super) struct Ahead {
    events: SyncSender<Event>,
    go: Mutex<Receiver<()>>,
}

/// The end of the quantized run.
pub(super) struct Behind {
    events: Mutex<Receiver<Event>>,
    go: SyncSender<()>,
}

/// Both ends.
pub(super) fn link() -> (Ahead, Behind) {
    let (events, to_come) = sync_channel(1);
    let (go, may_go) = sync_channel(1);
    let ahead = Ahead { events, go: Mutex::new(may_go) };
    (ahead, Behind { events: Mutex::new(to_come), go })
}

impl Ahead {
    /// Hands an event over and waits until the other run comes to the next one; false if it has ended early.
    fn hand(&self, event: Event) -> bool {
        if self.events.send(event).is_err() {
            return false;
        }
        // When the other run has ended the right way, nothing need be waited for.
        let _ = self.go.lock().unwrap_or_else(PoisonError::into_inner).recv();
        true
    }
}

impl Behind {
    /// The event that belongs to the place that this run has come to; `None` if the other run has ended.
    pub(super) fn next(&self, is_first: bool) -> Option<Event> {
        if !is_first {
            let _ = self.go.send(());
        }
        self.events.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }
}

/// Looks on while the unquantized model runs, and collects its importance sums.
pub(super) struct Leader<'a> {
    pub(super) ahead: Ahead,
    pub(super) engine: &'a Engine<'a>,
    /// For what is handed over; the other run gives it back.
    pub(super) buffers: &'a Buffers,
    pub(super) sums: SumCollector,
    /// True of tensors that are to be solved.
    pub(super) is_target: &'a (dyn Fn(usize) -> bool + Sync),
    pub(super) is_stopped: AtomicBool,
}

impl Leader<'_> {
    fn hand(&self, event: impl FnOnce() -> Event) {
        if !self.is_stopped.load(Ordering::Relaxed) && !self.ahead.hand(event()) {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Numbers to hand over, if the other run wants them.
    fn copy(&self, is_wanted: bool, x: &[f32]) -> Buffer {
        if is_wanted { self.engine.install(|| self.buffers.copy(x)) } else { Buffer::default() }
    }
}

impl Observer for Leader<'_> {
    fn inputs(&self, source: &dyn TensorSource, matrices: &[&Matrix], x: &[f32]) {
        self.engine.install(|| matrices.iter().for_each(|matrix| self.sums.input(source, matrix, x)));
        let is_wanted = matrices.iter().any(|matrix| (self.is_target)(matrix.tensor));
        self.hand(|| Event::Inputs(self.copy(is_wanted, x)));
    }

    fn routes(&self, _: &dyn TensorSource, _: &Matrix, routes: &mut [Vec<(usize, f32)>]) {
        self.hand(|| Event::Routes(routes.to_vec()));
    }

    fn branch(&self, matrix: &Matrix, _: f32, stream: &[f32]) {
        let is_wanted = (self.is_target)(matrix.tensor);
        self.hand(|| Event::Branch(self.copy(is_wanted, stream)));
    }

    fn leave(&self, _: usize) -> ControlFlow<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
