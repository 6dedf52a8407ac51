//! Tensors of a file by name, each claimed by the plan or left over.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::exec::weights::{Matrix, Norm, NormFormula, Vector};
use crate::{EngineError, Result};
use gguf_core::{Shape, TensorMeta};

/// Tensors by name, with those that the plan has claimed.
pub(crate) struct TensorClaims<'a> {
    metas: &'a [TensorMeta],
    index: HashMap<Cow<'a, str>, usize>,
    claimed: Vec<bool>,
    /// Prefix of the stack whose tensors are currently found without it.
    stack: &'static str,
}

/// Dimensions without outermost ones, which other programs write and llama.cpp reads as if they were absent.
fn significant(shape: &Shape) -> &[u64] {
    without_ones(shape.dims())
}

fn without_ones(dims: &[u64]) -> &[u64] {
    &dims[dims.iter().take_while(|&&dim| dim == 1).count()..]
}

fn width(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

impl<'a> TensorClaims<'a> {
    /// Returns the tensors of `metas`, none of them claimed.
    pub(crate) fn new(metas: &'a [TensorMeta]) -> Self {
        Self { metas, index: Self::names(metas), claimed: vec![false; metas.len()], stack: "" }
    }

    fn names(metas: &'a [TensorMeta]) -> HashMap<Cow<'a, str>, usize> {
        metas.iter().enumerate().map(|(at, meta)| (meta.name.as_str().into(), at)).collect()
    }

    /// Makes the tensors of one stack (prefix `enc.` or `dec.`) available without the prefix, under the names that
    /// models of one stack use.
    pub(crate) fn enter(&mut self, stack: &'static str) {
        self.stack = stack;
        self.index = Self::names(self.metas);
        for (at, meta) in self.metas.iter().enumerate() {
            if let Some(name) = meta.name.strip_prefix(stack) {
                self.index.insert(name.replace(".attn_o.", ".attn_output.").into(), at);
            }
        }
    }

    /// Returns the error with the name that a missing tensor would have in the file.
    pub(crate) fn with_name_in_file(&self, error: EngineError) -> EngineError {
        match error {
            EngineError::MissingTensor { tensor } if !self.stack.is_empty() => {
                let tensor = format!("{}{}", self.stack, tensor.replace(".attn_output.", ".attn_o."));
                EngineError::MissingTensor { tensor }
            }
            error => error,
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// Returns true if a tensor's name starts with `prefix`.
    pub(crate) fn has_under(&self, prefix: &str) -> bool {
        self.metas.iter().any(|meta| meta.name.starts_with(prefix))
    }

    pub(crate) fn shape(&self, name: &str) -> Option<&'a Shape> {
        self.index.get(name).map(|&at| &self.metas[at].shape)
    }

    /// Claims a tensor and returns its index, if it exists.
    pub(crate) fn claim(&mut self, name: &str) -> Option<usize> {
        let at = *self.index.get(name)?;
        self.claimed[at] = true;
        Some(at)
    }

    fn need(&mut self, name: &str) -> Result<usize> {
        self.claim(name).ok_or_else(|| EngineError::MissingTensor { tensor: name.to_owned() })
    }

    fn wrong_shape(&self, at: usize, expected: String) -> EngineError {
        let meta = &self.metas[at];
        EngineError::TensorShape { tensor: meta.name.clone(), expected, found: meta.shape.clone() }
    }

    /// Claims a tensor of `len` elements in one row.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Option<Vector>> {
        let Some(at) = self.claim(name) else { return Ok(None) };
        if width(self.metas[at].shape.n_elems()) != len {
            return Err(self.wrong_shape(at, format!("[{len}]")));
        }
        Ok(Some(Vector { tensor: at, first: 0, len }))
    }

    /// Claims a tensor of at least `len` elements in one row; all of them are returned.
    pub(crate) fn padded_vector(&mut self, name: &str, len: usize) -> Result<Option<Vector>> {
        let Some(at) = self.claim(name) else { return Ok(None) };
        let found = width(self.metas[at].shape.n_elems());
        if found < len {
            return Err(self.wrong_shape(at, format!("[{len}]")));
        }
        Ok(Some(Vector { tensor: at, first: 0, len: found }))
    }

    /// Claims the matrix `name.weight` of `[n_rows, n_cols]`, with its bias and scale.
    pub(crate) fn matrix(&mut self, name: &str, n_rows: usize, n_cols: usize) -> Result<Option<Matrix>> {
        let Some(bare) = self.bare_matrix(name, n_rows, n_cols)? else { return Ok(None) };
        let scale = self.vector(&format!("{name}.scale"), 1)?;
        // A static scale of activations, for runtimes that quantize them.
        let _ = self.claim(&format!("{name}.input_scale"));
        Ok(Some(Matrix { scale, ..bare }))
    }

    /// Claims the matrix `name.weight` of `[n_rows, n_cols]` if `name.scale` is not its scale but a separate tensor.
    pub(crate) fn bare_matrix(&mut self, name: &str, n_rows: usize, n_cols: usize) -> Result<Option<Matrix>> {
        let Some(at) = self.claim(&format!("{name}.weight")) else { return Ok(None) };
        let shape = &self.metas[at].shape;
        if significant(shape).len() > 2 || width(shape.n_cols()) != n_cols || width(shape.n_rows()) != n_rows
        {
            return Err(self.wrong_shape(at, format!("[{n_rows}, {n_cols}]")));
        }
        let bias = self.vector(&format!("{name}.bias"), n_rows)?;
        Ok(Some(Matrix { tensor: at, first_row: 0, n_rows, n_cols, bias, scale: None, expert: None }))
    }

    /// Claims a matrix that is required, as [`TensorClaims::matrix`].
    pub(crate) fn need_matrix(&mut self, name: &str, n_rows: usize, n_cols: usize) -> Result<Matrix> {
        self.matrix(name, n_rows, n_cols)?
            .ok_or_else(|| EngineError::MissingTensor { tensor: format!("{name}.weight") })
    }

    /// Claims the stacked matrices `name.weight` of `[n_experts, n_rows, n_cols]`, one per expert, with biases and
    /// scales.
    pub(crate) fn experts(
        &mut self,
        name: &str,
        n_experts: usize,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Vec<Matrix>> {
        let plain = self.stack(&format!("{name}.weight"), n_experts, n_rows, n_cols)?;
        let total = n_experts.saturating_mul(n_rows);
        let bias = self.vector(&format!("{name}.bias"), total)?;
        let scale = self.vector(&format!("{name}.scale"), n_experts)?;
        let _ = self.claim(&format!("{name}.input_scale"));
        let part = |whole: &Option<Vector>, expert: usize, len: usize| {
            whole.as_ref().map(|v| Vector { tensor: v.tensor, first: expert * len, len })
        };
        let with_affixes = |(expert, matrix): (usize, Matrix)| Matrix {
            bias: part(&bias, expert, n_rows),
            scale: part(&scale, expert, 1),
            ..matrix
        };
        Ok(plain.into_iter().enumerate().map(with_affixes).collect())
    }

    /// Claims the stacked matrices of the tensor `name`, `[n, n_rows, n_cols]`.
    pub(crate) fn stack(
        &mut self,
        name: &str,
        n: usize,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Vec<Matrix>> {
        let at = self.need(name)?;
        let expected = [n as u64, n_rows as u64, n_cols as u64];
        if significant(&self.metas[at].shape) != without_ones(&expected) {
            return Err(self.wrong_shape(at, format!("[{n}, {n_rows}, {n_cols}]")));
        }
        let matrix = |expert: usize| Matrix {
            tensor: at,
            first_row: expert * n_rows,
            n_rows,
            n_cols,
            bias: None,
            scale: None,
            expert: Some(expert),
        };
        Ok((0..n).map(matrix).collect())
    }

    /// Claims the norm `name.weight` (in some files `name`) with its bias; `None` if there is no such tensor.
    pub(crate) fn norm(
        &mut self,
        name: &str,
        len: usize,
        formula: NormFormula,
        eps: f32,
    ) -> Result<Option<Norm>> {
        // Converters write some names without the suffix.
        let weight = match self.vector(&format!("{name}.weight"), len)? {
            Some(weight) => Some(weight),
            None => self.vector(name, len)?,
        };
        let Some(weight) = weight else { return Ok(None) };
        let bias = self.vector(&format!("{name}.bias"), len)?;
        Ok(Some(Norm { formula, weight: Some(weight), bias, eps }))
    }

    /// Claims a norm that is required, as [`TensorClaims::norm`].
    pub(crate) fn need_norm(
        &mut self,
        name: &str,
        len: usize,
        formula: NormFormula,
        eps: f32,
    ) -> Result<Norm> {
        self.norm(name, len, formula, eps)?
            .ok_or_else(|| EngineError::MissingTensor { tensor: format!("{name}.weight") })
    }

    /// Returns the claimed tensors whose names start with a prefix.
    pub(crate) fn claimed_under(&self, prefix: &str) -> Vec<usize> {
        let under = self.index.iter().filter(|(name, at)| self.claimed[**at] && name.starts_with(prefix));
        let mut found: Vec<usize> = under.map(|(_, &at)| at).collect();
        found.sort_unstable();
        found
    }

    /// Returns the names that were never claimed, except those that `is_unused` accepts.
    pub(crate) fn left_over(&self, is_unused: impl Fn(&str) -> bool) -> Vec<String> {
        let metas = self.metas.iter().zip(&self.claimed);
        metas
            .filter(|(meta, claimed)| !**claimed && !is_unused(&meta.name))
            .map(|(meta, _)| meta.name.clone())
            .collect()
    }
}

/// Returns true if `name` matches a pattern in which `*` stands for any text.
pub fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|head| name.strip_prefix(head)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tensors_have_the_name_that_they_would_have_in_the_file() {
        let mut claims = TensorClaims::new(&[]);
        let missing = |claims: &mut TensorClaims<'_>| {
            let error = claims.need_matrix("blk.0.attn_output", 1, 1).unwrap_err();
            claims.with_name_in_file(error).to_string()
        };
        assert_eq!(missing(&mut claims), "tensor `blk.0.attn_output.weight` is missing");
        claims.enter("dec.");
        assert_eq!(missing(&mut claims), "tensor `dec.blk.0.attn_o.weight` is missing");
    }

    #[test]
    fn outermost_ones_are_as_if_absent() {
        let meta = |dims: &[u64]| TensorMeta {
            name: "a.weight".to_owned(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: gguf_core::GgmlType::F32,
        };
        let claims =
            |dims: &[u64]| TensorClaims::new(std::slice::from_ref(&meta(dims))).matrix("a", 4, 8).is_ok();
        assert!(claims(&[4, 8]) && claims(&[1, 4, 8]) && claims(&[1, 1, 4, 8]));
        assert!(!claims(&[2, 2, 8]) && !claims(&[8, 4]) && !claims(&[1, 2, 2, 8]));
        let stack = |dims: &[u64]| {
            TensorClaims::new(std::slice::from_ref(&meta(dims))).stack("a.weight", 2, 4, 8).is_ok()
        };
        assert!(stack(&[2, 4, 8]) && stack(&[1, 2, 4, 8]));
        assert!(!stack(&[8, 8]));
    }

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name, expected) in [
            ("nextn.*", "nextn.eh_proj", true),
            ("nextn.*", "xnextn.eh", false),
            ("vis", "vis", true),
            ("vis", "vis_x", false),
            ("*.a*b", "x.acb", true),
            ("*.a*b", "x.ac", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
