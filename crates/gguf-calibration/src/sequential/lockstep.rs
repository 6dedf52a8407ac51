//! Two runs of one model in lockstep: the unquantized run hands over its values where the quantized run needs them.
//! Only one of the two computes at a time.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use gguf_core::TensorSource;
use gguf_core::sync::Unpoisoned;
use gguf_engine::{Buffer, BufferPool, Engine, Matrix, Observer};
use gguf_verification::SumCollector;

/// Experts that each token is routed to, with their factors.
pub(super) type Routes = Vec<Vec<(usize, f32)>>;

/// Values that the unquantized run hands over.
pub(super) enum LockstepEvent {
    /// Rows that matrices are multiplied with; empty if no matrix is to be solved.
    Inputs(Buffer),
    /// Stream to which a branch will be added.
    Branch(Buffer),
    /// Choices of a router.
    Routes(Routes),
}

/// Unquantized run's end of the link.
pub(super) struct LeaderEnd {
    events: SyncSender<LockstepEvent>,
    go: Mutex<Receiver<()>>,
}

/// Quantized run's end of the link.
pub(super) struct FollowerEnd {
    events: Mutex<Receiver<LockstepEvent>>,
    go: SyncSender<()>,
}

pub(super) fn link() -> (LeaderEnd, FollowerEnd) {
    let (events, to_come) = sync_channel(1);
    let (go, may_go) = sync_channel(1);
    let leading = LeaderEnd { events, go: Mutex::new(may_go) };
    (leading, FollowerEnd { events: Mutex::new(to_come), go })
}

impl LeaderEnd {
    /// Hands an event over and waits until the other run reaches the next one. Returns false if the other run ended
    /// early.
    fn hand(&self, event: LockstepEvent) -> bool {
        if self.events.send(event).is_err() {
            return false;
        }
        // If the other run ended normally, there is nothing to wait for.
        let _ = self.go.lock().unpoisoned().recv();
        true
    }
}

impl FollowerEnd {
    /// Event for the place that this run has reached; `None` if the other run has ended.
    pub(super) fn next(&self, is_first: bool) -> Option<LockstepEvent> {
        if !is_first {
            let _ = self.go.send(());
        }
        self.events.lock().unpoisoned().recv().ok()
    }
}

/// Observer of the unquantized run that also collects its importance sums.
pub(super) struct Leader<'a> {
    pub(super) link: LeaderEnd,
    pub(super) engine: &'a Engine<'a>,
    /// Buffers for rows that are handed over; the other run gives them back.
    pub(super) buffers: &'a BufferPool,
    pub(super) sums: SumCollector,
    /// True for tensors that change their type.
    pub(super) is_target: &'a (dyn Fn(usize) -> bool + Sync),
    pub(super) is_stopped: AtomicBool,
}

impl Leader<'_> {
    fn hand(&self, event: impl FnOnce() -> LockstepEvent) {
        if !self.is_stopped.load(Ordering::Relaxed) && !self.link.hand(event()) {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Copy of rows to hand over; empty if the other run does not need them.
    fn copy(&self, is_wanted: bool, x: &[f32]) -> Buffer {
        if is_wanted { self.engine.install(|| self.buffers.copy(x)) } else { Buffer::default() }
    }
}

impl Observer for Leader<'_> {
    fn inputs(&self, source: &dyn TensorSource, matrices: &[&Matrix], x: &[f32]) {
        self.engine.install(|| matrices.iter().for_each(|matrix| self.sums.input(source, matrix, x)));
        let is_wanted = matrices.iter().any(|matrix| (self.is_target)(matrix.tensor));
        self.hand(|| LockstepEvent::Inputs(self.copy(is_wanted, x)));
    }

    fn routes(&self, routes: &mut [Vec<(usize, f32)>]) {
        self.hand(|| LockstepEvent::Routes(routes.to_vec()));
    }

    fn branch(&self, matrix: &Matrix, _: f32, stream: &[f32]) {
        let is_wanted = (self.is_target)(matrix.tensor);
        self.hand(|| LockstepEvent::Branch(self.copy(is_wanted, stream)));
    }

    fn leave(&self, _: usize) -> ControlFlow<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
