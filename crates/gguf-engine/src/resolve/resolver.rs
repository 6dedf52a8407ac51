//! State shared by everything that resolves a graph: features, keys, tensors, and the results so far.

use crate::exec::rope::Rope;
use crate::exec::weights::{Matrix, Norm, NormFormula, Vector};
use crate::resolve::features::BuiltFeatures;
use crate::resolve::keys::ArchKeys;
use crate::resolve::tensors::TensorClaims;
use crate::{EngineError, Result};
use gguf_arch::graph::{Cap, CapName, GraphFeatures, NormKind, ResidualRule};
use gguf_core::Shape;

const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";

const LAYER_EPS: &str = "attention.layer_norm_epsilon";

/// State that operations share while they are resolved.
pub(crate) struct Resolver<'a> {
    pub(crate) features: &'a GraphFeatures,
    /// Features of the card, narrowed to the values that the engine implements.
    pub(crate) built: BuiltFeatures,
    pub(crate) keys: &'a ArchKeys<'a>,
    pub(crate) tensors: TensorClaims<'a>,
    pub(crate) n_embd: usize,
    pub(crate) n_layers: usize,
    pub(crate) eps: f32,
    pub(crate) residual_scale: f32,
    pub(crate) ropes: Vec<Rope>,
    /// Length of the longest chunk that every layer so far supports.
    pub(crate) chunk_limit: Option<usize>,
    pub(crate) warnings: Vec<String>,
}

impl Resolver<'_> {
    /// Returns the formula of the residual stream's norms.
    pub(crate) fn formula(&self) -> NormFormula {
        match self.features.norm {
            NormKind::RmsByKey if self.keys.nonzero(RMS_EPS).ok().flatten().is_some() => NormFormula::Rms,
            NormKind::Rms | NormKind::RmsFree => NormFormula::Rms,
            NormKind::RmsByKey | NormKind::Layer | NormKind::LayerFree => NormFormula::Layer,
        }
    }

    /// Reads the epsilon of the norms from the card's keys, else from the key of the formula, else from that of the
    /// other.
    pub(crate) fn norm_eps(&mut self) -> Result<f32> {
        let implied = match self.formula() {
            NormFormula::Rms => [RMS_EPS, LAYER_EPS],
            NormFormula::Layer => [LAYER_EPS, RMS_EPS],
        };
        let named: Vec<&str> = self.features.norms.eps.iter().map(String::as_str).collect();
        let keys = if named.is_empty() { &implied[..] } else { &named[..] };
        for (at, key) in keys.iter().enumerate() {
            if let Some(eps) = self.keys.number(key)? {
                if at > 0 && named.is_empty() {
                    // Some converters write the other norm's key; the number means the same.
                    self.warnings.push(format!(
                        "`{}` is used in place of `{}`",
                        self.keys.key(key),
                        self.keys.key(keys[0])
                    ));
                }
                return Ok(eps as f32);
            }
        }
        Err(EngineError::MissingKey { key: self.keys.key(keys[0]) })
    }

    /// Claims a norm of the residual stream that is required (or has no tensors by its kind).
    pub(crate) fn need_norm(&mut self, name: &str) -> Result<Norm> {
        if matches!(self.features.norm, NormKind::RmsFree | NormKind::LayerFree) {
            return Ok(Norm { formula: self.formula(), weight: None, bias: None, eps: self.eps });
        }
        self.need_norm_of(name, self.n_embd)
    }

    /// Claims a norm of the residual stream, if its tensor exists.
    pub(crate) fn norm(&mut self, name: &str) -> Result<Option<Norm>> {
        self.tensors.norm(name, self.n_embd, self.formula(), self.eps)
    }

    /// Claims a matrix of the stream's width with as many rows as its tensor has.
    pub(crate) fn stream_matrix(&mut self, name: &str) -> Result<Matrix> {
        let n_rows = self.n_rows(name)?;
        self.tensors.need_matrix(name, n_rows, self.n_embd)
    }

    /// Claims the first row of a matrix of the stream's width, if the matrix exists.
    pub(crate) fn first_row(&mut self, name: &str) -> Result<Option<Vector>> {
        if !self.tensors.has(&format!("{name}.weight")) {
            return Ok(None);
        }
        let matrix = self.stream_matrix(name)?;
        Ok(Some(Vector { tensor: matrix.tensor, first: 0, len: self.n_embd }))
    }

    /// Returns a soft cap: the file's key if the card allows one, else the card's number.
    pub(crate) fn cap(&self, cap: Cap, key: &str) -> Result<Option<f32>> {
        let found = self.keys.nonzero(key)?.map(|v| v as f32);
        Ok(match cap {
            Cap::Named(CapName::Off) => None,
            Cap::Named(CapName::Key) => found,
            Cap::Number(default) => Some(found.unwrap_or(default as f32)),
        })
    }

    /// Returns an RMS norm without weight or bias.
    pub(crate) fn free_norm(&self) -> Norm {
        Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: self.eps }
    }

    /// Claims a vector that is required.
    pub(crate) fn need_vector(&mut self, name: &str, len: usize) -> Result<Vector> {
        let found = self.tensors.vector(name, len)?;
        found.ok_or_else(|| EngineError::MissingTensor { tensor: name.to_owned() })
    }

    /// Claims a matrix and cuts its rows into consecutive matrices of `n_rows` each.
    pub(crate) fn cut<const N: usize>(
        &mut self,
        name: &str,
        n_rows: [usize; N],
        n_cols: usize,
    ) -> Result<[Matrix; N]> {
        let total = n_rows.iter().fold(0usize, |sum, &n| sum.saturating_add(n));
        let all = self.tensors.need_matrix(name, total, n_cols)?;
        let mut first = 0;
        Ok(n_rows.map(|n| {
            let part = all.rows(first, n);
            first += n;
            part
        }))
    }

    /// Claims a norm of rows of `len`, with the formula of the residual stream's norms.
    pub(crate) fn norm_of(&mut self, name: &str, len: usize) -> Result<Option<Norm>> {
        self.tensors.norm(name, len, self.formula(), self.eps)
    }

    /// Claims a required norm of rows of `len`, as [`Resolver::norm_of`].
    pub(crate) fn need_norm_of(&mut self, name: &str, len: usize) -> Result<Norm> {
        self.tensors.need_norm(name, len, self.formula(), self.eps)
    }

    /// Claims a required RMS norm of rows of `len`.
    pub(crate) fn need_rms_norm(&mut self, name: &str, len: usize) -> Result<Norm> {
        self.tensors.need_norm(name, len, NormFormula::Rms, self.eps)
    }

    /// Reads a count that must divide `whole`.
    pub(crate) fn divisor(&self, name: &str, whole: usize) -> Result<usize> {
        let n = self.keys.need_count(name)?;
        if whole.is_multiple_of(n) {
            return Ok(n);
        }
        Err(self.keys.unknown(
            name,
            "a divisor of what it divides",
            &format!("{n}, which does not divide {whole}"),
        ))
    }

    /// Returns true if every layer has only one branch.
    pub(crate) fn is_single(&self) -> bool {
        self.features.residual == ResidualRule::Single
    }

    /// Returns the input width of the matrices `name.weight`.
    pub(crate) fn n_cols(&self, name: &str) -> Result<usize> {
        self.dimension(name, Shape::n_cols)
    }

    /// Returns the number of rows of the matrix `name.weight`.
    pub(crate) fn n_rows(&self, name: &str) -> Result<usize> {
        self.dimension(name, Shape::n_rows)
    }

    fn dimension(&self, name: &str, of: impl Fn(&Shape) -> u64) -> Result<usize> {
        let tensor = format!("{name}.weight");
        match self.tensors.shape(&tensor) {
            Some(shape) => Ok(usize::try_from(of(shape)).unwrap_or(usize::MAX)),
            None => Err(EngineError::MissingTensor { tensor }),
        }
    }

    /// Returns the number of heads of a layer that has no key-value heads.
    pub(crate) fn state_heads(&self, layer: usize) -> Result<usize> {
        let key = "attention.head_count";
        let found = self.keys.layer_count(key, layer)?.filter(|&n| n > 0);
        found.ok_or_else(|| self.keys.missing(key))
    }
}
