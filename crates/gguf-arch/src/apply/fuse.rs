//! Joins output tensors after mapping, for runtimes that read the joined form: `--fuse-qkv`, `--fuse-gate-up-exps`.

use crate::Result;
use std::collections::{BTreeSet, HashMap, HashSet};

use crate::error::ArchError;
use crate::language::names::block_of;
use crate::mapping::{OutputSpec, TensorContent};
use crate::read::fusion::{Fuse, Fusion};
use crate::read::schema::Card;
use gguf_core::Shape;

/// Performs the requested joins. A joined tensor takes the position of its last part, as in llama.cpp's converter.
///
/// # Errors
/// The card does not list the join, no block has all parts, or shapes of parts do not join.
pub(crate) fn fuse(card: &Card, fuse: Fuse, outputs: &mut Vec<OutputSpec>) -> Result<()> {
    for (asked, fusion) in [(fuse.qkv, Fusion::Qkv), (fuse.gate_up_exps, Fusion::GateUpExps)] {
        if !asked {
            continue;
        }
        let refused = |why| ArchError::Option { option: fusion.option(), card: card.name(), why };
        if !card.fuse.contains(&fusion) {
            return Err(refused("its runtime does not read the joined tensor"));
        }
        if !join(fusion, outputs)? {
            return Err(refused("no block of this checkpoint has the parts as tensors of their own"));
        }
    }
    Ok(())
}

/// Joins in every block that has all parts; returns false if none has.
pub(super) fn join(fusion: Fusion, outputs: &mut Vec<OutputSpec>) -> Result<bool> {
    let (part_names, joined_name) = fusion.names();
    let at: HashMap<&str, usize> =
        outputs.iter().enumerate().map(|(at, output)| (output.name.as_str(), at)).collect();
    let blocks: BTreeSet<u64> = outputs.iter().filter_map(|output| block_of(&output.name)).collect();
    let parts_of = |block: u64, ending: &str| -> Vec<usize> {
        let name = |part: &&str| at.get(format!("blk.{block}.{part}{ending}").as_str()).copied();
        part_names.iter().filter_map(name).collect()
    };
    let mut joined: Vec<Option<OutputSpec>> = outputs.iter().map(|_| None).collect();
    let mut gone: HashSet<usize> = HashSet::new();
    for block in blocks {
        let found: Vec<Vec<usize>> = fusion.endings().iter().map(|ending| parts_of(block, ending)).collect();
        let is_whole = |parts: &Vec<usize>| parts.len() == part_names.len();
        let (Some(weights), biases) = (found.first(), found.get(1..).unwrap_or(&[])) else { continue };
        if !is_whole(weights) || biases.iter().any(|parts| !parts.is_empty() && !is_whole(parts)) {
            continue;
        }
        for (parts, ending) in found.iter().zip(fusion.endings()).filter(|(parts, _)| !parts.is_empty()) {
            let name = format!("blk.{block}.{joined_name}{ending}");
            let last = parts.iter().copied().max().unwrap_or(0);
            joined[last] = Some(one(name, fusion.axis(), parts.iter().map(|&part| &outputs[part]))?);
            gone.extend(parts);
        }
    }
    let is_any = !gone.is_empty();
    let all = std::mem::take(outputs).into_iter().zip(joined).enumerate();
    outputs.extend(all.filter_map(|(at, (output, joined))| match joined {
        Some(joined) => Some(joined),
        None => (!gone.contains(&at)).then_some(output),
    }));
    Ok(is_any)
}

/// Returns the tensor of parts joined along an axis.
fn one<'o>(
    name: String,
    axis: usize,
    parts: impl Iterator<Item = &'o OutputSpec> + Clone,
) -> Result<OutputSpec> {
    let mut joined: Option<Vec<u64>> = None;
    let mut last = None;
    for part in parts.clone() {
        let dims = part.shape.dims();
        let wrong = |expected: &[u64]| ArchError::Join {
            target: name.clone(),
            tensor: part.name.clone(),
            found: format!("{dims:?}"),
            expected: format!("{expected:?}"),
        };
        joined = Some(match joined {
            None if axis < dims.len() => dims.to_vec(),
            None => return Err(wrong(dims)),
            Some(mut sum) => {
                let rest = |dims: &[u64]| dims.iter().copied().enumerate().filter(|d| d.0 != axis).collect();
                let (own, others): (Vec<_>, Vec<_>) = (rest(dims), rest(&sum));
                let len = sum[axis].checked_add(dims.get(axis).copied().unwrap_or(0));
                sum[axis] =
                    len.filter(|_| own == others && sum.len() == dims.len()).ok_or_else(|| wrong(&sum))?;
                sum
            }
        });
        last = Some(part);
    }
    let overflow = || ArchError::Shape { target: name.clone(), shape: format!("{joined:?}") };
    let (Some(last), Some(shape)) = (last, joined.clone().and_then(Shape::new)) else {
        return Err(overflow());
    };
    let parts = parts.map(|part| part.content.clone()).collect();
    let (type_rule, phase) = (last.type_rule, last.phase);
    Ok(OutputSpec { name, shape, content: TensorContent::Joined { parts, axis }, type_rule, phase })
}
