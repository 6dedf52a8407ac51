//! The functions of card expressions.

use std::borrow::Cow;

use super::arithmetic::{arithmetic, compare, negated};
use super::error::EvalError;
use super::normal::normal_icdf;
use super::{Evaluated, Evaluator};
use crate::language::datum::Datum;
use crate::language::expr::{BinaryOp, Expr, Function, Path};
use crate::language::names::{Captures, Pattern, Stars};
use gguf_core::text::escape;

/// The most labels of a classifier for which names are made.
const MAX_LABELS: i128 = 1 << 20;

impl Evaluator<'_> {
    /// Evaluates a call of a function of the closed list.
    pub(super) fn call(&self, function: Function, arguments: &[Expr], captures: Captures) -> Evaluated {
        let op = function.name();
        let argument = |n: usize| arguments.get(n).unwrap_or(&Expr::Null);
        let value = |n: usize| self.eval(argument(n), captures);
        let number = || self.number(function, argument(0), captures);
        match function {
            Function::First => self.first(arguments, captures),
            Function::Min => self.best(BinaryOp::Lt, arguments, captures),
            Function::Max => self.best(BinaryOp::Gt, arguments, captures),
            Function::Int => whole(op, &value(0)?, f64::trunc),
            Function::Round => whole(op, &value(0)?, f64::round_ties_even),
            Function::Floor => whole(op, &value(0)?, f64::floor),
            Function::Float => Ok(Datum::Float(number()?)),
            Function::CeilDiv => ceil_div(op, &value(0)?, &value(1)?),
            Function::RoundUp => {
                let multiple = value(1)?;
                arithmetic(BinaryOp::Mul, &ceil_div(op, &value(0)?, &multiple)?, &multiple)
            }
            Function::Sqrt => finite(op, number()?, f64::sqrt),
            Function::Ln => finite(op, number()?, f64::ln),
            Function::Log2 => finite(op, number()?, f64::log2),
            Function::Len => len(op, &value(0)?),
            Function::Layers => self.layers(argument(0), arguments.get(1), captures),
            Function::Find => self.find(argument(0), arguments.get(1), captures),
            Function::Leading => match value(0)? {
                Datum::List(items) => {
                    let wanted = value(1)?;
                    Ok(Datum::Int(items.iter().take_while(|item| item.equals(&wanted)).count() as i128))
                }
                other => Err(EvalError::Kind { op, found: other.kind() }),
            },
            Function::Lookup => self.lookup(argument(0), &value(1)?),
            Function::Labels => labels(op, &value(0)?),
            Function::Has => {
                let name = value(0)?;
                let name = rendered(text(op, &name)?, captures)?;
                Ok(Datum::Bool(self.scope.tensor(&name).is_some()))
            }
            Function::Count => self.count(text(op, &value(0)?)?),
            Function::Shape => {
                let name = value(0)?;
                let name = rendered(text(op, &name)?, captures)?;
                let name = self.scope.tensor_by_ending(&name);
                let mut weights = self.scope.weights.iter().chain(self.scope.stored);
                let weight = weights.find(|weight| Some(weight.name.as_str()) == name);
                let dims = weight.map(|weight| weight.shape.dims().iter());
                let dims = dims.map(|dims| dims.map(|&dim| Datum::Int(dim.into())).collect::<Vec<_>>());
                match (dims, arguments.get(1)) {
                    (None, _) => Ok(Datum::Null),
                    (Some(dims), None) => Ok(Datum::List(dims.into())),
                    (Some(dims), Some(axis)) => {
                        let axis = self.eval(axis, captures)?;
                        let at = super::python_index(&axis, dims.len());
                        let no_axis = EvalError::NoElement { path: op.to_owned(), index: axis.to_string() };
                        at.and_then(|at| dims.get(at)).cloned().ok_or(no_axis)
                    }
                }
            }
            Function::Compact => match value(0)? {
                Datum::List(items) => {
                    let kept = items.iter().filter(|item| !item.is_null()).cloned();
                    Ok(Datum::List(kept.collect::<Vec<_>>().into()))
                }
                Datum::Null => Ok(Datum::Null),
                other => Err(EvalError::Kind { op, found: other.kind() }),
            },
            Function::Sorted => sorted(op, &value(0)?),
            Function::LabelMap => label_map(op, &value(0)?),
            Function::Ints => ints(op, &value(0)?),
            Function::NormalIcdf => Ok(Datum::Float(normal_icdf(number()? as f32).into())),
            Function::Tensor => {
                let name = value(0)?;
                let at = arguments.get(1).map(|at| self.eval(at, captures)).transpose()?;
                let name = rendered(text(op, &name)?, captures)?;
                let Some(name) = self.scope.tensor_by_ending(&name) else { return Ok(Datum::Null) };
                let values = self.scope.values.values(name, at.as_ref())?;
                if let Datum::List(items) = &values {
                    self.spend(items.len())?;
                }
                Ok(values)
            }
            Function::ZeroRows => {
                let (name, from) = (value(0)?, value(1)?);
                if from.is_null() {
                    return Ok(Datum::Null);
                }
                let kind = EvalError::Kind { op, found: from.kind() };
                let from = from.as_int().and_then(|from| u64::try_from(from).ok()).ok_or(kind)?;
                let name = rendered(text(op, &name)?, captures)?;
                let name = self.scope.tensor_by_ending(&name);
                name.map_or(Ok(Datum::Null), |name| self.scope.values.zero_rows(name, from))
            }
            Function::Kv => Ok(self.scope.kv(text(op, &value(0)?)?)),
            Function::File => {
                let name = value(0)?;
                let name = text(op, &name)?;
                Ok(Datum::Bool(self.scope.files.iter().any(|file| file == name)))
            }
        }
    }

    /// Returns the argument for which `relation` holds to all others: the minimum or the maximum.
    fn best(&self, relation: BinaryOp, arguments: &[Expr], captures: Captures) -> Evaluated {
        let mut best = Datum::Null;
        for (n, argument) in arguments.iter().enumerate() {
            let next = self.eval(argument, captures)?;
            if n == 0 || compare(relation, &next, &best)? {
                best = next;
            }
        }
        Ok(best)
    }

    /// Returns the values of an expression for each block; null if all are null.
    fn layers(&self, item: &Expr, n: Option<&Expr>, captures: Captures) -> Evaluated {
        let items = (0..self.n_layers(n, captures)?)
            .map(|bid| self.eval(item, Captures { bid: Some(bid), ..captures }));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        // If no block has a value, the result is null, not a list of nulls.
        let is_absent = !items.is_empty() && items.iter().all(Datum::is_null);
        Ok(if is_absent { Datum::Null } else { Datum::List(items.into()) })
    }

    /// Returns the first non-null value of an expression over the blocks.
    fn find(&self, item: &Expr, n: Option<&Expr>, captures: Captures) -> Evaluated {
        for bid in 0..self.n_layers(n, captures)? {
            let value = self.eval(item, Captures { bid: Some(bid), ..captures })?;
            if !value.is_null() {
                return Ok(value);
            }
        }
        Ok(Datum::Null)
    }

    /// Returns one more than the highest index after `prefix` in tensor names.
    fn count(&self, prefix: &str) -> Evaluated {
        self.spend(self.scope.tensors.len())?;
        // The maximum does not depend on the set's order.
        let renamed = self.scope.renamed.keys().map(String::as_str);
        let names = self.scope.tensors.iter().copied().chain(renamed);
        let indices = names.filter_map(|name| leading_index(name.strip_prefix(prefix)?));
        Ok(Datum::Int(indices.max().map_or(0, |last| i128::from(last) + 1)))
    }

    /// Returns the first argument that is present, even if it is null; null if none is.
    fn first(&self, arguments: &[Expr], captures: Captures) -> Evaluated {
        for argument in arguments {
            let Expr::Path(path) = argument else { return self.eval(argument, captures) };
            if let Some(value) = self.path(path, captures)? {
                return Ok(value);
            }
        }
        Ok(Datum::Null)
    }

    fn n_layers(&self, n: Option<&Expr>, captures: Captures) -> Result<u64, EvalError> {
        let block_count = Path { root: "block_count".to_owned(), steps: Vec::new(), optional: false };
        let n = match n {
            Some(n) => self.eval(n, captures)?,
            None => self.eval(&Expr::Path(block_count), captures)?,
        };
        let n = n.as_int().ok_or(EvalError::Kind { op: "layers", found: n.kind() })?;
        u64::try_from(n.max(0)).ok().filter(|&n| n <= u64::from(self.steps.get())).ok_or(EvalError::TooLong)
    }

    fn lookup(&self, table: &Expr, key: &Datum) -> Evaluated {
        let name = match table {
            Expr::Path(path) if path.steps.is_empty() => path.root.as_str(),
            _ => return Err(EvalError::Kind { op: "lookup", found: "an expression for a table" }),
        };
        let table = self.scope.tables.and_then(|tables| tables.get(name));
        let table = table.ok_or_else(|| EvalError::Absent(name.to_owned()))?;
        let known = || table.keys().map(|known| format!("'{known}'")).collect();
        let not_in_table = || EvalError::NotInTable { found: key.to_string(), known: known() };
        match key {
            Datum::Null => Ok(Datum::Null),
            Datum::Text(text) => table.get(&**text).map(|&n| Datum::Int(n.into())).ok_or_else(not_in_table),
            _ => Err(not_in_table()),
        }
    }
}

/// Rounds a number to an integer; integers stay unchanged.
fn whole(op: &'static str, value: &Datum, round: fn(f64) -> f64) -> Evaluated {
    if let Some(int) = value.as_int() {
        return Ok(Datum::Int(int));
    }
    let whole = round(value.as_float().ok_or(EvalError::Kind { op, found: value.kind() })?);
    // Larger values (about 2^100) are never integers of a model.
    if !whole.is_finite() || whole.abs() > 1e30 {
        return Err(EvalError::Arithmetic { op, operands: value.to_string() });
    }
    Ok(Datum::Int(whole as i128))
}

fn ceil_div(op: &'static str, a: &Datum, b: &Datum) -> Evaluated {
    negated(op, &arithmetic(BinaryOp::FloorDiv, &negated(op, a)?, b)?)
}

/// Applies a function to a number; the result must be finite.
fn finite(op: &'static str, x: f64, function: fn(f64) -> f64) -> Evaluated {
    match function(x) {
        y if y.is_finite() => Ok(Datum::Float(y)),
        _ => Err(EvalError::Arithmetic { op, operands: format!("{x:?}") }),
    }
}

fn len(op: &'static str, value: &Datum) -> Evaluated {
    Ok(Datum::Int(match value {
        Datum::List(items) => items.len() as i128,
        Datum::Text(text) => text.chars().count() as i128,
        Datum::Map(map) => map.len() as i128,
        other => return Err(EvalError::Kind { op, found: other.kind() }),
    }))
}

fn text<'d>(op: &'static str, value: &'d Datum) -> Result<&'d str, EvalError> {
    match value {
        Datum::Text(text) => Ok(text),
        other => Err(EvalError::Kind { op, found: other.kind() }),
    }
}

/// Returns a name with its placeholders filled in.
fn rendered(name: &str, captures: Captures) -> Result<Cow<'_, str>, EvalError> {
    if !name.contains('{') {
        return Ok(Cow::Borrowed(name));
    }
    let pattern = Pattern::parse(name, Stars::Refused).ok();
    let full = pattern.and_then(|pattern| pattern.render(captures));
    full.map(Cow::Owned).ok_or_else(|| EvalError::Absent(name.to_owned()))
}

/// Returns the decimal index at the start of a text, if a dot or the end follows it.
fn leading_index(rest: &str) -> Option<u64> {
    rest.split('.').next().filter(|index| index.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// Returns an object with the items of a list by their indices.
fn label_map(op: &'static str, list: &Datum) -> Evaluated {
    match list {
        Datum::Null => Ok(Datum::Null),
        Datum::List(items) => {
            let member = |(place, item): (usize, &Datum)| (place.to_string(), item.to_json());
            Ok(Datum::Map(std::sync::Arc::new(items.iter().enumerate().map(member).collect())))
        }
        other => Err(EvalError::Kind { op, found: other.kind() }),
    }
}

/// Returns a list of integers, or of lists of them, in ascending order.
fn sorted(op: &'static str, list: &Datum) -> Evaluated {
    let Datum::List(items) = list else { return Err(EvalError::Kind { op, found: list.kind() }) };
    let int = |item: &Datum| item.as_int().ok_or(EvalError::Kind { op, found: item.kind() });
    let key = |item: &Datum| match item {
        Datum::List(members) => members.iter().map(int).collect::<Result<Vec<_>, _>>(),
        item => Ok(vec![int(item)?]),
    };
    let mut keyed = Vec::with_capacity(items.len());
    for item in items.iter() {
        keyed.push((key(item)?, item.clone()));
    }
    keyed.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Datum::List(keyed.into_iter().map(|(_, item)| item).collect::<Vec<_>>().into()))
}

/// Returns the integers of a text, separated by commas or slashes.
fn ints(op: &'static str, list: &Datum) -> Evaluated {
    let list = text(op, list)?;
    let wrong = || EvalError::Arithmetic { op, operands: format!("'{}'", escape(list)) };
    let int = |item: &str| item.trim().parse::<i64>().map(|int| Datum::Int(int.into())).map_err(|_| wrong());
    let items = list.split([',', '/']).filter(|item| !item.trim().is_empty());
    Ok(Datum::List(items.map(int).collect::<Result<Vec<_>, _>>()?.into()))
}

/// Returns the labels of a classifier: the values of an object by their integer keys, integers as texts, or the names
/// that transformers gives so many labels.
fn labels(op: &'static str, of: &Datum) -> Evaluated {
    let text = |label: String| Datum::Text(label.into());
    let map = match of {
        Datum::Map(map) => map,
        Datum::Int(n @ 0..=MAX_LABELS) => {
            return Ok(Datum::List((0..*n).map(|at| text(format!("LABEL_{at}"))).collect::<Vec<_>>().into()));
        }
        other => return Err(EvalError::Kind { op, found: other.kind() }),
    };
    let mut rows = Vec::with_capacity(map.len());
    for (key, value) in map.iter() {
        let index: i64 =
            key.parse().map_err(|_| EvalError::Arithmetic { op, operands: escape(key).into_owned() })?;
        let label = match Datum::from_json(value) {
            Datum::Int(number) => text(number.to_string()),
            label => label,
        };
        rows.push((index, label));
    }
    rows.sort_by_key(|row| row.0);
    Ok(Datum::List(rows.into_iter().map(|row| row.1).collect::<Vec<_>>().into()))
}
