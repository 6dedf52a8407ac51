//! Speed of products in integers compared with F32, for the forms of some types.
#![allow(clippy::print_stdout, reason = "the result of the program")]

use std::time::Instant;

use gguf_core::simd::SimdLevel;
use gguf_core::{IntegerForm, IntegerMinima};
use gguf_matmul::integer::{IntegerKernel, IntegerPanel, PanelLayout, RoundedRows, RowPart, STRIP, multiply};
use gguf_matmul::{MatrixTile, MatrixView, multiply_rows, prepare};

/// Rows of the panel, columns, tokens.
const SIZES: (usize, usize, usize) = (64, 2048, 512);

/// Prints the speed of the best of many runs.
fn time(name: &str, mut run: impl FnMut()) {
    let (n_rows, n_cols, n_tokens) = SIZES;
    let seconds = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    let best = (0..100).map(seconds).fold(f64::INFINITY, f64::min);
    println!("{name:30} {:7.2} GMAC/s", (n_rows * n_cols * n_tokens) as f64 / best / 1e9);
}

fn main() {
    prepare();
    let (n_rows, n_cols, n_tokens) = SIZES;
    let x: Vec<f32> = (0..n_tokens * n_cols).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
    let w: Vec<f32> = (0..n_rows * n_cols).map(|i| ((i * 104_729) % 997) as f32 / 480.0 - 1.0).collect();
    let mut out = vec![0.0f32; n_tokens * n_rows];
    time("F32", || {
        let (x, w) =
            (MatrixView::new(&x, n_tokens, n_cols, n_cols), MatrixView::new(&w, n_cols, n_rows, n_rows));
        multiply_rows(&mut MatrixTile::whole(&mut out, n_tokens, n_rows), x, w, 1.0);
    });
    let mut rows = RoundedRows::default();
    for part in rows.parts(n_tokens, n_cols) {
        part.round(SimdLevel::detect(), &x);
    }
    let minima = |shared, largest| IntegerMinima { shared, largest };
    for (name, form) in [
        ("Q3_K", IntegerForm::plain(256, 128)),
        ("Q4_K", IntegerForm::with_minima(256, 945, minima(32, 63))),
        ("Q5_K", IntegerForm::with_minima(256, 1953, minima(32, 63))),
        ("Q2_K", IntegerForm::with_minima(256, 45, minima(16, 15))),
        ("Q6_K", IntegerForm::plain(256, 4096)),
        ("Q8_0", IntegerForm::plain(32, 128)),
        ("Q5_1", IntegerForm::with_minima(32, 31, minima(32, 1))),
        ("NVFP4", IntegerForm::plain(16, 12)),
    ] {
        let Some(layout) = PanelLayout::new(form, n_cols) else { continue };
        let n_strips = layout.n_strips(n_rows);
        let mut codes = vec![0; n_strips * layout.strip_codes()];
        let mut scales = vec![0.0; n_strips * layout.strip_scales()];
        let mut row = RowPart { scales: [0.5; 16], ..RowPart::ZERO };
        row.values.iter_mut().enumerate().for_each(|(at, value)| *value = at as i16 % 3);
        let strips = codes.chunks_mut(layout.strip_codes()).zip(scales.chunks_mut(layout.strip_scales()));
        for (codes, scales) in strips {
            let read = |_, _, _, part: &mut RowPart| {
                part.clone_from(&row);
                Ok::<(), ()>(())
            };
            if layout.write_strip(STRIP, read, codes, scales).is_err() {
                return;
            }
        }
        for kernel in IntegerKernel::available() {
            let (panel, mut sums) = (IntegerPanel::new(layout, n_rows, &codes, &scales), Vec::new());
            time(&format!("{name} {}", kernel.name()), || {
                let mut out = MatrixTile::whole(&mut out, n_tokens, n_rows);
                multiply(kernel, &mut out, &rows.view(), &panel, 1.0, &mut sums);
            });
        }
    }
}
