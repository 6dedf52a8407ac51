//! Bounds of what a recipe makes. Its numbers are not trusted: a small recipe takes little memory, and writes little that
//! the source does not have.

use std::ops::Range;

use crate::gguf::Header;
use crate::job::recipe::file::{GAPS, RecipeFile};
use crate::job::recipe::{RecipeError, RecipeSource};

/// Largest header without a base in bytes, if its part is small, and times that it may be larger than its part. That of a
/// vocabulary of 200 000 tokens is about four times its part.
const HEADER: (u64, u64) = (16 << 20, 16);
/// The same of bytes between and after tensors, and of tensors that the source does not have.
const OTHER: (u64, u64) = (64 << 20, 64);
/// Largest alignment of tensors that a writer gives.
const MAX_ALIGNMENT: u64 = 64 << 10;

fn grown(bytes: u64, (least, times): (u64, u64)) -> u64 {
    bytes.saturating_mul(times).max(least)
}

/// Returns the bytes of the header that a recipe declares; `part` and `base` are what it is restored of.
pub(super) fn header_bytes(recipe: &RecipeFile, part: &[u8], base: &[u8]) -> Result<usize, RecipeError> {
    let most = grown(part.len() as u64, HEADER).saturating_add(base.len() as u64);
    let found = recipe.header_bytes;
    let fits = usize::try_from(found).ok().filter(|_| found <= most);
    fits.ok_or_else(|| {
        recipe.damaged(format!("header of the file: at most {most} bytes expected, found {found}"))
    })
}

/// Checks that a file is made of the source and of what the recipe holds, before anything is written. `gaps` are the ranges
/// without tensors.
pub(super) fn check(
    recipe: &RecipeFile,
    header: &Header,
    gaps: &[Range<u64>],
    source: &RecipeSource,
) -> Result<(), RecipeError> {
    let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0, u64::saturating_add);
    let of_source = sum(&mut source.tensors().iter().map(|tensor| tensor.shape.n_elems()));
    let (mut made, mut stored) = (0_u64, 0_u64);
    for (tensor, origin) in header.tensors.iter().zip(&recipe.origins) {
        match origin {
            Some(_) => made = made.saturating_add(tensor.shape.n_elems()),
            None => stored = stored.saturating_add(tensor.n_bytes().unwrap_or(u64::MAX)),
        }
    }
    let padding = header.alignment.min(MAX_ALIGNMENT).saturating_mul(gaps.len() as u64);
    let gaps = sum(&mut gaps.iter().map(|gap| gap.end - gap.start));
    let in_gaps = grown(recipe.part(GAPS).map_or(0, |part| part.len() as u64), OTHER);
    // In F32, as wide as any type of a tensor that is not of the source.
    let as_floats = of_source.saturating_mul(4);
    for (what, found, most) in [
        ("weights made of the source", made, of_source.saturating_mul(2)),
        (
            "bytes of tensors that the source does not have",
            stored,
            as_floats.saturating_add(grown(recipe.n_bytes(), OTHER)),
        ),
        ("bytes that belong to no tensor", gaps, in_gaps.saturating_add(padding)),
    ] {
        if found > most {
            return Err(recipe.damaged(format!("{what}: at most {most} expected, found {found}")));
        }
    }
    Ok(())
}
