//! Pairs of matrices that change a tensor of the base.

use std::ops::Range;

use crate::lora::{AdapterError, experts};
use gguf_core::{ElementType, Shape, WeightMeta};
use gguf_views::{LowRank, ShapeError, View};

/// Last parts of the names of embeddings' modules.
const EMBEDDINGS: [&str; 6] =
    ["embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "embeddings"];

/// Product of the two matrices that gives the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductForm {
    /// A linear layer: W is B · A.
    Linear,
    /// An embedding, whose W has a row for each token: (B · A)ᵀ.
    Embedding,
}

/// Two matrices that change a tensor of the base.
#[derive(Clone, Debug)]
pub(super) struct MatrixPair {
    /// Name of the tensor in the base.
    pub(super) name: String,
    /// Name of the module, or of its parameter, which PEFT's patterns match.
    pub(super) module: String,
    /// Index of matrix A in the adapter; `b` is that of matrix B.
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) rank: u64,
    /// Number of experts that the matrices hold; 1 for a single matrix.
    pub(super) n_experts: u64,
    /// Rows of one of these experts, if the tensor is that expert's alone.
    pub(super) expert: Option<(u64, Range<u64>)>,
    /// True if the tensor is Aᵀ · Bᵀ: an embedding, or a layer that is stored transposed.
    pub(super) is_transposed: bool,
    /// True for matrices of MLX: those of a layer make its weight transposed, those of an embedding do not, and those of
    /// experts are stacks.
    pub(super) is_of_mlx: bool,
    pub(super) form: ProductForm,
    /// Name, shape and type of the tensor in the base.
    pub(super) meta: WeightMeta,
}

impl MatrixPair {
    /// Toggles whether the tensor is stored transposed.
    pub(super) fn transpose(&mut self) {
        self.is_transposed = !self.is_transposed;
        let mut dims = self.meta.shape.dims().to_vec();
        let n_stacks = dims.len().saturating_sub(2);
        dims[n_stacks..].reverse();
        if let Some(shape) = Shape::new(dims) {
            self.meta.shape = shape;
        }
    }

    /// Returns the tensor as a product of views of the adapter's matrices.
    pub(super) fn product(&self, weights: &[WeightMeta]) -> Result<LowRank, ShapeError> {
        let view = |at: usize| View::weight(at, &weights[at]);
        let mut product = LowRank { b: view(self.b), a: view(self.a) };
        if self.n_experts > 1 && !self.is_of_mlx {
            // Experts of A follow one another; those of B alternate.
            product.a = product.a.unflatten(0, &[self.n_experts, self.rank])?;
            product.b =
                product.b.unflatten(1, &[self.rank, self.n_experts])?.transpose(0, 2)?.transpose(1, 2)?;
        }
        let product = if self.is_transposed { product.transposed()? } else { product };
        let Some((expert, rows)) = &self.expert else { return Ok(product) };
        let own = |view: &View| view.slice(0, *expert, expert + 1)?.squeeze(0);
        Ok(LowRank { a: own(&product.a)?, b: own(&product.b)?.slice(0, rows.start, rows.end)? })
    }
}

pub(super) fn pair(
    name: String,
    a: usize,
    b: usize,
    form: ProductForm,
    stack_rank: Option<u64>,
    weights: &[WeightMeta],
) -> Result<MatrixPair, AdapterError> {
    let (a_meta, b_meta) = (&weights[a], &weights[b]);
    let wrong = || AdapterError::Shapes {
        a_name: a_meta.name.clone(),
        a: a_meta.shape.clone(),
        b_name: b_meta.name.clone(),
        b: b_meta.shape.clone(),
    };
    let (&[rank, n_cols], &[n_rows, b_rank]) = (a_meta.shape.dims(), b_meta.shape.dims()) else {
        let (a_name, a, is_of_experts) =
            (a_meta.name.clone(), a_meta.shape.clone(), name.contains("experts"));
        let is_deep = a.rank() > 2 && b_meta.shape.rank() == a.rank();
        return Err(if is_deep { AdapterError::Dimensions { a_name, a, is_of_experts } } else { wrong() });
    };
    let (rank, (n_experts, shape)) = match stack_rank {
        Some(rank) => (rank, experts::shape_of(&a_meta.shape, &b_meta.shape, rank).ok_or_else(wrong)?),
        None => {
            let shape = Shape::new(vec![n_rows, n_cols]).filter(|_| rank == b_rank && rank > 0);
            (rank, (1, shape.ok_or_else(wrong)?))
        }
    };
    // ref: halves of two types are widened
    let ty = if a_meta.ty == b_meta.ty { a_meta.ty } else { ElementType::F32 };
    let meta = WeightMeta { name: name.clone(), shape, ty };
    let module = name.strip_suffix(".weight").unwrap_or(&name).to_owned();
    let (expert, is_transposed, is_of_mlx) = (None, false, false);
    let mut pair =
        MatrixPair { name, module, a, b, rank, n_experts, expert, is_transposed, is_of_mlx, form, meta };
    if form == ProductForm::Embedding {
        pair.transpose();
    }
    Ok(pair)
}

pub(super) fn mlx_pair(
    module: String,
    [a, b]: [usize; 2],
    weights: &[WeightMeta],
) -> Result<MatrixPair, AdapterError> {
    let (a_meta, b_meta) = (&weights[a], &weights[b]);
    let name = module.clone() + ".weight";
    let ty = if a_meta.ty == b_meta.ty { a_meta.ty } else { ElementType::F32 };
    let last = module.rsplit('.').next().unwrap_or_default();
    let is_embedding = EMBEDDINGS.contains(&last);
    // In either product the first matrix has the rows.
    let found = match (a_meta.shape.dims(), b_meta.shape.dims()) {
        (&[n, rank], &[own, k]) if rank == own => {
            Shape::new(vec![n, k]).map(|shape| (shape, rank, 1, [b, a], !is_embedding))
        }
        (&[n_experts, rank, k], &[n_own, n, own]) if (n_experts, rank) == (n_own, own) && n_experts > 1 => {
            Shape::new(vec![n_experts, n, k]).map(|shape| (shape, rank, n_experts, [a, b], false))
        }
        _ => None,
    };
    let (shape, rank, n_experts, [a, b], is_turned) =
        found.filter(|row| row.1 > 0).ok_or_else(|| AdapterError::Shapes {
            a_name: a_meta.name.clone(),
            a: a_meta.shape.clone(),
            b_name: b_meta.name.clone(),
            b: b_meta.shape.clone(),
        })?;
    let form = if is_embedding { ProductForm::Embedding } else { ProductForm::Linear };
    let meta = WeightMeta { name: name.clone(), shape, ty };
    let mut pair = MatrixPair {
        name,
        module,
        a,
        b,
        rank,
        n_experts,
        expert: None,
        is_transposed: false,
        is_of_mlx: true,
        form,
        meta,
    };
    if is_turned {
        pair.transpose();
    }
    Ok(pair)
}
