//! The runner: one layer after the other as the plan describes it, over batches of chunks.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::core::progress::Progress;
use crate::engine::EngineError;
use crate::engine::ops::ffn::FfnInputs;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::rope::RopeTables;
use crate::engine::ops::stream_mix::MixRows;
use crate::engine::plan::{BranchEnd, GraphPlan, LayerPlan, Mixer, Norm, Wiring};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::{Buffer, Buffers};
use crate::engine::run::carried::Carried;
use crate::engine::run::observer::Observer;
use crate::engine::run::past::Past;
use crate::engine::run::timings::Clock;
use crate::engine::run::weights::{LoadedNorm, WeightReader};
use crate::engine::run::workers::Workers;

/// What the operations of a run share.
pub(crate) struct Runner<'a> {
    pub(crate) plan: &'a GraphPlan,
    pub(crate) weights: WeightReader<'a>,
    pub(crate) workers: &'a Workers,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) observer: Option<&'a dyn Observer>,
    pub(crate) ropes: RopeTables,
    pub(crate) clock: &'a Clock,
    pub(crate) layer: AtomicUsize,
    /// Final states of the encoder, of all chunks.
    pub(crate) memory: Buffer,
    pub(crate) buffers: Buffers,
    pub(crate) carried: Carried,
    /// What came before the chunks, of a run that goes on step by step.
    pub(crate) past: Option<&'a Past>,
}

impl Runner<'_> {
    /// A buffer of `len` values, whatever they are.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        self.buffers.take(len)
    }

    pub(crate) fn give<const N: usize>(&self, buffers: [Buffer; N]) {
        self.buffers.give(buffers);
    }

    pub(crate) fn give_some(&self, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer {
            self.give([buffer]);
        }
    }

    /// The rows of `x` normed into `out`, or as they are.
    fn norm_or_copy(&self, norm: Option<&LoadedNorm>, x: &[f32], out: &mut [f32]) {
        match norm {
            Some(norm) => self.norm_rows(norm, x, out, self.plan.n_embd),
            None => out.copy_from_slice(x),
        }
    }

    /// What a branch reads instead of the stream, if there is a score for it.
    fn mixed(
        &self,
        score: Option<&Norm>,
        batch: &ChunkBatch,
        rows: MixRows,
        x: &[f32],
    ) -> Result<Option<Buffer>, EngineError> {
        score.map(|score| self.mix_streams(score, batch, rows, x)).transpose()
    }

    /// Shows the observer what the output of a branch will be added to.
    fn observe_branch(&self, end: Option<BranchEnd<'_>>, factor: f32, stream: &[f32]) {
        if let (Some(observer), Some(end)) = (self.observer, end) {
            observer.branch(end.matrix, factor * end.factor, stream);
        }
    }

    pub(crate) fn slot(&self, name: &str, x: &[f32], n_cols: usize) {
        if let Some(observer) = self.observer {
            observer.slot(self.layer.load(Ordering::Relaxed), name, x, n_cols);
        }
    }

    /// Runs one layer over a batch; `x` is the residual stream, `[n_tokens, n_embd]`, or several of them. If not all
    /// rows are wanted, those that are come to its front.
    pub(crate) fn layer(
        &self,
        layer: &LayerPlan,
        batch: &ChunkBatch,
        x: &mut [f32],
    ) -> Result<(), EngineError> {
        if let Some(entry) = layer.extras.entry {
            self.enter_stack(entry, batch, x);
        }
        if let Some(connections) = &layer.connections {
            return self.hyper_layer(layer, connections, batch, x);
        }
        match (&self.plan.altup, &layer.extras.altup) {
            (Some(altup), Some(own)) => self.altup_layer((altup, own), layer, batch, x),
            _ if layer.wiring == Wiring::PostLn => self.post_ln_layer(layer, batch, x),
            _ => self.plain_layer(layer, batch, x),
        }
    }

    /// Runs a layer over its one stream.
    pub(crate) fn plain_layer(
        &self,
        layer: &LayerPlan,
        batch: &ChunkBatch,
        x: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_embd = self.plan.n_embd;
        // With normed wiring the stream goes on from the scaled normed inputs, and the branches are added as they are.
        let is_normed = layer.wiring == Wiring::Normed;
        let rho = if is_normed { 1.0 } else { layer.residual_scale };
        let load = |norm: &Option<Norm>| norm.as_ref().map(|norm| self.weights.norm(norm)).transpose();
        let (pre_mixer, post_mixer) = (load(&layer.pre_mixer)?, load(&layer.post_mixer)?);
        let (pre_ffn, post_ffn) = (load(&layer.pre_ffn)?, load(&layer.post_ffn)?);
        let mut mixer_input = self.take(x.len());
        let mixed = self.mixed(layer.mix.as_ref().map(|mix| &mix.mixer), batch, MixRows::All, x)?;
        self.norm_or_copy(pre_mixer.as_ref(), mixed.as_deref().unwrap_or(x), &mut mixer_input);
        self.give_some(mixed);
        self.slot("mixer_input", &mixer_input, n_embd);
        let begins = layer.mix.as_ref().is_some_and(|mix| mix.keeps);
        if begins {
            self.carried.keep_stream(batch.start, x);
        }
        let x = batch.gather(x, n_embd);
        let entry = layer.needs_entry().then(|| {
            let mut entry = self.take(x.len());
            entry.copy_from_slice(x);
            entry
        });
        let mut branch = self.take(x.len());
        let mut ffn_input = self.take(x.len());
        // With parallel wiring the feed-forward reads the layer's input too.
        if layer.wiring == Wiring::Parallel {
            match &pre_ffn {
                Some(norm) => self.norm_rows(norm, x, &mut ffn_input, n_embd),
                None => ffn_input.copy_from_slice(&batch.select(&mixer_input, n_embd)),
            }
        }
        if begins {
            // The stream goes on with what the mixer makes.
            x.fill(0.0);
        }
        self.observe_branch(layer.mixer_end(), rho, x);
        if self.mixer(&layer.mixer, batch, &mixer_input, &mut branch)? {
            self.slot("mixer", &branch, n_embd);
            if is_normed {
                self.restart(x, &batch.select(&mixer_input, n_embd), layer.residual_scale);
            }
            self.add_rows(x, &mut branch, post_mixer.as_ref(), rho, n_embd);
        }
        if let Some(laurel) = &layer.extras.laurel {
            self.laurel(laurel, &batch.select(&mixer_input, n_embd), x)?;
        }
        if let Some(cross) = &layer.cross {
            self.norm_rows(&self.weights.norm(&cross.norm)?, x, &mut ffn_input, n_embd);
            self.cross_attention(&cross.attention, batch, &ffn_input, &mut branch)?;
            self.slot("cross", &branch, n_embd);
            self.add_rows(x, &mut branch, None, rho, n_embd);
        }
        if layer.wiring != Wiring::Parallel {
            let mixed = self.mixed(layer.mix.as_ref().map(|mix| &mix.ffn), batch, MixRows::Wanted, x)?;
            self.norm_or_copy(pre_ffn.as_ref(), mixed.as_deref().unwrap_or(x), &mut ffn_input);
            self.give_some(mixed);
            self.slot("ffn_input", &ffn_input, n_embd);
            if is_normed {
                self.restart(x, &ffn_input, layer.residual_scale);
            }
        }
        self.give([mixer_input]);
        self.observe_branch(layer.ffn_end(), rho, x);
        let inputs = FfnInputs { input: &ffn_input, stream: x, entry: entry.as_deref().unwrap_or_default() };
        self.ffn(&layer.ffn, batch, inputs, &mut branch)?;
        self.slot("ffn", &branch, n_embd);
        self.add_rows(x, &mut branch, post_ffn.as_ref(), rho, n_embd);
        math::scale_and_cap(self.weights.level, x, layer.rescale, None);
        self.give([ffn_input, branch]);
        self.give_some(entry);
        self.extras(&layer.extras, batch, x)?;
        self.slot("output", x, n_embd);
        Ok(())
    }

    /// The layer's mixer, of all rows of `x` into the wanted rows of `out`; false if it has none.
    pub(super) fn mixer(
        &self,
        mixer: &Mixer,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<bool, EngineError> {
        match mixer {
            Mixer::None => return Ok(false),
            Mixer::Linear(matrix) => {
                let rows = batch.select(x, matrix.n_cols);
                self.products(&rows, batch.n_wanted(), vec![Product::plain(matrix, out)])?;
            }
            Mixer::Attention(attention) => self.attention(attention, batch, x, out)?,
            Mixer::Mla(attention) => self.latent_attention(attention, batch, x, out)?,
            Mixer::Twin(twin) => {
                self.mixer(&twin.first, batch, x, out)?;
                let mut second = self.take(out.len());
                if self.mixer(&twin.second, batch, x, &mut second)? {
                    self.add_rows(out, &mut second, None, 1.0, twin.n_embd);
                }
                self.give([second]);
            }
            Mixer::Mamba(mamba) => self.mamba(mamba, batch, x, out)?,
            Mixer::Mamba2(mamba) => self.mamba2(mamba, batch, x, out)?,
            Mixer::Plamo2(plamo) => self.plamo2(plamo, batch, x, out)?,
            Mixer::ShortConv(conv) => self.shortconv(conv, batch, x, out)?,
            Mixer::DeltaNet(net) => self.delta_net(net, batch, x, out)?,
            Mixer::Compressed(attention) => self.compressed_attention(attention, batch, x, out)?,
            Mixer::Kda(kda) => self.kda(kda, batch, x, out)?,
            Mixer::Lightning(lightning) => self.lightning(lightning, batch, x, out)?,
            Mixer::Rwkv6(rwkv) => self.rwkv6(rwkv, batch, x, out)?,
            Mixer::Rwkv7(rwkv) => self.rwkv7(rwkv, batch, x, out)?,
        }
        Ok(true)
    }
}
