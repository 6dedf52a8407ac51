//! Layout operations that architectures need, expressed as slices, factors and seams.

use crate::error::ShapeError;
use crate::view::View;
use gguf_arch::MathOp;

impl View {
    /// Splits an axis into `n` views: every `n`-th index, starting at 0, 1, ….
    ///
    /// # Errors
    /// An axis that `n` does not divide.
    pub fn unzip(&self, axis: usize, n: u64) -> Result<Vec<Self>, ShapeError> {
        let groups = self.groups(axis, n)?;
        let zipped = self.unflatten(axis, &[groups, n])?;
        (0..n).map(|k| zipped.slice(axis + 1, k, k + 1)?.squeeze(axis + 1)).collect()
    }

    fn groups(&self, axis: usize, n: u64) -> Result<u64, ShapeError> {
        self.known_axis(axis)?;
        let size = self.shape()[axis];
        match size.checked_div(n) {
            Some(groups) if groups * n == size => Ok(groups),
            _ => Err(ShapeError::Factors { size, factors: vec![n] }),
        }
    }

    /// Views an axis as a product of factors, reorders them, and joins them again.
    ///
    /// # Errors
    /// Factors that do not multiply to the axis; an order that is not a permutation.
    pub fn permute_axis(&self, axis: usize, factors: &[u64], order: &[usize]) -> Result<Self, ShapeError> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..factors.len()) {
            return Err(ShapeError::Order { order: order.to_vec(), n: factors.len() });
        }
        let mut view = self.unflatten(axis, factors)?;
        // Selection sort by transpositions: there are few factors.
        let mut current: Vec<usize> = (0..factors.len()).collect();
        for (at, &wanted) in order.iter().enumerate() {
            if let Some(from) = current.iter().position(|&factor| factor == wanted)
                && from != at
            {
                view = view.transpose(axis + at, axis + from)?;
                current.swap(at, from);
            }
        }
        view.flatten_axes(axis, factors.len())
    }

    /// Reorders the rows of each head from halves to neighbouring pairs, `[heads, 2, d/2]` → `[heads, d/2, 2]`: the
    /// layout of interleaved rotary embedding.
    ///
    /// # Errors
    /// Rows that are not an even number per head.
    pub fn permute_rope(&self, heads: u64) -> Result<Self, ShapeError> {
        let half = self.groups(0, heads)? / 2;
        self.permute_axis(0, &[heads, 2, half], &[0, 2, 1])
    }

    /// Reorders rows `[groups, Σ sizes]` so that the first section of all groups comes first, then the second, and so
    /// on.
    ///
    /// # Errors
    /// Rows that are not `groups` times the sum of the sizes.
    pub fn ungroup(&self, groups: u64, sizes: &[u64]) -> Result<Self, ShapeError> {
        let per_group = self.groups(0, groups)?;
        let sections = self.unflatten(0, &[groups, per_group])?.split(1, sizes)?;
        let parts = sections.iter().map(|section| section.flatten_axes(0, 2));
        Self::concat(parts.collect::<Result<_, _>>()?, 0)
    }

    /// Inverts [`View::ungroup`].
    pub fn regroup(&self, groups: u64, sizes: &[u64]) -> Result<Self, ShapeError> {
        self.groups(0, groups)?;
        let totals: Vec<u64> = sizes.iter().map(|&size| size.saturating_mul(groups)).collect();
        let sections = self.split(0, &totals)?;
        let mut parts = Vec::new();
        for group in 0..groups {
            for (section, &size) in sections.iter().zip(sizes) {
                parts.push(section.slice(0, group * size, (group + 1) * size)?);
            }
        }
        Self::concat(parts, 0)
    }

    /// Reorders the first `rot` of each `group` rows: even rows first, then odd ones.
    ///
    /// # Errors
    /// Rows that are not whole groups, an odd or too large `rot`.
    pub fn deinterleave(&self, group: u64, rot: u64) -> Result<Self, ShapeError> {
        self.by_group(group, rot, &[rot / 2, 2])
    }

    /// Inverts [`View::deinterleave`].
    pub fn interleave(&self, group: u64, rot: u64) -> Result<Self, ShapeError> {
        self.by_group(group, rot, &[2, rot / 2])
    }

    fn by_group(&self, group: u64, rot: u64, factors: &[u64; 2]) -> Result<Self, ShapeError> {
        let n_groups = self.groups(0, group)?;
        let mut parts = Vec::new();
        for start in (0..n_groups).map(|g| g * group) {
            parts.push(self.slice(0, start, start + rot)?.permute_axis(0, factors, &[1, 0])?);
            if rot < group {
                parts.push(self.slice(0, start + rot, start + group)?);
            }
        }
        Self::concat(parts, 0)
    }

    /// Returns the rows in the given order; a row may occur several times.
    ///
    /// # Errors
    /// A row that does not exist.
    pub fn gather(&self, rows: &[u64]) -> Result<Self, ShapeError> {
        let mut parts = Vec::new();
        let mut at = 0;
        while at < rows.len() {
            let start = at;
            while at + 1 < rows.len() && rows[at].checked_add(1) == Some(rows[at + 1]) {
                at += 1;
            }
            parts.push(self.slice(0, rows[start], rows[at].saturating_add(1))?);
            at += 1;
        }
        Self::concat(parts, 0)
    }

    /// Adds rows of zeros up to `n` rows.
    ///
    /// # Errors
    /// More than `n` rows.
    pub fn pad_rows(&self, n: u64) -> Result<Self, ShapeError> {
        self.known_axis(0)?;
        let size = self.shape()[0];
        let missing = n.checked_sub(size).ok_or(ShapeError::Range { start: 0, end: size, size: n })?;
        if missing == 0 {
            return Ok(self.clone());
        }
        let mut shape = self.shape().to_vec();
        shape[0] = missing;
        Self::concat(vec![self.clone(), Self::fill(0.0, shape)], 0)
    }

    pub(crate) fn prepend_zeros(&self, rows: u64) -> Result<Self, ShapeError> {
        self.known_axis(0)?;
        let mut shape = self.shape().to_vec();
        shape[0] = rows;
        Self::concat(vec![Self::fill(0.0, shape), self.clone()], 0)
    }

    /// Splits the rows into `n` blocks and returns them in the order of `index`.
    ///
    /// # Errors
    /// Rows that `n` does not divide, a block that does not exist.
    pub fn gather_blocks(&self, n: u64, index: &[u64]) -> Result<Self, ShapeError> {
        let rows = self.groups(0, n)?;
        let block =
            |&at: &u64| self.slice(0, at.saturating_mul(rows), at.saturating_add(1).saturating_mul(rows));
        Self::concat(index.iter().map(block).collect::<Result<_, _>>()?, 0)
    }

    /// Repeats the first index of an axis `n` times.
    ///
    /// # Errors
    /// The axis does not exist or is empty; `n` is zero.
    pub fn repeat(&self, axis: usize, n: u64) -> Result<Self, ShapeError> {
        let first = self.slice(axis, 0, 1)?;
        Self::concat((0..n).map(|_| first.clone()).collect(), axis)
    }

    /// Negates the rows from `from` on of every `group` rows.
    ///
    /// # Errors
    /// Rows that are not whole groups, `from` beyond a group.
    pub fn negate(&self, group: u64, from: u64) -> Result<Self, ShapeError> {
        let n_groups = self.groups(0, group)?;
        let mut parts = Vec::new();
        for start in (0..n_groups).map(|g| g * group) {
            parts.push(self.slice(0, start, start.saturating_add(from))?);
            parts.push(self.slice(0, start + from, start + group)?.math(MathOp::Scale(-1.0)));
        }
        parts.retain(|part| part.shape()[0] > 0);
        Self::concat(parts, 0)
    }

    /// Multiplies the rows `start..end` by a number.
    ///
    /// # Errors
    /// A range that is not inside the rows.
    pub fn scale_rows(&self, by: f64, start: u64, end: u64) -> Result<Self, ShapeError> {
        self.known_axis(0)?;
        let rows = self.shape()[0];
        let scaled = self.slice(0, start, end)?.math(MathOp::Scale(by));
        let mut parts = vec![self.slice(0, 0, start)?, scaled, self.slice(0, end, rows)?];
        parts.retain(|part| part.shape()[0] > 0);
        Self::concat(parts, 0)
    }
}
