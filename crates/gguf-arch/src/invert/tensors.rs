//! Tensors of the checkpoint that a GGUF file stores as keys.

use crate::Result;
use crate::error::ArchError;
use crate::language::datum::Datum;
use crate::language::eval::Scope;
use crate::language::eval::error::EvalError;
use crate::language::expr::{Expr, Function, Path};
use crate::language::names::{Captures, Placeholder};
use crate::mapping::types::TypeRule;
use crate::mapping::{OutputSpec, TensorContent};
use crate::read::schema::{Card, EntryType, InverseRule, Phase};
use gguf_core::Shape;

/// Returns the tensors of the card's `[inverse]`: one per rule, or one per block.
pub(super) fn of_keys(card: &Card, scope: &Scope<'_>) -> Result<Vec<OutputSpec>> {
    let mut outputs = Vec::new();
    for (name, rule) in &card.inverse {
        let failed =
            |source| ArchError::Eval { card: card.name(), at: format!("[inverse] `{name}`"), source };
        outputs.extend(of_rule(rule, scope).map_err(failed)?);
    }
    Ok(outputs)
}

fn of_rule(rule: &InverseRule, scope: &Scope<'_>) -> Result<Vec<OutputSpec>, EvalError> {
    let Some(pattern) = &rule.tensor else { return Ok(Vec::new()) };
    let mut outputs = Vec::new();
    let is_numbered = pattern.has(Placeholder::Bid);
    let places = if is_numbered { blocks(scope)? } else { vec![Captures::default()] };
    for captures in places {
        let value = scope.eval(&rule.value, captures)?;
        if let Some((dims, content)) = content(&value)? {
            let name = pattern.render(captures).unwrap_or_default();
            let shape = Shape::new(dims).ok_or(EvalError::TooLong)?;
            let type_rule = TypeRule { entry: EntryType::F32, source_block: None, source: None };
            outputs.push(OutputSpec { name, shape, content, type_rule, phase: Phase::Normal });
        }
    }
    Ok(outputs)
}

pub(super) fn blocks(scope: &Scope<'_>) -> Result<Vec<Captures>, EvalError> {
    let bid = Path { root: "bid".to_owned(), steps: Vec::new(), optional: false };
    // Bounded by the same limit as other lists over blocks.
    let blocks = scope.eval(&Expr::Call(Function::Layers, vec![Expr::Path(bid)]), Captures::default())?;
    let Datum::List(blocks) = blocks else { return Ok(Vec::new()) };
    let numbers = blocks.iter().filter_map(|block| u64::try_from(block.as_int()?).ok());
    Ok(numbers.map(|bid| Captures { bid: Some(bid), ..Captures::default() }).collect())
}

/// Returns the dimensions and elements of a value; `None` for null.
fn content(value: &Datum) -> Result<Option<(Vec<u64>, TensorContent)>, EvalError> {
    let number = |value: &Datum| {
        let number = value.as_float().map(|number| number as f32);
        number.ok_or(EvalError::Kind { op: "tensor", found: value.kind() })
    };
    Ok(match value {
        Datum::Null => None,
        Datum::List(items) => {
            let values = items.iter().map(number).collect::<Result<Vec<_>, _>>()?;
            Some((vec![values.len() as u64], TensorContent::Values(values.into())))
        }
        scalar => Some((Vec::new(), TensorContent::Fill { value: number(scalar)?, dims: Vec::new() })),
    })
}
