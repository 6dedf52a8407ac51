//! Panels of integer weights in the order in which the kernel reads them.

use gguf_core::IntegerForm;

use super::{GROUP, HIGH, run_columns};

/// Number of rows of a strip.
pub const STRIP: usize = 16;

/// Pairs of integers of one pair of columns, for the rows of a strip.
pub(super) type StripPairs = [i16; 2 * STRIP];

/// Sizes of the panels of matrices with the same form and number of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelLayout {
    form: IntegerForm,
    n_cols: usize,
}

/// Integers, scales and minima of one group of columns of a row.
#[derive(Clone, Debug)]
pub struct RowPart {
    /// Integer of each column.
    pub values: [i16; GROUP],
    /// Scales, one for each [`IntegerForm::scaled`] columns.
    pub scales: [f32; GROUP / 16],
    /// Minima, one for each [`gguf_core::IntegerMinima::shared`] columns.
    pub minima: [i16; GROUP / 16],
    /// Scales of the minima, one for each scale.
    pub min_scales: [f32; GROUP / 16],
}

impl RowPart {
    /// Columns of weight 0.
    pub const ZERO: Self = Self {
        values: [0; GROUP],
        scales: [0.0; GROUP / 16],
        minima: [0; GROUP / 16],
        min_scales: [0.0; GROUP / 16],
    };
}

impl PanelLayout {
    /// Returns the layout of panels with rows of `n_cols`, if their groups of 256 columns end where scales end.
    #[must_use]
    pub fn new(form: IntegerForm, n_cols: usize) -> Option<Self> {
        let whole = form.scaled.is_multiple_of(2)
            && GROUP.is_multiple_of(form.scaled)
            && form.scaled <= GROUP
            && n_cols.is_multiple_of(form.scaled);
        let minima = form.minima.is_none_or(|minima| {
            matches!(minima.shared, 16 | 32)
                && form.scaled.is_multiple_of(minima.shared)
                && i32::from(minima.largest) * HIGH <= i32::from(i16::MAX)
        });
        (whole && minima && form.scaled >= 16).then_some(Self { form, n_cols })
    }

    /// Number of columns.
    #[must_use]
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns the number of groups of columns; the last one may be narrower.
    pub(super) fn n_groups(&self) -> usize {
        self.n_cols.div_ceil(GROUP)
    }

    /// Returns the number of columns of a group.
    fn columns(&self, group: usize) -> usize {
        GROUP.min(self.n_cols - group * GROUP)
    }

    /// Returns the pairs, and the scales of each row, of the first `n_cols` columns of a strip.
    fn sizes(&self, n_cols: usize) -> (usize, usize) {
        let n_scales = n_cols / self.form.scaled;
        let n_minima = n_scales * self.form.n_minima();
        (n_cols / 2 + n_minima, n_scales * self.scales_each())
    }

    fn scales_each(&self) -> usize {
        1 + usize::from(self.form.minima.is_some())
    }

    /// Returns the number of integers of a strip of 16 rows.
    #[must_use]
    pub fn strip_codes(&self) -> usize {
        self.sizes(self.n_cols).0 * 2 * STRIP
    }

    /// Returns the number of scales of a strip of 16 rows.
    #[must_use]
    pub fn strip_scales(&self) -> usize {
        self.sizes(self.n_cols).1 * STRIP
    }

    /// Returns the number of strips of a panel.
    #[must_use]
    pub fn n_strips(&self, n_rows: usize) -> usize {
        n_rows.div_ceil(STRIP)
    }

    /// Writes a strip of at most 16 rows. `read` gets the index of a row, the first column and the number of columns,
    /// and the part to fill; entries past the columns are ignored. Rows that are missing become 0.
    ///
    /// # Errors
    /// The first error of `read`.
    ///
    /// # Panics
    /// If `codes` and `scales` do not have the length of a strip.
    pub fn write_strip<E>(
        &self,
        n_rows: usize,
        mut read: impl FnMut(usize, usize, usize, &mut RowPart) -> Result<(), E>,
        codes: &mut [i16],
        scales: &mut [f32],
    ) -> Result<(), E> {
        assert!(n_rows <= STRIP && codes.len() == self.strip_codes() && scales.len() == self.strip_scales());
        let mut parts = [RowPart::ZERO; STRIP];
        let (mut codes, mut scales) = (codes.as_chunks_mut().0, scales.as_chunks_mut().0);
        for group in 0..self.n_groups() {
            let n_cols = self.columns(group);
            for (row, part) in parts.iter_mut().enumerate().take(n_rows) {
                read(row, group * GROUP, n_cols, part)?;
            }
            let (n_pairs, n_scales) = self.sizes(n_cols);
            let (own_codes, later_codes) = codes.split_at_mut(n_pairs);
            let (own_scales, later_scales) = scales.split_at_mut(n_scales);
            self.interleave(&parts, n_cols, own_codes, own_scales);
            (codes, scales) = (later_codes, later_scales);
        }
        Ok(())
    }

    /// Writes one group of columns of all rows in the order of the kernel.
    fn interleave(
        &self,
        parts: &[RowPart; STRIP],
        n_cols: usize,
        codes: &mut [StripPairs],
        scales: &mut [[f32; STRIP]],
    ) {
        let (values, minima) = codes.split_at_mut(n_cols / 2);
        for (row, part) in parts.iter().enumerate() {
            for (pair, out) in part.values.as_chunks::<2>().0.iter().zip(values.iter_mut()) {
                out.as_chunks_mut::<2>().0[row] = *pair;
            }
            for (minimum, out) in part.minima.iter().zip(minima.iter_mut()) {
                out.as_chunks_mut::<2>().0[row] = [*minimum, *minimum * HIGH as i16];
            }
            for (at, out) in scales.chunks_mut(self.scales_each()).enumerate() {
                for (out, scales) in out.iter_mut().zip([&part.scales, &part.min_scales]) {
                    out[row] = scales[at];
                }
            }
        }
    }
}

/// Some rows of a matrix as integers.
#[derive(Clone, Copy, Debug)]
pub struct IntegerPanel<'a> {
    layout: PanelLayout,
    n_rows: usize,
    codes: &'a [StripPairs],
    scales: &'a [[f32; STRIP]],
}

/// One group of columns of a strip.
pub(super) struct StripGroup<'a> {
    /// Pairs of integers.
    pub(super) codes: &'a [StripPairs],
    /// Pairs of minima.
    pub(super) minima: &'a [StripPairs],
    /// Scale, and scale of minima, of each part.
    pub(super) scales: std::slice::ChunksExact<'a, [f32; STRIP]>,
    /// Pairs of a part with one scale.
    pub(super) scaled_pairs: usize,
    /// Pairs whose products fit in 32 bits.
    pub(super) run_pairs: usize,
    /// Minima of a part.
    pub(super) n_minima: usize,
    /// Columns that share a minimum.
    pub(super) shared: usize,
}

impl<'a> IntegerPanel<'a> {
    /// Returns the panel whose strips were written to `codes` and `scales`, one after another.
    ///
    /// # Panics
    /// If the slices do not have the lengths of the strips.
    #[must_use]
    pub fn new(layout: PanelLayout, n_rows: usize, codes: &'a [i16], scales: &'a [f32]) -> Self {
        let n_strips = layout.n_strips(n_rows);
        assert!(codes.len() == n_strips * layout.strip_codes(), "integers of a panel");
        assert!(scales.len() == n_strips * layout.strip_scales(), "scales of a panel");
        Self { layout, n_rows, codes: codes.as_chunks().0, scales: scales.as_chunks().0 }
    }

    /// Layout of the panel.
    #[must_use]
    pub fn layout(&self) -> &PanelLayout {
        &self.layout
    }

    /// Number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns a group of columns of a strip.
    pub(super) fn strip_group(&self, strip: usize, group: usize) -> StripGroup<'a> {
        let layout = &self.layout;
        let (strip_pairs, strip_scales) = layout.sizes(layout.n_cols);
        let (pairs_before, scales_before) = layout.sizes(group * GROUP);
        let n_cols = layout.columns(group);
        let (n_pairs, n_scales) = layout.sizes(n_cols);
        let codes = &self.codes[strip * strip_pairs + pairs_before..][..n_pairs];
        let scales = &self.scales[strip * strip_scales + scales_before..][..n_scales];
        let (codes, minima) = codes.split_at(n_cols / 2);
        StripGroup {
            codes,
            minima,
            scales: scales.chunks_exact(layout.scales_each()),
            scaled_pairs: layout.form.scaled / 2,
            run_pairs: run_columns(&layout.form) / 2,
            n_minima: layout.form.n_minima(),
            shared: layout.form.minima.map_or(0, |minima| minima.shared),
        }
    }
}
