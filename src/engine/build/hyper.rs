//! Builds hyper-connections: which of their two forms a file has follows from the tensors present.

use crate::arch::graph::ResidualRule;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{
    Connection, GatedStreams, LayerConnections, Ngrams, Norm, Streams, StreamsEnd, StreamsWrite,
    WeighedStreams,
};

/// More rounds of normalizing rows and columns than any model has.
const MOST_ITERATIONS: usize = 1000;
/// More streams than any model has.
const MOST_STREAMS: usize = 256;

impl Builder<'_> {
    fn has_streams(&self) -> bool {
        self.features.residual == ResidualRule::Hyper
    }

    /// Number of streams, and the width of all together.
    fn stream_widths(&self) -> Result<(usize, usize), EngineError> {
        let key = "hyper_connection.count";
        let n = self.keys.need_count(key)?;
        match n.checked_mul(self.n_embd) {
            Some(width) if (2..=MOST_STREAMS).contains(&n) => Ok((n, width)),
            _ => Err(self.keys.unknown(key, "from 2 to 256", &n.to_string())),
        }
    }

    /// The streams of the model, if it has several.
    pub(super) fn streams(&mut self) -> Result<Option<Streams>, EngineError> {
        if !self.has_streams() {
            return Ok(None);
        }
        let (n, width) = self.stream_widths()?;
        let has_any =
            |parts: [&str; 3]| parts.iter().any(|part| self.tensors.has(&format!("output_hc_{part}.weight")));
        let end = if has_any(["down", "up", "norm"]) {
            StreamsEnd::Read(Box::new(Connection::Gated(self.gated_streams(
                "output_hc",
                (n, width),
                false,
            )?)))
        } else if has_any(["fn", "base", "scale"]) {
            let read = self.weighed_streams("output_hc", (n, width), n, 1, StreamsWrite::None)?;
            StreamsEnd::Read(Box::new(Connection::Weighed(read)))
        } else {
            StreamsEnd::Mean
        };
        Ok(Some(Streams { n, end }))
    }

    /// What n-grams add to the streams before a layer, if there are several.
    pub(super) fn stream_ngrams(&mut self, layer: usize) -> Result<Option<Box<Ngrams>>, EngineError> {
        if !self.has_streams() {
            return Ok(None);
        }
        let (n, _) = self.stream_widths()?;
        self.ngrams(layer, n)
    }

    /// The connections of a layer's branches, if the model has several streams.
    pub(super) fn connections(&mut self, layer: usize) -> Result<Option<Box<LayerConnections>>, EngineError> {
        if !self.has_streams() {
            return Ok(None);
        }
        let mixer = self.connection(&format!("blk.{layer}.hc_attn"))?;
        let ffn = self.connection(&format!("blk.{layer}.hc_ffn"))?;
        if mixer.norms() != ffn.norms() {
            let tensors =
                vec![format!("blk.{layer}.hc_attn_down.weight"), format!("blk.{layer}.hc_ffn_fn.weight")];
            return Err(EngineError::LeftOver { tensors });
        }
        Ok(Some(Box::new(LayerConnections { mixer, ffn })))
    }

    fn connection(&mut self, name: &str) -> Result<Connection, EngineError> {
        let (n, width) = self.stream_widths()?;
        if self.tensors.has(&format!("{name}_down.weight")) {
            return self.gated_streams(name, (n, width), true).map(Connection::Gated);
        }
        // Without rows for a matrix the streams stay apart.
        let tensor = format!("{name}_fn.weight");
        let n_rows = self.tensors.shape(&tensor).map(crate::core::Shape::n_rows);
        let n_rows = n_rows.ok_or(EngineError::MissingTensor { tensor })?;
        let n_mixed = 2 * n + n * n;
        let (n_weights, write) = if n_rows == 2 * n as u64 {
            (2 * n, StreamsWrite::Add { magnitude: self.magnitude()?, eps: self.connection_eps()? })
        } else {
            if n_rows != n_mixed as u64 {
                self.tensors.need_matrix(&format!("{name}_fn"), n_mixed, width)?;
            }
            (n_mixed, StreamsWrite::Mix { iterations: self.sinkhorn_iterations()? })
        };
        let n_scales = if n_weights == 2 * n { 2 } else { 3 };
        self.weighed_streams(name, (n, width), n_weights, n_scales, write).map(Connection::Weighed)
    }

    fn weighed_streams(
        &mut self,
        name: &str,
        (_, width): (usize, usize),
        n_weights: usize,
        n_scales: usize,
        write: StreamsWrite,
    ) -> Result<WeighedStreams, EngineError> {
        Ok(WeighedStreams {
            norm: self.free_norm(),
            matrix: self.tensors.need_matrix(&format!("{name}_fn"), n_weights, width)?,
            base: self.need_vector(&format!("{name}_base.weight"), n_weights)?,
            scale: self.need_vector(&format!("{name}_scale.weight"), n_scales)?,
            eps: self.connection_eps()?,
            write,
        })
    }

    fn gated_streams(
        &mut self,
        name: &str,
        (n, width): (usize, usize),
        writes: bool,
    ) -> Result<GatedStreams, EngineError> {
        let rank = self.keys.need_count("hyper_connection.low_rank")?;
        let weight = self.need_vector(&format!("{name}_norm.weight"), width)?;
        let inject =
            writes.then(|| self.tensors.need_matrix(&format!("{name}_inject"), n, width)).transpose()?;
        Ok(GatedStreams {
            norm: Norm { weight: Some(weight), ..self.free_norm() },
            down: self.tensors.need_matrix(&format!("{name}_down"), rank, width)?,
            up: self.tensors.need_matrix(&format!("{name}_up"), width, rank)?,
            inject,
        })
    }

    fn connection_eps(&self) -> Result<f32, EngineError> {
        let key = "hyper_connection.epsilon";
        self.keys.number(key)?.map(|eps| eps as f32).ok_or_else(|| self.keys.missing(key))
    }

    fn magnitude(&self) -> Result<f32, EngineError> {
        let key = "hyper_connection.magnitude";
        self.keys.number(key)?.map(|magnitude| magnitude as f32).ok_or_else(|| self.keys.missing(key))
    }

    fn sinkhorn_iterations(&self) -> Result<usize, EngineError> {
        let key = "hyper_connection.sinkhorn_iterations";
        let n = self.keys.need_count(key)?;
        if n > MOST_ITERATIONS {
            return Err(self.keys.unknown(key, "at most 1000", &n.to_string()));
        }
        Ok(n)
    }
}
