//! Evaluation of card expressions: Python's arithmetic on the configuration, with a step limit.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use crate::arch::datum::Datum;
use crate::arch::expr::{BinaryOp, Expr, Function, Path, Step};
use crate::arch::names::Pattern;
use crate::core::text::escape;
use crate::gguf::Metadata;

mod arithmetic;
#[cfg(test)]
mod tests;

use arithmetic::{arithmetic, compare, negated};

/// Steps that one evaluation may take: a list over the layers of the largest model stays far below.
const MAX_STEPS: u32 = 1 << 20;
/// Depth of definitions that use definitions, and of expressions.
const MAX_DEPTH: u32 = 200;

/// What the names of an expression mean.
#[derive(Debug, Default)]
pub struct Scope<'a> {
    /// Configuration: nested parts merged, defaults filled in.
    pub config: Map<String, Json>,
    /// The card's definitions.
    pub lets: Option<&'a IndexMap<String, Expr>>,
    /// Tables for `lookup`.
    pub tables: Option<&'a IndexMap<String, IndexMap<String, i64>>>,
    /// Other names that values come from: `rope`, `opt`, `tokenizer_config` and so on.
    pub roots: Vec<(&'static str, Root<'a>)>,
    /// Names of the checkpoint's tensors: of those that cards see, and of the stored ones.
    pub tensors: HashSet<&'a str>,
    /// Names of the files beside the checkpoint.
    pub files: &'a [String],
    /// On the way back: the architecture and the metadata of the GGUF.
    pub gguf: Option<(&'a str, &'a Metadata)>,
}

/// A value with a name of its own.
#[derive(Clone, Debug)]
pub enum Root<'a> {
    /// An object owned by the caller.
    Map(&'a Map<String, Json>),
    /// A value.
    Value(Json),
}

/// What a pattern captured, and the dimensions of the tensor at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Captures {
    /// Block.
    pub bid: Option<u64>,
    /// Expert.
    pub eid: Option<u64>,
    /// Another index.
    pub xid: Option<u64>,
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// A name that nothing defines.
    #[error("`{0}` is not in the configuration")]
    Absent(String),
    /// An index outside a list, or into something else.
    #[error("`{path}` has no element {index}")]
    NoElement {
        /// The list.
        path: String,
        /// The index.
        index: String,
    },
    /// A definition that needs itself.
    #[error("the definition of `{0}` needs itself")]
    Cycle(String),
    /// An operation on the wrong kind of value.
    #[error("`{op}` does not take {found}")]
    Kind {
        /// Operator or function.
        op: &'static str,
        /// What it got.
        found: &'static str,
    },
    /// Division by zero, a root of a negative number, an integer that overflows.
    #[error("`{op}` has no result for {operands}")]
    Arithmetic {
        /// Operator or function.
        op: &'static str,
        /// The operands.
        operands: String,
    },
    /// A text without an entry.
    #[error("table `{table}` has no entry for {key}")]
    NotInTable {
        /// The table.
        table: String,
        /// The text.
        key: String,
    },
    /// The step limit.
    #[error("the evaluation takes more than {MAX_STEPS} steps")]
    TooLong,
    /// The depth limit.
    #[error("definitions are nested too deeply")]
    TooDeep,
}

impl<'a> Scope<'a> {
    /// Evaluates with captures and no tensor.
    ///
    /// # Errors
    /// [`EvalError`].
    pub fn eval(&self, expr: &Expr, captures: Captures) -> Result<Datum, EvalError> {
        self.eval_with(expr, captures, &[])
    }

    /// Evaluates with captures and the dimensions of the tensor at hand (`d0`, `d1`, …).
    ///
    /// # Errors
    /// [`EvalError`].
    pub fn eval_with(&self, expr: &Expr, captures: Captures, dims: &[u64]) -> Result<Datum, EvalError> {
        let evaluator = Evaluator {
            scope: self,
            dims,
            steps: Cell::new(MAX_STEPS),
            depth: Cell::new(0),
            open: RefCell::new(Vec::new()),
        };
        evaluator.eval(expr, captures)
    }

    /// The truth of an expression; of nothing, true.
    ///
    /// # Errors
    /// [`EvalError`].
    pub fn holds(&self, expr: Option<&Expr>, captures: Captures) -> Result<bool, EvalError> {
        expr.map_or(Ok(true), |expr| Ok(self.eval(expr, captures)?.truth()))
    }

    /// A value that must be a count.
    ///
    /// # Errors
    /// [`EvalError`], also for anything but an integer of 0 to 2^63 - 1.
    pub fn count(&self, expr: &Expr, captures: Captures, dims: &[u64]) -> Result<u64, EvalError> {
        let value = self.eval_with(expr, captures, dims)?;
        match &value {
            Datum::Int(int) => i64::try_from(*int)
                .ok()
                .and_then(|int| u64::try_from(int).ok())
                .ok_or_else(|| EvalError::Arithmetic { op: "count", operands: value.to_string() }),
            _ => Err(EvalError::Kind { op: "count", found: value.kind() }),
        }
    }

    /// The value of a metadata key, with the architecture before it or as it is; null without.
    pub(super) fn kv(&self, key: &str) -> Datum {
        let Some((arch, metadata)) = self.gguf else { return Datum::Null };
        let value = metadata.get(&format!("{arch}.{key}")).or_else(|| metadata.get(key));
        value.map_or(Datum::Null, Datum::from_value)
    }

    fn root(&self, name: &str) -> Option<&Root<'a>> {
        self.roots.iter().find(|root| root.0 == name).map(|root| &root.1)
    }
}

struct Evaluator<'s> {
    scope: &'s Scope<'s>,
    dims: &'s [u64],
    steps: Cell<u32>,
    depth: Cell<u32>,
    /// Definitions being evaluated: inside its own definition a name means the configuration key.
    open: RefCell<Vec<String>>,
}

type Evaluated = Result<Datum, EvalError>;

impl Evaluator<'_> {
    fn spend(&self, steps: usize) -> Result<(), EvalError> {
        let left = u32::try_from(steps).ok().and_then(|steps| self.steps.get().checked_sub(steps));
        self.steps.set(left.ok_or(EvalError::TooLong)?);
        Ok(())
    }

    fn eval(&self, expr: &Expr, captures: Captures) -> Evaluated {
        self.spend(1)?;
        if self.depth.get() >= MAX_DEPTH {
            return Err(EvalError::TooDeep);
        }
        self.depth.set(self.depth.get() + 1);
        let value = self.eval_inner(expr, captures);
        self.depth.set(self.depth.get() - 1);
        value
    }

    fn eval_inner(&self, expr: &Expr, captures: Captures) -> Evaluated {
        Ok(match expr {
            Expr::Null => Datum::Null,
            Expr::Bool(value) => Datum::Bool(*value),
            Expr::Int(value) => Datum::Int(*value),
            Expr::Float(value) => Datum::Float(*value),
            Expr::Text(text) => Datum::Text(text.as_str().into()),
            Expr::List(items) => {
                let items: Result<Vec<_>, _> = items.iter().map(|item| self.eval(item, captures)).collect();
                Datum::List(items?.into())
            }
            Expr::Path(path) => match self.path(path, captures)? {
                Some(value) => value,
                None if path.optional => Datum::Null,
                None => return Err(EvalError::Absent(path.to_string())),
            },
            Expr::If(parts) => {
                let chosen = if self.eval(&parts[0], captures)?.truth() { &parts[1] } else { &parts[2] };
                self.eval(chosen, captures)?
            }
            Expr::Not(inner) => Datum::Bool(!self.eval(inner, captures)?.truth()),
            Expr::Neg(inner) => match self.eval(inner, captures)? {
                Datum::Float(value) => Datum::Float(-value),
                other => match other.as_int() {
                    Some(value) => Datum::Int(-value),
                    None => return Err(EvalError::Kind { op: "-", found: other.kind() }),
                },
            },
            Expr::Binary(op, sides) => self.binary(*op, &sides[0], &sides[1], captures)?,
            Expr::Call(function, arguments) => self.call(*function, arguments, captures)?,
        })
    }

    /// The value of a path; `None` where something on the way is absent.
    fn path(&self, path: &Path, captures: Captures) -> Result<Option<Datum>, EvalError> {
        let capture = match path.root.as_str() {
            "bid" => captures.bid,
            "eid" => captures.eid,
            "xid" => captures.xid,
            _ => path
                .root
                .strip_prefix('d')
                .and_then(|n| n.parse().ok())
                .and_then(|n: usize| self.dims.get(n).copied()),
        };
        if let Some(value) = capture {
            return Ok(Some(Datum::Int(value.into())));
        }
        let is_open = self.open.borrow().contains(&path.root);
        let definition = self.scope.lets.and_then(|lets| lets.get(&path.root));
        if let (Some(definition), false) = (definition, is_open) {
            self.open.borrow_mut().push(path.root.clone());
            let value = self.eval(definition, captures);
            self.open.borrow_mut().pop();
            let value = value.map_err(|error| match error {
                EvalError::TooDeep => EvalError::Cycle(path.root.clone()),
                other => other,
            })?;
            return self.descend(path, value, captures);
        }
        match self.scope.root(&path.root) {
            Some(Root::Map(map)) => match path.steps.split_first() {
                None => {
                    self.spend(map.len())?;
                    Ok(Some(Datum::Map((*map).clone().into())))
                }
                Some((Step::Field(name), rest)) => self.member(path, map.get(name), rest, captures),
                Some((Step::Index(_), _)) => Ok(None),
            },
            Some(Root::Value(json)) => self.member(path, Some(json), &path.steps, captures),
            None => self.member(path, self.scope.config.get(&path.root), &path.steps, captures),
        }
    }

    /// Follows steps by reference and converts only what is at the end.
    fn member(
        &self,
        path: &Path,
        json: Option<&Json>,
        steps: &[Step],
        captures: Captures,
    ) -> Result<Option<Datum>, EvalError> {
        let Some(mut json) = json else { return Ok(None) };
        for step in steps {
            let next = match step {
                Step::Field(name) => json.get(name.as_str()),
                Step::Index(index) => {
                    let index = self.eval(index, captures)?;
                    let Json::Array(items) = json else {
                        if json.is_null() && path.optional {
                            return Ok(None);
                        }
                        return Err(EvalError::NoElement {
                            path: path.to_string(),
                            index: index.to_string(),
                        });
                    };
                    let at = python_index(&index, items.len());
                    let no_element =
                        || EvalError::NoElement { path: path.to_string(), index: index.to_string() };
                    Some(at.and_then(|at| items.get(at)).ok_or_else(no_element)?)
                }
            };
            match next {
                Some(next) => json = next,
                None => return Ok(None),
            }
        }
        match json {
            Json::Array(items) => self.spend(items.len())?,
            Json::Object(map) => self.spend(map.len())?,
            _ => {}
        }
        Ok(Some(Datum::from_json(json)))
    }

    /// Follows steps into a computed value.
    fn descend(&self, path: &Path, value: Datum, captures: Captures) -> Result<Option<Datum>, EvalError> {
        let mut value = value;
        for (n_done, step) in path.steps.iter().enumerate() {
            value = match (step, &value) {
                (_, Datum::Map(map)) => {
                    let map = map.clone();
                    let rest = path.steps.get(n_done + 1..).unwrap_or(&[]);
                    let Step::Field(name) = step else { return Ok(None) };
                    return self.member(path, map.get(name), rest, captures);
                }
                (Step::Index(index), Datum::List(items)) => {
                    let index = self.eval(index, captures)?;
                    let at = python_index(&index, items.len());
                    let no_element =
                        || EvalError::NoElement { path: path.to_string(), index: index.to_string() };
                    at.and_then(|at| items.get(at)).cloned().ok_or_else(no_element)?
                }
                _ => return Ok(None),
            };
        }
        Ok(Some(value))
    }

    fn binary(&self, op: BinaryOp, left: &Expr, right: &Expr, captures: Captures) -> Evaluated {
        let left = self.eval(left, captures)?;
        let skip = match op {
            BinaryOp::Coalesce => !left.is_null(),
            BinaryOp::Or => left.truth(),
            BinaryOp::And => !left.truth(),
            _ => false,
        };
        if skip {
            return Ok(left);
        }
        let right = self.eval(right, captures)?;
        Ok(match op {
            BinaryOp::Coalesce | BinaryOp::Or | BinaryOp::And => right,
            BinaryOp::Eq => Datum::Bool(left.equals(&right)),
            BinaryOp::Ne => Datum::Bool(!left.equals(&right)),
            BinaryOp::In => match (&left, &right) {
                (_, Datum::List(items)) => Datum::Bool(items.iter().any(|item| item.equals(&left))),
                (Datum::Text(key), Datum::Map(map)) => Datum::Bool(map.contains_key(&**key)),
                _ => return Err(EvalError::Kind { op: "in", found: right.kind() }),
            },
            BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => {
                Datum::Bool(compare(op, &left, &right)?)
            }
            _ => arithmetic(op, &left, &right)?,
        })
    }

    fn number(&self, function: Function, argument: &Expr, captures: Captures) -> Result<f64, EvalError> {
        let value = self.eval(argument, captures)?;
        value.as_float().ok_or(EvalError::Kind { op: function.name(), found: value.kind() })
    }

    fn call(&self, function: Function, arguments: &[Expr], captures: Captures) -> Evaluated {
        let op = function.name();
        let argument = |n: usize| arguments.get(n).unwrap_or(&Expr::Null);
        let value = |n: usize| self.eval(argument(n), captures);
        match function {
            Function::First => self.first(arguments, captures),
            Function::Min | Function::Max => {
                let mut best = value(0)?;
                for argument in arguments.iter().skip(1) {
                    let next = self.eval(argument, captures)?;
                    let wanted = if function == Function::Min { BinaryOp::Lt } else { BinaryOp::Gt };
                    if compare(wanted, &next, &best)? {
                        best = next;
                    }
                }
                Ok(best)
            }
            Function::Int | Function::Round | Function::Floor => {
                let value = value(0)?;
                if let Some(int) = value.as_int() {
                    return Ok(Datum::Int(int));
                }
                let float = value.as_float().ok_or(EvalError::Kind { op, found: value.kind() })?;
                let whole = match function {
                    Function::Int => float.trunc(),
                    Function::Round => float.round_ties_even(),
                    _ => float.floor(),
                };
                // Beyond 2^100 nothing in a model is an integer.
                if !whole.is_finite() || whole.abs() > 1e30 {
                    return Err(EvalError::Arithmetic { op, operands: value.to_string() });
                }
                Ok(Datum::Int(whole as i128))
            }
            Function::Float => Ok(Datum::Float(self.number(function, argument(0), captures)?)),
            Function::CeilDiv | Function::RoundUp => {
                let (a, b) = (value(0)?, value(1)?);
                let divided = arithmetic(BinaryOp::FloorDiv, &negated(op, &a)?, &b)?;
                let ceiled = negated(op, &divided)?;
                if function == Function::CeilDiv {
                    Ok(ceiled)
                } else {
                    arithmetic(BinaryOp::Mul, &ceiled, &b)
                }
            }
            Function::Sqrt | Function::Ln | Function::Log2 => {
                let x = self.number(function, argument(0), captures)?;
                let y = match function {
                    Function::Sqrt => x.sqrt(),
                    Function::Ln => x.ln(),
                    _ => x.log2(),
                };
                if y.is_finite() {
                    Ok(Datum::Float(y))
                } else {
                    Err(EvalError::Arithmetic { op, operands: format!("{x:?}") })
                }
            }
            Function::Len => Ok(Datum::Int(match value(0)? {
                Datum::List(items) => items.len() as i128,
                Datum::Text(text) => text.chars().count() as i128,
                Datum::Map(map) => map.len() as i128,
                other => return Err(EvalError::Kind { op, found: other.kind() }),
            })),
            Function::Layers => {
                let n = self.n_layers(arguments.get(1), captures)?;
                let items: Result<Vec<_>, _> = (0..n)
                    .map(|bid| self.eval(argument(0), Captures { bid: Some(bid), ..captures }))
                    .collect();
                Ok(Datum::List(items?.into()))
            }
            Function::Find => {
                for bid in 0..self.n_layers(arguments.get(1), captures)? {
                    let value = self.eval(argument(0), Captures { bid: Some(bid), ..captures })?;
                    if !value.is_null() {
                        return Ok(value);
                    }
                }
                Ok(Datum::Null)
            }
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
                Ok(Datum::Bool(self.scope.tensors.contains(&*name)))
            }
            Function::Count => {
                let prefix = value(0)?;
                let prefix = text(op, &prefix)?;
                self.spend(self.scope.tensors.len())?;
                // The maximum does not depend on the set's order.
                let indices =
                    self.scope.tensors.iter().filter_map(|name| leading_index(name.strip_prefix(prefix)?));
                Ok(Datum::Int(indices.max().map_or(0, |last| i128::from(last) + 1)))
            }
            Function::Kv => {
                let key = value(0)?;
                Ok(self.scope.kv(text(op, &key)?))
            }
            Function::File => {
                let name = value(0)?;
                let name = text(op, &name)?;
                Ok(Datum::Bool(self.scope.files.iter().any(|file| file == name)))
            }
        }
    }

    /// The first argument that is there, even if it is null; null if none is.
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
        let not_in_table = || EvalError::NotInTable { table: name.to_owned(), key: key.to_string() };
        match key {
            Datum::Null => Ok(Datum::Null),
            Datum::Text(text) => table.get(&**text).map(|&n| Datum::Int(n.into())).ok_or_else(not_in_table),
            _ => Err(not_in_table()),
        }
    }
}

fn text<'d>(op: &'static str, value: &'d Datum) -> Result<&'d str, EvalError> {
    match value {
        Datum::Text(text) => Ok(text),
        other => Err(EvalError::Kind { op, found: other.kind() }),
    }
}

/// A name with its placeholders filled in.
fn rendered(name: &str, captures: Captures) -> Result<Cow<'_, str>, EvalError> {
    if !name.contains('{') {
        return Ok(Cow::Borrowed(name));
    }
    let pattern = Pattern::parse(name, false).ok();
    let full = pattern.and_then(|pattern| pattern.render(captures));
    full.map(Cow::Owned).ok_or_else(|| EvalError::Absent(name.to_owned()))
}

/// The decimal index a text starts with, if a dot or the end follows it.
fn leading_index(rest: &str) -> Option<u64> {
    rest.split('.').next().filter(|index| index.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// A list index as Python takes it: negative ones count from the end.
fn python_index(index: &Datum, len: usize) -> Option<usize> {
    let index = index.as_int()?;
    usize::try_from(if index < 0 { index.checked_add(len as i128)? } else { index }).ok()
}

fn labels(op: &'static str, map: &Datum) -> Evaluated {
    let Datum::Map(map) = map else { return Err(EvalError::Kind { op, found: map.kind() }) };
    let mut rows = Vec::with_capacity(map.len());
    for (key, value) in map.iter() {
        let index: i64 =
            key.parse().map_err(|_| EvalError::Arithmetic { op, operands: escape(key).into_owned() })?;
        rows.push((index, Datum::from_json(value)));
    }
    rows.sort_by_key(|row| row.0);
    Ok(Datum::List(rows.into_iter().map(|row| row.1).collect::<Vec<_>>().into()))
}
