//! Runs a card backwards: from a GGUF file's metadata and tensors to a checkpoint's configuration and tensors.

mod biases;
mod completed;
mod config;
mod inverse_rows;
mod lost_keys;
mod member;
mod names;
mod tensors;
mod text_part;

use crate::Result;
use std::collections::HashSet;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use crate::error::ArchError;
use crate::keys::hparams;
use crate::language::eval::{Root, Scope};
use crate::language::expr::Expr;
use crate::language::names::{Captures, Pattern, Placeholder, SUFFIXES, nearest};
use crate::language::ops::{Op, OpError, OpSpec, Undo};
use crate::language::values::WeightValues;
use crate::mapping::types::TypeRule;
use crate::mapping::{
    Assembly, DropReason, Dropped, JoinKind, OpStep, OutputSpec, RopeFreqsLlama3, SourceWeight, TensorContent,
};
use crate::read::schema::{Card, EntryType, Join, Phase, TensorEntry};
use crate::registry::Registry;
use gguf_core::{Shape, WeightMeta, WeightSource};
use gguf_format::{Metadata, Value};

/// Maximum number of blocks that are searched for a source whose block differs from its target's.
const MAX_BLOCKS: u64 = 512;

/// Checkpoint that a GGUF file was, or may have been, converted from.
#[derive(Clone, Debug)]
pub struct Inverse {
    /// Card that was run backwards.
    pub card: Card,
    /// Members of `config.json`, without `torch_dtype`.
    pub config: Map<String, Json>,
    /// Tensors of the checkpoint, by name. Sources are indices among the GGUF tensors.
    pub outputs: Vec<OutputSpec>,
    /// Tensors of the GGUF file that a checkpoint does not need.
    pub dropped: Vec<Dropped>,
    /// Tensors whose arithmetic is undone with rounding errors: names in the checkpoint.
    pub inexact: Vec<String>,
    /// Keys of the file, with their values, that matter to the runtime and that the checkpoint does not give again.
    pub lost: Vec<String>,
    /// What the class computes otherwise than the file, or lacks: a sentence for each.
    pub notes: Vec<String>,
}

/// Runs the card of a GGUF file backwards. If that fails, tries its variants with their own `[inverse]` and uses the
/// first that succeeds. `tensors` have the element types to which they are decoded. `rope_freqs` are the parameters of
/// Llama 3's rope factors, if the file has such a tensor. `values` gives access to the content of the tensors.
///
/// # Errors
/// [`ArchError`]: no card for the architecture, tensors that the card does not yield, operations without an inverse.
pub fn invert(
    registry: &Registry,
    metadata: &Metadata,
    tensors: &[WeightMeta],
    rope_freqs: Option<&RopeFreqsLlama3>,
    values: Option<&dyn WeightSource>,
) -> Result<Inverse> {
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let card = registry.by_gguf(arch).ok_or_else(|| ArchError::UnknownArch { arch: arch.to_owned() })?;
    let by = |card| invert_by(card, arch, metadata, tensors, rope_freqs, values);
    let found = by(card).or_else(|error| {
        // A variant has another class, which may have the bias and not what the file's own class has.
        let mut variants =
            registry.variants_back(arch).filter(|_| !matches!(error, ArchError::NoBias { .. }));
        variants.find_map(|variant| by(variant).ok()).ok_or(error)
    });
    found.map(|mut found| {
        found.lost = lost_keys::lost(registry, &found.card, metadata, &found.config, &found.outputs);
        found
    })
}

fn invert_by(
    card: &Card,
    arch: &str,
    metadata: &Metadata,
    tensors: &[WeightMeta],
    rope_freqs: Option<&RopeFreqsLlama3>,
    values: Option<&dyn WeightSource>,
) -> Result<Inverse> {
    let metadata = &completed::completed(card, metadata, tensors);
    let mut scope = Scope {
        lets: Some(&card.lets),
        tables: Some(&card.tables),
        roots: ["tokenizer_config", "generation", "raw"].map(|name| (name, Root::Value(json!({})))).into(),
        tensors: tensors.iter().map(|tensor| tensor.name.as_str()).collect(),
        weights: tensors,
        values: WeightValues::new(values, None),
        gguf: Some((arch, metadata)),
        ..Scope::default()
    };
    scope
        .roots
        .push(("opt", Root::Value(json!({ "no_mtp": false, "mtp_only": false, "mistral_format": false }))));
    scope.config = config::rebuilt(card, &scope, tensors, rope_freqs);
    scope.config = config::with_own(card, &scope)?;
    let class = scope.config.get("architectures").and_then(|list| list.get(0)).cloned().unwrap_or_default();
    scope.roots.push(("class", Root::Value(class)));
    scope.roots.extend(hparams::rope_roots(&scope.config)?);

    let mut inverter =
        Inverter { card, tensors, scope: &scope, emissions: IndexMap::new(), dropped: Vec::new() };
    inverter.match_all()?;
    let mut outputs = tensors::of_keys(card, &scope)?;
    let names = names::SourceNames::new(card, &scope)?;
    let mut inexact = Vec::new();
    for (key, parts) in &inverter.emissions {
        for (mut output, is_exact) in inverter.sources_of(key, parts)? {
            output.name = names.of(output.name);
            if !is_exact {
                inexact.push(output.name.clone());
            }
            outputs.push(output);
        }
    }
    let dropped = inverter.dropped;
    biases::settle(&mut scope.config, &outputs)?;
    let mut notes = Vec::new();
    for (condition, message) in &card.differs {
        let failed = |source| ArchError::Eval { card: card.name(), at: "`differs`".to_owned(), source };
        if scope.holds(Some(condition), Captures::default()).map_err(failed)? {
            notes.push(message.clone());
        }
    }
    notes.extend(text_part::nest(&mut scope.config, &mut outputs));
    outputs.sort_by(|a: &OutputSpec, b| a.name.cmp(&b.name));
    let mut seen = HashSet::new();
    if let Some(twice) = outputs.iter().find(|output| !seen.insert(output.name.as_str())) {
        let name = twice.name.clone();
        return Err(ArchError::TwoSources { first: name.clone(), second: name.clone(), target: name });
    }
    Ok(Inverse {
        card: card.clone(),
        config: scope.config,
        outputs,
        dropped,
        inexact,
        lost: Vec::new(),
        notes,
    })
}

/// Key of an emission of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct EmissionKey {
    entry: usize,
    captures: Captures,
    suffix: &'static str,
}

struct Inverter<'a> {
    card: &'a Card,
    tensors: &'a [WeightMeta],
    scope: &'a Scope<'a>,
    /// Tensor of each target of an emission, in the order of the entry's targets.
    emissions: IndexMap<EmissionKey, Vec<Option<usize>>>,
    dropped: Vec<Dropped>,
}

/// Returns the captures and the carried suffix with which a target yields a name.
fn match_target(entry: &TensorEntry, target: &Pattern, name: &str) -> Option<(Captures, &'static str)> {
    if entry.drops_ending {
        // The file does not tell which ending it was; `.weight` is by far the most frequent.
        return Some((target.matches(name)?, SUFFIXES[0]));
    }
    if target.is_complete() {
        return Some((target.matches(name)?, ""));
    }
    let suffixed =
        SUFFIXES.into_iter().find_map(|suffix| Some((target.matches(name.strip_suffix(suffix)?)?, suffix)));
    suffixed.or_else(|| if entry.exact { None } else { Some((target.matches(name)?, "")) })
}

impl Inverter<'_> {
    fn match_all(&mut self) -> Result<()> {
        let mut leftovers = Vec::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            if self.is_generated(&tensor.name)? {
                self.dropped.push(Dropped { weight: index, why: DropReason::FromConfiguration });
            } else if let Some(first) = self.copied_from(&tensor.name)? {
                self.dropped.push(Dropped { weight: index, why: DropReason::SameAs(first) });
            } else if let Some((key, target)) = self.entry_of(&tensor.name)? {
                let n_targets = self.card.entries[key.entry].targets.len();
                let parts = self.emissions.entry(key).or_insert_with(|| vec![None; n_targets]);
                parts[target] = Some(index);
            } else {
                leftovers.push(&tensor.name);
            }
        }
        if leftovers.is_empty() {
            return Ok(());
        }
        let captures = Captures { bid: Some(0), ..Captures::default() };
        let targets = self.card.entries.iter().flat_map(|entry| &entry.targets);
        let known: Vec<String> = targets.filter_map(|target| target.name.render(captures)).collect();
        let near = |(n, name): (usize, &String)| {
            let found = if n < 8 { nearest(name, known.iter().map(String::as_str)) } else { None };
            (name.clone(), found.map(str::to_owned))
        };
        let names = leftovers.into_iter().enumerate().map(near).collect();
        Err(ArchError::Leftover { card: self.card.name(), names, drop: None, within: None })
    }

    /// Returns true if the card generates a tensor. Constants may be generated only where the model has no such tensor.
    fn is_generated(&self, name: &str) -> Result<bool> {
        for generate in &self.card.generate {
            let Some(captures) = generate.to.matches(name) else { continue };
            let when = generate.when.as_ref().filter(|_| generate.is_fill());
            let failed =
                |source| ArchError::Eval { card: self.card.name(), at: "`generate`".to_owned(), source };
            if self.scope.holds(when, captures).map_err(failed)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the entry that yields a tensor, and the index of its target: the first whose condition holds.
    fn entry_of(&self, name: &str) -> Result<Option<(EmissionKey, usize)>> {
        for (entry, spec) in self.card.entries.iter().enumerate() {
            for (index, target) in spec.targets.iter().enumerate() {
                let Some((captures, suffix)) = match_target(spec, &target.name, name) else { continue };
                if let Some((captures, _)) = self.source_captures(spec, captures)? {
                    return Ok(Some((EmissionKey { entry, captures, suffix }, index)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the tensor of which this one is a copy, under another name (`also`) or for another block (`repeat`).
    fn copied_from(&self, name: &str) -> Result<Option<String>> {
        let is_there = |name: &String| self.scope.tensors.contains(name.as_str());
        for spec in self.card.entries.iter().filter(|spec| !spec.also.is_empty() || spec.repeat.is_some()) {
            let Some(target) = spec.targets.first().map(|target| &target.name) else { continue };
            for (pattern, is_main) in
                std::iter::once((target, true)).chain(spec.also.iter().map(|also| (also, false)))
            {
                let Some((captures, suffix)) = match_target(spec, pattern, name) else { continue };
                let Some((_, offset)) = self.source_captures(spec, captures)? else { continue };
                let first = captures.bid.map(|bid| bid - offset.min(bid));
                let suffix = if target.is_complete() || spec.drops_ending { "" } else { suffix };
                let first = target.render(captures.with(Placeholder::Bid, first)).map(|name| name + suffix);
                if let (Some(first), true) = (first.filter(is_there), !is_main || offset > 0) {
                    return Ok(Some(first));
                }
            }
        }
        Ok(None)
    }

    /// Returns the captures of the source for those of its target, and the index of the target's block among those of
    /// `repeat`. `None` if there is no such source, or if the entry's condition is false.
    fn source_captures(&self, spec: &TensorEntry, captures: Captures) -> Result<Option<(Captures, u64)>> {
        let failed =
            |source| ArchError::Eval { card: self.card.name(), at: format!("`{}`", spec.name()), source };
        let holds = |captures| self.scope.holds(spec.when.as_ref(), captures).map_err(failed);
        let (Some(target), true) = (captures.bid, spec.bid.is_some() || spec.repeat.is_some()) else {
            return Ok(holds(captures)?.then_some((captures, 0)));
        };
        let is_numbered = spec.patterns.first().is_some_and(|pattern| pattern.has(Placeholder::Bid));
        let last = if is_numbered { target.max(MAX_BLOCKS) } else { 0 };
        for bid in 0..=last {
            let captures = captures.with(Placeholder::Bid, is_numbered.then_some(bid));
            let count = |expr: &Option<Expr>, default| match expr {
                Some(expr) => self.scope.count(expr, captures, &[]).map_err(failed),
                None => Ok(default),
            };
            // A source before the first block of a rule like `bid - 1` has no target.
            let Ok(first) = count(&spec.bid, bid) else { continue };
            let Some(offset) = target.checked_sub(first) else { continue };
            if offset < count(&spec.repeat, 1)? && holds(captures)? {
                return Ok(Some((captures, offset)));
            }
        }
        Ok(None)
    }

    /// Returns the checkpoint's tensors that became the targets of an entry, and whether they are restored exactly.
    fn sources_of(&self, key: &EmissionKey, parts: &[Option<usize>]) -> Result<Vec<(OutputSpec, bool)>> {
        let entry = &self.card.entries[key.entry];
        let mut is_exact = true;
        let mut sources = Vec::with_capacity(parts.len());
        let mut shapes: Vec<Vec<u64>> = Vec::with_capacity(parts.len());
        for (target, &part) in entry.targets.iter().zip(parts) {
            let Some(tensor) = part else {
                let name = target.name.render(key.captures).unwrap_or_default() + key.suffix;
                return Err(ArchError::Missing { names: vec![name], more: false, cut: None });
            };
            let mut dims = self.tensors[tensor].shape.dims().to_vec();
            let ops = self.undo(&target.ops, key.captures, &mut dims, tensor, &mut is_exact)?;
            sources.push(SourceWeight { weight: tensor, ops });
            shapes.push(dims);
        }
        let first = sources.first().map_or(0, |source| source.weight);
        let mut dims = shapes.first().cloned().unwrap_or_default();
        let mut join = None;
        let mut specs = entry.ops.as_slice();
        if entry.targets.len() > 1 {
            // The last operation split one tensor into several.
            let (split, before) = specs.split_last().ok_or_else(|| self.no_inverse(first, "split"))?;
            let op = split
                .resolve(self.scope, key.captures, &dims)
                .map_err(|error| self.op_error(first, error))?;
            let (axis, kind) = match op {
                Op::Split { axis, .. } => (axis, JoinKind::Concat { axis }),
                Op::Unzip { axis, .. } => (axis, JoinKind::Zip { axis }),
                _ => return Err(self.no_inverse(first, op.name())),
            };
            dims[axis] = shapes.iter().filter_map(|shape| shape.get(axis)).sum();
            join = Some(kind);
            specs = before;
        }
        let ops = self.undo(specs, key.captures, &mut dims, first, &mut is_exact)?;
        let whole = Assembly { sources, join, ops };
        let pieces = self.pieces(entry, key, &dims, first)?;
        let mut outputs = Vec::with_capacity(pieces.len());
        for (name, cut) in pieces {
            let mut assembly = whole.clone();
            let mut dims = dims.clone();
            for op in cut {
                let shapes = op.shapes(&dims).map_err(|error| self.op_error(first, error))?;
                dims = shapes.into_iter().next().unwrap_or_default();
                assembly.ops.push(OpStep { op, result: 0 });
            }
            for spec in entry.pre.iter().rev() {
                let undone =
                    self.undo(std::slice::from_ref(spec), key.captures, &mut dims, first, &mut is_exact)?;
                assembly.ops.extend(undone);
            }
            let type_rule = TypeRule {
                entry: EntryType::Source,
                source_block: None,
                source: Some(self.tensors[first].ty),
            };
            let shown = format!("{dims:?}");
            let shape =
                Shape::new(dims).ok_or_else(|| ArchError::Shape { target: name.clone(), shape: shown })?;
            let content = TensorContent::Sources(assembly);
            outputs.push((OutputSpec { name, shape, content, type_rule, phase: Phase::Normal }, is_exact));
        }
        Ok(outputs)
    }

    /// Returns the names of the joined sources, each with the operations that cut it out.
    fn pieces(
        &self,
        entry: &TensorEntry,
        key: &EmissionKey,
        dims: &[u64],
        tensor: usize,
    ) -> Result<Vec<(String, Vec<Op>)>> {
        let name = |pattern: Option<&Pattern>, captures: Captures| {
            pattern.and_then(|pattern| pattern.render(captures)).unwrap_or_default() + key.suffix
        };
        let main = entry.patterns.first();
        let cut = |part: u64| {
            vec![Op::Slice { axis: 0, start: part, end: part + 1 }, Op::Reshape { dims: dims[1..].to_vec() }]
        };
        // Limits the number of names, which a header could otherwise make arbitrarily large.
        let n_parts = dims.first().copied().unwrap_or(0);
        let too_many = n_parts > 1 << 16;
        match entry.join {
            None => Ok(vec![(name(main, key.captures), Vec::new())]),
            Some(Join::StackBy(by)) if dims.len() > 1 && !too_many => Ok((0..n_parts)
                .map(|part| (name(main, key.captures.with(by, Some(part))), cut(part)))
                .collect()),
            Some(Join::Stack) if dims.len() > 1 && n_parts == entry.with.len() as u64 + 1 => {
                let patterns = std::iter::once(main).chain(entry.with.iter().map(Some));
                Ok((0..)
                    .zip(patterns)
                    .map(|(part, pattern)| (name(pattern, key.captures), cut(part)))
                    .collect())
            }
            Some(Join::Mul) => Err(self.no_inverse(tensor, "mul")),
            // The file does not contain the length of each part.
            Some(_) => Err(self.no_inverse(tensor, "concat")),
        }
    }

    /// Returns the operations that undo these, last first.
    fn undo(
        &self,
        specs: &[OpSpec],
        captures: Captures,
        dims: &mut Vec<u64>,
        tensor: usize,
        is_exact: &mut bool,
    ) -> Result<Vec<OpStep>> {
        let mut steps = Vec::with_capacity(specs.len());
        for spec in specs.iter().rev() {
            let undo = spec.undo(self.scope, captures, dims).map_err(|error| self.op_error(tensor, error))?;
            let Undo { op, is_exact: comes_back } =
                undo.ok_or_else(|| self.no_inverse(tensor, spec.kind.name()))?;
            *is_exact &= comes_back;
            let mut shapes = op.shapes(dims).map_err(|error| self.op_error(tensor, error))?;
            *dims = shapes.swap_remove(0);
            steps.push(OpStep { op, result: 0 });
        }
        Ok(steps)
    }

    fn no_inverse(&self, tensor: usize, op: &'static str) -> ArchError {
        ArchError::NoInverse { tensor: self.tensors[tensor].name.clone(), op }
    }

    fn op_error(&self, tensor: usize, source: OpError) -> ArchError {
        let meta = &self.tensors[tensor];
        ArchError::Op {
            tensor: meta.name.clone(),
            shape: meta.shape.to_string(),
            source: Box::new(source),
            keys: Vec::new(),
        }
    }
}
