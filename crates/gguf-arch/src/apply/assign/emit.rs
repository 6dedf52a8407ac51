//! From one emission of an entry to tensors of the file: names, shapes, operations with evaluated parameters.

use super::{Assigner, Emission, EmissionKey, MAX_RANK, experts};
use crate::Result;
use crate::error::ArchError;
use crate::keys::origins;
use crate::language::eval::error::EvalError;
use crate::language::names::{self, Captures, Pattern, Placeholder};
use crate::language::ops::{Op, OpError, OpSpec, Param};
use crate::mapping::types::TypeRule;
use crate::mapping::{Assembly, JoinKind, OpStep, OutputSpec, SourceWeight, TensorContent};
use crate::read::schema::{EntryType, Fill, GenerateKind, Join, TensorEntry};
use gguf_core::{ElementType, Shape, WeightMeta};

/// Maximum of an entry's `repeat`: no model has more blocks.
const MAX_REPEATS: u64 = 1 << 12;

/// Joined sources of a tensor.
struct Joined {
    sources: Vec<SourceWeight>,
    join: Option<JoinKind>,
    dims: Vec<u64>,
}

impl Assigner<'_> {
    /// Returns the tensors of an emission, for every repeated block and under every name.
    pub(super) fn emission_outputs(&self, key: &EmissionKey, emission: &Emission) -> Result<Vec<OutputSpec>> {
        let entry = &self.card.entries[key.entry];
        let first_bid = match &entry.bid {
            Some(bid) => Some(self.count(entry.name(), bid, key.captures)?),
            None => key.captures.bid,
        };
        let n = match &entry.repeat {
            Some(n) => self.count(entry.name(), n, key.captures)?,
            None => 1,
        };
        if n > MAX_REPEATS {
            let source = EvalError::TooLong;
            return Err(ArchError::Eval {
                card: self.card.name(),
                at: format!("`{}`", entry.name()),
                source,
            });
        }
        let mut outputs = Vec::new();
        let mut made: Option<Vec<OutputSpec>> = None;
        for offset in 0..n {
            let bid = first_bid.map(|bid| bid.saturating_add(offset));
            let captures = key.captures.with(Placeholder::Bid, bid);
            let suffix = if entry.drops_ending { "" } else { key.suffix };
            let name = |pattern: &Pattern| pattern.render(captures).unwrap_or_default() + suffix;
            let names: Vec<String> = entry.targets.iter().map(|target| name(&target.name)).collect();
            let made = match &made {
                Some(made) => made,
                None => made.insert(self.made(entry, key, emission, &names)?),
            };
            for (output, name) in made.iter().zip(&names) {
                outputs.push(OutputSpec { name: name.clone(), ..output.clone() });
            }
            for (output, also) in
                made.iter().flat_map(|output| entry.also.iter().map(move |also| (output, also)))
            {
                outputs.push(OutputSpec { name: name(also), ..output.clone() });
            }
        }
        Ok(outputs)
    }

    /// Returns the tensors of an emission under the names of its first block.
    fn made(
        &self,
        entry: &TensorEntry,
        key: &EmissionKey,
        emission: &Emission,
        names: &[String],
    ) -> Result<Vec<OutputSpec>> {
        let captures = key.captures;
        let first_target = names.first().map_or("", String::as_str);
        self.check_parts(entry, key, emission, first_target)?;
        let Joined { sources, join, mut dims } = self.joined(entry, captures, emission, first_target)?;
        let first = emission.parts.values().next().copied().unwrap_or(0);
        let meta = &self.weights[first];
        let type_rule = TypeRule {
            entry: entry.ty,
            source_block: if entry.untyped_bid { None } else { names::block_of(&self.names[first]) },
            // A decoded weight counts as the type that it was stored in.
            source: Some(match entry.ty {
                EntryType::Source => self.scope.values.code_type(&meta.name).unwrap_or(meta.ty),
                _ => meta.ty,
            }),
        };
        let turned = self.experts.get(&key.entry).and_then(|fact| {
            let sibling = experts::sibling(&self.experts, &self.emissions, self.weights, key);
            experts::other_face(entry, fact, &dims, sibling, self.scope)
        });
        // All operations but the last yield one tensor; the last yields one per target.
        let (last, before) = match turned.as_ref().unwrap_or(&entry.ops).split_last() {
            Some((last, before)) => (std::slice::from_ref(last), before),
            None => (&[][..], &[][..]),
        };
        let shared = self.steps(before, captures, &mut dims, meta)?;
        let mut outputs = Vec::with_capacity(entry.targets.len());
        for (result, (target, name)) in entry.targets.iter().zip(names).enumerate() {
            let mut dims = dims.clone();
            let mut ops = shared.clone();
            for spec in last {
                ops.push(self.step(spec, captures, &mut dims, result, meta)?);
            }
            ops.extend(self.steps(&target.ops, captures, &mut dims, meta)?);
            if let Some(OpStep { op: Op::AddIndex { below }, .. }) = ops.last() {
                self.scope.values.check_indices(&meta.name, *below)?;
            }
            let shape = storable(name, dims)?;
            let content = TensorContent::Sources(Assembly { sources: sources.clone(), join, ops });
            outputs.push(OutputSpec { name: name.clone(), shape, content, type_rule, phase: entry.phase });
        }
        Ok(outputs)
    }

    /// Returns the sources of an emission, each with its operations, their join, and its shape.
    fn joined(
        &self,
        entry: &TensorEntry,
        captures: Captures,
        emission: &Emission,
        target: &str,
    ) -> Result<Joined> {
        let mut sources = Vec::with_capacity(emission.parts.len());
        let mut joined: Option<Vec<u64>> = None;
        let mut joined_len = 0u64;
        for &weight in emission.parts.values() {
            let meta = &self.weights[weight];
            check_element_type(meta)?;
            let mut dims = meta.shape.dims().to_vec();
            let ops = self.steps(&entry.pre, captures, &mut dims, meta)?;
            sources.push(SourceWeight { weight, ops });
            let axis = match entry.join {
                Some(Join::Concat { axis }) => Some(axis),
                Some(Join::ConcatBy(_)) => Some(0),
                _ => None,
            };
            // Dimensions that must be equal: all but the axis of a concatenation.
            let mut common = dims.clone();
            if entry.join == Some(Join::Mul) {
                // A product has one dimension, so only the number of elements counts.
                common = vec![dims.iter().product()];
            }
            if let Some(axis) = axis {
                let len = common.get_mut(axis).map(|len| std::mem::replace(len, 0));
                joined_len = len
                    .and_then(|len| joined_len.checked_add(len))
                    .ok_or_else(|| join_error(meta, &dims, &dims, target))?;
            }
            match &joined {
                Some(expected) if *expected != common => {
                    return Err(join_error(meta, &dims, expected, target));
                }
                _ => joined = Some(common),
            }
        }
        let mut dims = joined.unwrap_or_default();
        let join = match entry.join {
            Some(Join::Stack | Join::StackBy(_)) => {
                dims.insert(0, sources.len() as u64);
                Some(JoinKind::Stack)
            }
            Some(Join::Concat { axis }) => Some(JoinKind::Concat { axis }),
            Some(Join::ConcatBy(_)) => Some(JoinKind::Concat { axis: 0 }),
            Some(Join::Mul) => Some(JoinKind::Mul),
            None => None,
        };
        if let Some(JoinKind::Concat { axis }) = join {
            dims[axis] = joined_len;
        }
        Ok(Joined { sources, join, dims })
    }

    /// Returns the generated tensors that precede a weight.
    pub(super) fn fills_before(&self, weight: usize) -> Result<Vec<OutputSpec>> {
        let mut outputs = Vec::new();
        for generate in &self.card.generate {
            let GenerateKind::Fill(Fill { before: Some(before), .. }) = &generate.kind else { continue };
            let Some(captures) = before.matches(&self.names[weight]) else { continue };
            if self.holds("generate", generate.when.as_ref(), captures)? {
                outputs.extend(crate::mapping::generated::fill(self.card, generate, self.scope, captures)?);
            }
        }
        Ok(outputs)
    }

    /// Checks that a joined tensor has all its parts: numbered from zero, as many as the configuration declares.
    fn check_parts(
        &self,
        entry: &TensorEntry,
        key: &EmissionKey,
        emission: &Emission,
        target: &str,
    ) -> Result<()> {
        let found = emission.parts.len() as u64;
        let last = emission.parts.keys().next_back().copied().unwrap_or(0);
        let by = match entry.join {
            Some(Join::StackBy(by) | Join::ConcatBy(by)) => Some(by),
            Some(_) => None,
            None => return Ok(()),
        };
        let expected = match (&entry.n, by) {
            (Some(n), _) => self.count(entry.name(), n, key.captures)?,
            (None, Some(_)) => last.saturating_add(1),
            (None, None) => entry.with.len() as u64 + 1,
        };
        if found == expected && last < expected {
            return Ok(());
        }
        let hole = (0..expected).find(|part| !emission.parts.contains_key(part));
        let pattern = match (by, hole) {
            (None, Some(hole)) if hole > 0 => entry.with.get(hole as usize - 1),
            _ => entry.patterns.first(),
        };
        let captures = by.map_or(key.captures, |by| key.captures.with(by, hole.or(Some(last))));
        let missing = pattern.and_then(|pattern| pattern.render(captures)).unwrap_or_default() + key.suffix;
        Err(ArchError::Stack { target: target.to_owned(), found, expected, missing })
    }

    fn steps(
        &self,
        specs: &[OpSpec],
        captures: Captures,
        dims: &mut Vec<u64>,
        meta: &WeightMeta,
    ) -> Result<Vec<OpStep>> {
        specs.iter().map(|spec| self.step(spec, captures, dims, 0, meta)).collect()
    }

    fn step(
        &self,
        spec: &OpSpec,
        captures: Captures,
        dims: &mut Vec<u64>,
        result: usize,
        meta: &WeightMeta,
    ) -> Result<OpStep> {
        let failed = |source, dims: &[u64]| ArchError::Op {
            tensor: meta.name.clone(),
            shape: show(dims),
            source: Box::new(source),
            keys: self.keys_of(spec),
        };
        let op = spec.resolve(self.scope, captures, dims).map_err(|source| failed(source, dims))?;
        let mut shapes = op.shapes(dims).map_err(|source| failed(source, dims))?;
        if result >= shapes.len() {
            let source = OpError::Range { op: spec.kind.name(), parameter: "sizes" };
            return Err(failed(source, dims));
        }
        *dims = shapes.swap_remove(result);
        Ok(OpStep { op, result })
    }
}

impl Assigner<'_> {
    /// Returns the keys of config.json that an operation's parameters come from, with their values.
    fn keys_of(&self, spec: &OpSpec) -> Vec<String> {
        let exprs = spec.params.iter().flat_map(|(_, param)| match param {
            Param::One(expr) => std::slice::from_ref(expr),
            Param::Many(exprs) => exprs.as_slice(),
        });
        let origins =
            exprs.flat_map(|expr| origins::of_expr(self.card, expr, self.scope, &self.scope.config));
        let mut keys: Vec<String> = origins.map(|origin| origin.to_string()).collect();
        keys.sort();
        keys.dedup();
        keys
    }
}

/// Accepts plain floats and integers; quantized and packed elements must be decoded first.
fn check_element_type(meta: &WeightMeta) -> Result<()> {
    use ElementType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    match meta.ty {
        F64 | F32 | F16 | Bf16 | I64 | I32 | I16 | I8 | U64 | U32 | U16 | U8 | Bool => Ok(()),
        found => Err(ArchError::ElementType { tensor: meta.name.clone(), found }),
    }
}

fn storable(name: &str, dims: Vec<u64>) -> Result<Shape> {
    let fits = !dims.is_empty() && dims.len() <= MAX_RANK && !dims.contains(&0);
    let text = show(&dims);
    Shape::new(dims).filter(|_| fits).ok_or_else(|| ArchError::Shape { target: name.to_owned(), shape: text })
}

fn join_error(meta: &WeightMeta, dims: &[u64], expected: &[u64], target: &str) -> ArchError {
    ArchError::Join {
        target: target.to_owned(),
        tensor: meta.name.clone(),
        found: show(dims),
        expected: show(expected),
    }
}

fn show(dims: &[u64]) -> String {
    format!("{dims:?}")
}
