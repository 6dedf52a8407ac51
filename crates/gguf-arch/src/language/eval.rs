//! Evaluates card expressions with Python's arithmetic and a step limit.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use crate::language::datum::Datum;
use crate::language::expr::{BinaryOp, Expr, Function, Path, PathStep};
use crate::language::names::Captures;
use crate::language::values::WeightValues;
use gguf_core::WeightMeta;
use gguf_format::Metadata;

mod arithmetic;
pub(crate) mod error;
mod functions;
mod normal;
#[cfg(test)]
mod tests;

use arithmetic::{arithmetic, compare};
use error::{EvalError, MAX_STEPS};

/// Maximum depth of nested definitions and expressions.
const MAX_DEPTH: u32 = 200;

/// Meaning of the names in expressions.
#[derive(Debug, Default)]
pub struct Scope<'a> {
    /// Configuration with nested parts merged and defaults filled in.
    pub config: Map<String, Json>,
    /// Definitions of the card.
    pub lets: Option<&'a IndexMap<String, Expr>>,
    /// Tables for `lookup`.
    pub tables: Option<&'a IndexMap<String, IndexMap<String, i64>>>,
    /// Roots: other objects with a name, such as `rope`, `opt`, `tokenizer_config`.
    pub roots: Vec<(&'static str, Root<'a>)>,
    /// Names of the checkpoint's tensors: of the weights that cards see, and of the stored tensors.
    pub tensors: HashSet<&'a str>,
    /// Weights that cards see, with their shapes.
    pub weights: &'a [WeightMeta],
    /// Stored tensors, with their shapes.
    pub stored: &'a [WeightMeta],
    /// Names after the shared and the card's own rewriting, each with the original name.
    pub renamed: HashMap<String, &'a str>,
    /// Names of the files in the checkpoint's directory.
    pub files: &'a [String],
    /// Architecture and metadata of the GGUF file, if one is converted back.
    pub gguf: Option<(&'a str, &'a Metadata)>,
    /// Access to the content of weights.
    pub values: WeightValues<'a>,
}

/// Value of a root.
#[derive(Clone, Debug)]
pub enum Root<'a> {
    /// Object owned by the caller.
    Map(&'a Map<String, Json>),
    /// Owned value.
    Value(Json),
}

impl<'a> Scope<'a> {
    /// Evaluates with captures but without a tensor.
    pub fn eval(&self, expr: &Expr, captures: Captures) -> Result<Datum, EvalError> {
        self.eval_with(expr, captures, &[])
    }

    /// Evaluates with captures and the dimensions of the current tensor (`d0`, `d1`, …).
    pub(crate) fn eval_with(
        &self,
        expr: &Expr,
        captures: Captures,
        dims: &[u64],
    ) -> Result<Datum, EvalError> {
        let evaluator = Evaluator {
            scope: self,
            dims,
            steps: Cell::new(MAX_STEPS),
            depth: Cell::new(0),
            open: RefCell::new(Vec::new()),
        };
        evaluator.eval(expr, captures)
    }

    /// Returns the truth of an expression; true without an expression.
    pub fn holds(&self, expr: Option<&Expr>, captures: Captures) -> Result<bool, EvalError> {
        expr.map_or(Ok(true), |expr| Ok(self.eval(expr, captures)?.truth()))
    }

    /// Evaluates a count.
    ///
    /// # Errors
    /// [`EvalError`], also for any value other than an integer from 0 to 2^63 - 1.
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

    /// Returns the value of a metadata key, with or without the architecture as prefix; null if there is none.
    pub(crate) fn kv(&self, key: &str) -> Datum {
        let Some((arch, metadata)) = self.gguf else { return Datum::Null };
        let value = metadata.get(&format!("{arch}.{key}")).or_else(|| metadata.get(key));
        value.map_or(Datum::Null, Datum::from_value)
    }

    /// Returns the checkpoint's name of a tensor, by its original or its rewritten name.
    pub(crate) fn tensor(&self, name: &str) -> Option<&'a str> {
        self.tensors.get(name).or_else(|| self.renamed.get(name)).copied()
    }

    /// As [`Scope::tensor`]; else returns the only tensor whose name ends with a dot and `name`.
    pub(crate) fn tensor_by_ending(&self, name: &str) -> Option<&'a str> {
        self.tensor(name).or_else(|| {
            let ends = |weight: &&WeightMeta| {
                weight.name.strip_suffix(name).is_some_and(|front| front.ends_with('.'))
            };
            let mut found = self.weights.iter().chain(self.stored).filter(ends);
            found.next().filter(|_| found.next().is_none()).map(|weight| weight.name.as_str())
        })
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
    /// Definitions being evaluated: inside its own definition a name is the configuration key.
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

    /// Returns the value of a path; `None` if something on it is absent.
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
        if path.root == "vocab" {
            return self.member(path, Some(&self.scope.values.vocabulary()), &path.steps, captures);
        }
        match self.scope.root(&path.root) {
            Some(Root::Map(map)) => match path.steps.split_first() {
                None => {
                    self.spend(map.len())?;
                    Ok(Some(Datum::Map((*map).clone().into())))
                }
                Some((PathStep::Field(name), rest)) => self.member(path, map.get(name), rest, captures),
                Some((PathStep::Index(_), _)) => Ok(None),
            },
            Some(Root::Value(json)) => self.member(path, Some(json), &path.steps, captures),
            None => self.member(path, self.scope.config.get(&path.root), &path.steps, captures),
        }
    }

    /// Follows steps by reference and converts only the final value.
    fn member(
        &self,
        path: &Path,
        json: Option<&Json>,
        steps: &[PathStep],
        captures: Captures,
    ) -> Result<Option<Datum>, EvalError> {
        let Some(mut json) = json else { return Ok(None) };
        for step in steps {
            let next = match step {
                PathStep::Field(name) => json.get(name.as_str()),
                PathStep::Index(index) => {
                    let index = self.eval(index, captures)?;
                    let no_element =
                        || EvalError::NoElement { path: path.to_string(), index: index.to_string() };
                    match json {
                        Json::Array(items) => {
                            match python_index(&index, items.len()).and_then(|at| items.get(at)) {
                                None if path.optional => return Ok(None),
                                found => Some(found.ok_or_else(no_element)?),
                            }
                        }
                        // Object with numeric keys.
                        Json::Object(map) if index.as_int().is_some() => map.get(&index.to_string()),
                        // Object with keys that are not identifiers.
                        Json::Object(map) if let Datum::Text(key) = &index => map.get(&**key),
                        // A character is a final value: nothing can be inside it.
                        Json::String(text) => {
                            let at = python_index(&index, text.chars().count());
                            let letter = match at.and_then(|at| text.chars().nth(at)) {
                                None if path.optional => return Ok(None),
                                letter => letter.ok_or_else(no_element)?,
                            };
                            return Ok(Some(Datum::Text(letter.to_string().into())));
                        }
                        _ if path.optional => return Ok(None),
                        _ => return Err(no_element()),
                    }
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
                    let PathStep::Field(name) = step else { return Ok(None) };
                    return self.member(path, map.get(name), rest, captures);
                }
                (PathStep::Index(index), Datum::List(items)) => {
                    let index = self.eval(index, captures)?;
                    let at = python_index(&index, items.len());
                    let no_element =
                        || EvalError::NoElement { path: path.to_string(), index: index.to_string() };
                    match at.and_then(|at| items.get(at)) {
                        None if path.optional => return Ok(None),
                        found => found.cloned().ok_or_else(no_element)?,
                    }
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
}

/// Returns a list index as in Python: negative ones count from the end.
fn python_index(index: &Datum, len: usize) -> Option<usize> {
    let index = index.as_int()?;
    usize::try_from(if index < 0 { index.checked_add(len as i128)? } else { index }).ok()
}
