//! Python's arithmetic on [`Datum`]s.

use super::Evaluated;
use super::error::EvalError;
use crate::language::datum::Datum;
use crate::language::expr::BinaryOp;

pub(super) fn compare(op: BinaryOp, left: &Datum, right: &Datum) -> Result<bool, EvalError> {
    let order = match (left.as_int(), right.as_int()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => {
            let number = |d: &Datum| d.as_float().ok_or(EvalError::Kind { op: op.text(), found: d.kind() });
            number(left)?.partial_cmp(&number(right)?)
        }
    };
    Ok(order.is_some_and(|order| match op {
        BinaryOp::Lt => order.is_lt(),
        BinaryOp::Le => order.is_le(),
        BinaryOp::Gt => order.is_gt(),
        _ => order.is_ge(),
    }))
}

pub(super) fn negated(op: &'static str, value: &Datum) -> Evaluated {
    match value {
        Datum::Int(int) => Ok(Datum::Int(-int)),
        other => Err(EvalError::Kind { op, found: other.kind() }),
    }
}

/// Computes like Python: `/` returns a float, `//` and `%` floor, integers stay integers.
pub(super) fn arithmetic(op: BinaryOp, left: &Datum, right: &Datum) -> Evaluated {
    let undefined = || EvalError::Arithmetic { op: op.text(), operands: format!("{left} and {right}") };
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        let whole = match op {
            BinaryOp::Add => a.checked_add(b),
            BinaryOp::Sub => a.checked_sub(b),
            BinaryOp::Mul => a.checked_mul(b),
            BinaryOp::FloorDiv if b != 0 => {
                a.checked_div(b).map(|q| if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
            }
            BinaryOp::Mod if b != 0 => {
                a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
            }
            BinaryOp::Pow if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            BinaryOp::Div | BinaryOp::Pow if b != 0 => {
                let float = if op == BinaryOp::Div { a as f64 / b as f64 } else { (a as f64).powf(b as f64) };
                return if float.is_finite() { Ok(Datum::Float(float)) } else { Err(undefined()) };
            }
            _ => None,
        };
        return whole.map(Datum::Int).ok_or_else(undefined);
    }
    let number = |d: &Datum| d.as_float().ok_or(EvalError::Kind { op: op.text(), found: d.kind() });
    let (a, b) = (number(left)?, number(right)?);
    let float = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Mod | BinaryOp::FloorDiv => {
            let rest = a % b;
            let flips = rest != 0.0 && (rest < 0.0) != (b < 0.0);
            let floored = if flips { (a - rest) / b - 1.0 } else { (a - rest) / b };
            match op {
                BinaryOp::Mod if flips => rest + b,
                BinaryOp::Mod => rest,
                // The quotient is an integer except for rounding.
                _ => floored.round(),
            }
        }
        _ => return Err(undefined()),
    };
    if float.is_finite() { Ok(Datum::Float(float)) } else { Err(undefined()) }
}
