//! Tensors without a source in the checkpoint.

use crate::Result;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::error::ArchError;
use crate::language::datum::Datum;
use crate::language::eval::error::EvalError;
use crate::language::eval::{Root, Scope};
use crate::language::expr::Expr;
use crate::language::names::Captures;
use crate::mapping::types::TypeRule;
use crate::mapping::{OutputSpec, RopeFreqsLlama3, TensorContent};
use crate::read::schema::{Card, EntryType, Fill, Generate, GenerateKind, Llama3Rope, Phase};
use gguf_core::Shape;
use gguf_core::numeric::held_by_f32;
use gguf_format::ValueType;

/// Maximum head size; generated values are held in memory.
const MAX_DIM: u64 = 1 << 20;
/// Maximum number of elements of a position table.
const MAX_ELEMS: u64 = 1 << 26;
/// Divisor of the rotary pairs that proportional rope does not rotate.
const UNROTATED: f32 = 1e30;

/// Returns the tensor of a rule if the configuration needs it. Tensors that precede a weight are emitted with the
/// weight.
pub(crate) fn generated(card: &Card, generate: &Generate, scope: &Scope<'_>) -> Result<Option<OutputSpec>> {
    let none = Captures::default();
    if let GenerateKind::Fill(Fill { before: Some(_), .. }) = generate.kind {
        return Ok(None);
    }
    if !scope.holds(generate.when.as_ref(), none).map_err(|source| failed(card, source))? {
        return Ok(None);
    }
    let name = generate.to.text();
    let content = match &generate.kind {
        GenerateKind::RopeFreqsLlama3(rule) => return llama3(card, name, rule, scope),
        GenerateKind::RopeFreqsProportional { dim, fraction } => {
            let dim = count(card, name, dim, scope)?;
            let fraction = scope.eval(fraction, none).map_err(|source| failed(card, source))?;
            let fraction = fraction.as_float().filter(|fraction| (0.0..=1.0).contains(fraction));
            let fraction = fraction.ok_or_else(|| ArchError::Required {
                message: "rope: the rotated fraction of a head must be between 0 and 1".to_owned(),
                found: Vec::new(),
            })?;
            let rotated = (dim as f64 * fraction / 2.0) as usize;
            let mut values = vec![1f32; rotated];
            values.resize((dim / 2) as usize, UNROTATED);
            TensorContent::Values(values.into())
        }
        GenerateKind::RopeFactors { values } => {
            let values = scope.eval(values, none).map_err(|source| failed(card, source))?;
            TensorContent::Values(floats(card, name, &values)?)
        }
        GenerateKind::Sinusoids { length, width } => {
            let (length, width) = (count(card, name, length, scope)?, count(card, name, width, scope)?);
            // Frequencies fall from the first pair to the last, so there must be at least two pairs.
            if width < 4 || length.saturating_mul(width) > MAX_ELEMS {
                let shape = format!("[{length}, {width}]");
                return Err(ArchError::Shape { target: name.to_owned(), shape });
            }
            return output(name, vec![length, width / 2 * 2], TensorContent::Sinusoids { length, width })
                .map(Some);
        }
        GenerateKind::Fill(_) => return fill(card, generate, scope, none),
    };
    let len = match &content {
        TensorContent::Values(values) => values.len() as u64,
        _ => 0,
    };
    output(name, vec![len], content).map(Some)
}

/// Returns a tensor with one value in all elements, for the block of a weight or for the model.
pub(crate) fn fill(
    card: &Card,
    generate: &Generate,
    scope: &Scope<'_>,
    captures: Captures,
) -> Result<Option<OutputSpec>> {
    let GenerateKind::Fill(rule) = &generate.kind else { return Ok(None) };
    let name = generate.to.render(captures).unwrap_or_default();
    let length = |expr| scope.count(expr, captures, &[]).map_err(|source| failed(card, source));
    let dims = rule.shape.iter().map(length).collect::<Result<Vec<_>, _>>()?;
    let value = scope.eval(&rule.value, captures).map_err(|source| failed(card, source))?;
    let kind = EvalError::Kind { op: "fill", found: value.kind() };
    let value = held_by_f32(value.as_float().ok_or_else(|| failed(card, kind))?)
        .ok_or_else(|| not_held(&name, &value))?;
    let phase = if rule.before.is_some() { Phase::Normal } else { Phase::Generated };
    let output = output(&name, dims.clone(), TensorContent::Fill { value, dims })?;
    let type_rule = TypeRule { entry: EntryType::Auto, source_block: captures.bid, source: None };
    Ok(Some(OutputSpec { type_rule, phase, ..output }))
}

/// Returns the error for a value that an F32 tensor cannot hold.
fn not_held(name: &str, value: &Datum) -> ArchError {
    ArchError::KeyValue { key: name.to_owned(), value: value.to_string(), expected: ValueType::F32 }
}

fn failed(card: &Card, source: EvalError) -> ArchError {
    ArchError::Eval { card: card.name(), at: "`generate`".to_owned(), source }
}

/// Evaluates a size between 1 and [`MAX_DIM`].
fn count(card: &Card, name: &str, expr: &Expr, scope: &Scope<'_>) -> Result<u64> {
    let dim = scope.count(expr, Captures::default(), &[]).map_err(|source| failed(card, source))?;
    let found = Some(dim).filter(|dim| (1..=MAX_DIM).contains(dim));
    found.ok_or_else(|| ArchError::Shape { target: name.to_owned(), shape: format!("[{dim} / 2]") })
}

/// Returns an F32 tensor of these dimensions in [`Phase::Generated`].
pub(crate) fn output(name: &str, dims: Vec<u64>, content: TensorContent) -> Result<OutputSpec> {
    let shown = format!("{dims:?}");
    let fits = !dims.is_empty() && !dims.contains(&0) && dims.len() <= 4;
    let shape = Shape::new(dims).filter(|_| fits);
    let shape = shape.ok_or_else(|| ArchError::Shape { target: name.to_owned(), shape: shown })?;
    let type_rule = TypeRule { entry: EntryType::F32, source_block: None, source: None };
    Ok(OutputSpec { name: name.to_owned(), shape, content, type_rule, phase: Phase::Generated })
}

fn floats(card: &Card, name: &str, values: &Datum) -> Result<Arc<[f32]>> {
    let Datum::List(items) = values else {
        return Err(failed(card, EvalError::Kind { op: "rope_factors", found: values.kind() }));
    };
    if items.len() as u64 > MAX_DIM {
        let shape = format!("[{}]", items.len());
        return Err(ArchError::Shape { target: name.to_owned(), shape });
    }
    let float = |item: &Datum| {
        let kind = EvalError::Kind { op: "rope_factors", found: item.kind() };
        let float = item.as_float().ok_or_else(|| failed(card, kind))?;
        held_by_f32(float).ok_or_else(|| not_held(name, item))
    };
    items.iter().map(float).collect()
}

/// Returns Llama 3's rope factors if the configuration has that rope type.
fn llama3(card: &Card, name: &str, rule: &Llama3Rope, scope: &Scope<'_>) -> Result<Option<OutputSpec>> {
    let Some(Root::Value(rope)) = scope.roots.iter().find(|root| root.0 == "rope_full").map(|root| &root.1)
    else {
        return Ok(None);
    };
    if rope.get("rope_type").and_then(Json::as_str) != Some("llama3") {
        return Ok(None);
    }
    let positive = |key: &str| ArchError::Required {
        message: format!("rope: `{key}` must be a positive number"),
        found: Vec::new(),
    };
    let number = |key: &str, default: f64| match rope.get(key) {
        None => Ok(default),
        Some(value) => {
            value.as_f64().filter(|value| value.is_finite() && *value > 0.0).ok_or_else(|| positive(key))
        }
    };
    let theta = match &rule.theta {
        None => number("rope_theta", 10000.0)?,
        Some(theta) => {
            let theta = scope.eval(theta, Captures::default()).map_err(|source| failed(card, source))?;
            theta.as_float().filter(|theta| *theta > 0.0).ok_or_else(|| positive("rope_theta"))?
        }
    };
    let dim = count(card, name, &rule.dim, scope)?;
    let params = RopeFreqsLlama3 {
        dim,
        theta,
        factor: number("factor", rule.factor)?,
        low_freq_factor: number("low_freq_factor", rule.low)?,
        high_freq_factor: number("high_freq_factor", rule.high)?,
        context: number("original_max_position_embeddings", rule.context)?,
    };
    let Some(pad_to) = &rule.pad_to else {
        return output(name, vec![dim.div_ceil(2)], TensorContent::RopeFreqsLlama3(params)).map(Some);
    };
    let len = dim.div_ceil(2).max(count(card, name, pad_to, scope)? / 2);
    output(name, vec![len], TensorContent::RopeFreqsPadded(params, len)).map(Some)
}
