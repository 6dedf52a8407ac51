//! Expected shapes of tensors by the metadata keys of their file. The converter compares its plan with them, the
//! verifier an existing file.
//!
//! The rules are in `shapes.toml`. Shapes without a rule, and those that need absent keys, are not judged.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value as Json};

use crate::language::datum::Datum;
use crate::language::eval::error::EvalError;
use crate::language::eval::{Root, Scope};
use crate::language::expr::{BinaryOp, Expr, Path, PathStep};
use crate::language::names::Captures;
use crate::registry;
use gguf_core::{Shape, TensorMeta};
use gguf_format::{Metadata, Value};

mod rules;

use rules::Rules;

/// Architecture of files of towers.
const TOWERS: &str = "clip";
/// Root of expressions: the number of tokens.
const TOKENS: &str = "tokens";
/// Maximum number of blocks that are checked: no model has as many.
pub(crate) const MAX_BLOCKS: usize = 4096;
/// Maximum length of a list that is used as a whole in blocks for which it has no element.
const MAX_LIST: usize = 64;
/// Maximum number of parts in a key's name; no rule reads longer names.
const MAX_PARTS: usize = 6;
const TOKEN_LIST: &str = "tokenizer.ggml.tokens";
/// Tensor with one row per token.
pub const EMBEDDING: &str = "token_embd.weight";

/// Result of comparing tensors with the keys of their file.
#[derive(Clone, Debug, Default)]
pub struct ShapeCheck {
    /// Tensors that contradict keys, in file order.
    pub wrong: Vec<WrongShape>,
    /// Tensors whose shape needs a key that the file lacks: index and key, in file order.
    pub missing_keys: Vec<(usize, String)>,
    /// Names of tensors with at least one dimension that does not follow from keys.
    pub not_judged: Vec<String>,
}

/// Tensor whose shape contradicts the keys of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongShape {
    /// Index of the tensor in the file.
    pub tensor: usize,
    /// Name of the tensor.
    pub name: String,
    /// Shape of the tensor.
    pub found: Shape,
    /// Shape by the keys, outermost first; `None` for dimensions that they do not determine.
    pub expected: Vec<Option<u64>>,
    /// Keys that determine the wrong dimensions, with their values for the tensor's block.
    pub keys: Vec<(String, String)>,
}

impl WrongShape {
    /// Returns the expected shape as text.
    pub fn expected(&self) -> String {
        let dim = |dim: &Option<u64>| dim.map_or_else(|| "_".to_owned(), |dim| dim.to_string());
        format!("[{}]", self.expected.iter().map(dim).collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for WrongShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, expected {}", self.found, self.expected())?;
        if self.keys.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = self.keys.iter().map(|(key, value)| format!("`{key}` = {value}")).collect();
        write!(f, " by {}", keys.join(", "))
    }
}

/// Index of a tensor, the dimensions of its rule, and the number of leading dimensions that apply.
type RuledTensor<'a> = (usize, &'a Vec<Expr>, usize);

/// Compares the shapes of tensors with the keys of their file. Architectures without an embedded card are not judged.
pub fn check_shapes(metadata: &Metadata, tensors: &[TensorMeta]) -> ShapeCheck {
    let arch = metadata.get("general.architecture").and_then(Value::as_str);
    let Some(arch) = arch.filter(|arch| *arch == TOWERS || registry::is_embedded(arch)) else {
        return ShapeCheck::default();
    };
    let rules = Rules::of(arch);
    let mut file = FileKeys::new(arch, metadata, rules, tensors);
    let mut by_block: BTreeMap<Option<u64>, Vec<RuledTensor<'_>>> = BTreeMap::new();
    let mut check = ShapeCheck::default();
    for (at, tensor) in tensors.iter().enumerate() {
        let (template, bid) = rules::template(&tensor.name);
        match rules.find(&template) {
            Some((dims, n)) => by_block.entry(bid).or_default().push((at, dims, n)),
            None => check.not_judged.push(tensor.name.clone()),
        }
    }
    for (n_before, (bid, tensors_of_block)) in by_block.into_iter().enumerate() {
        if n_before >= MAX_BLOCKS {
            check.not_judged.extend(tensors_of_block.iter().map(|(at, ..)| tensors[*at].name.clone()));
            continue;
        }
        file.enter(bid);
        for (at, dims, n) in tensors_of_block {
            let tensor = &tensors[at];
            let expected = dims.iter().take(n).map(|dim| file.number(dim));
            let expected = expected.map(|dim| match dim {
                Ok(dim) => dim,
                Err(key) => {
                    check.missing_keys.push((at, key));
                    None
                }
            });
            let expected: Vec<Option<u64>> = expected.collect();
            let (found, expected) = aligned(tensor.shape.dims(), expected);
            let is_wrong = |axis: usize| expected[axis].is_some_and(|dim| found[axis] != dim);
            if expected.iter().any(Option::is_none) {
                check.not_judged.push(tensor.name.clone());
            }
            let wrong: Vec<usize> = (0..expected.len()).filter(|&axis| is_wrong(axis)).collect();
            if wrong.is_empty() {
                continue;
            }
            let n_before = expected.len().saturating_sub(n);
            let exprs = wrong.iter().filter_map(|axis| dims.get(axis.checked_sub(n_before)?));
            let keys = file.keys(exprs);
            let (name, found) = (tensor.name.clone(), tensor.shape.clone());
            check.wrong.push(WrongShape { tensor: at, name, found, expected, keys });
        }
    }
    check.wrong.sort_by_key(|wrong| wrong.tensor);
    check.missing_keys.sort();
    check.missing_keys.dedup_by_key(|missing_keys| missing_keys.0);
    check
}

/// Returns the shape of a tensor with the outer dimensions of 1 that llama.cpp drops when it quantizes a file.
pub fn with_dropped_ones(arch: &str, name: &str, shape: &Shape) -> Shape {
    let rank = Rules::of(arch).find(&rules::template(name).0).map_or(0, |(_, n)| n);
    let n_dropped = rank.saturating_sub(shape.rank());
    let dims = std::iter::repeat_n(1, n_dropped).chain(shape.dims().iter().copied()).collect();
    Shape::new(dims).unwrap_or_else(|| shape.clone())
}

/// Returns true if the embedding of an architecture's files has a row for each token of the file. A draft model may
/// have the rows of another model.
pub fn embeds_all_tokens(arch: &str) -> bool {
    let rules = Rules::of(arch);
    let rows = rules.find(EMBEDDING).and_then(|(dims, _)| dims.first());
    rows.is_some_and(is_tokens)
}

fn is_tokens(rows: &Expr) -> bool {
    matches!(rows, Expr::Path(path) if path.root == TOKENS)
}

/// Pads both shapes to the same number of dimensions with leading ones, as the format itself does.
fn aligned(found: &[u64], mut expected: Vec<Option<u64>>) -> (Vec<u64>, Vec<Option<u64>>) {
    let mut found = found.to_vec();
    while found.len() > expected.len() && found.first() == Some(&1) {
        found.remove(0);
    }
    let n = found.len().max(expected.len());
    found.splice(0..0, std::iter::repeat_n(1, n - found.len()));
    expected.splice(0..0, std::iter::repeat_n(Some(1), n - expected.len()));
    (found, expected)
}

/// Keys of a file as expressions see them, for one block at a time.
struct FileKeys<'a> {
    arch: &'a str,
    /// Keys of the architecture, nested by the parts of their names.
    keys: Map<String, Json>,
    tokens: Option<(String, u64)>,
    scope: Scope<'a>,
    captures: Captures,
    /// Definitions being expanded.
    open: RefCell<Vec<String>>,
}

impl<'a> FileKeys<'a> {
    fn new(arch: &'a str, metadata: &'a Metadata, rules: &'a Rules, tensors: &'a [TensorMeta]) -> Self {
        let mut keys = Map::new();
        for (key, value) in metadata.iter() {
            let own = key.strip_prefix(arch).and_then(|rest| rest.strip_prefix('.'));
            if let Some(key) = own.filter(|key| key.matches('.').count() < MAX_PARTS) {
                insert(&mut keys, key, Datum::from_value(value).to_json());
            }
        }
        let listed = metadata.get(TOKEN_LIST).and_then(Value::as_array).map(|list| list.len() as u64);
        let listed = listed.map(|n| (TOKEN_LIST.to_owned(), n));
        // Without a token list, the runtime uses the key.
        let by_key = || {
            let key = format!("{arch}.vocab_size");
            let n = metadata.get(&key).and_then(Value::as_u64)?;
            Some((key, n))
        };
        let rows = rules.find(EMBEDDING).and_then(|(dims, _)| dims.first());
        let by_embedding = || {
            rows.filter(|rows| is_tokens(rows))?;
            let own = tensors.iter().find(|tensor| tensor.name == EMBEDDING)?;
            Some((EMBEDDING.to_owned(), *own.shape.dims().first()?))
        };
        let tokens = listed.or_else(by_key).or_else(by_embedding);
        let root = tokens.as_ref().map(|(_, n)| (TOKENS, Root::Value(Json::from(*n))));
        let scope = Scope {
            lets: Some(&rules.lets),
            roots: root.into_iter().collect(),
            tensors: tensors.iter().map(|tensor| tensor.name.as_str()).collect(),
            gguf: Some((arch, metadata)),
            ..Scope::default()
        };
        Self { arch, keys, tokens, scope, captures: Captures::default(), open: RefCell::default() }
    }

    /// Gives keys their values of this block.
    fn enter(&mut self, bid: Option<u64>) {
        self.captures.bid = bid;
        self.scope.config = match bid.and_then(|bid| usize::try_from(bid).ok()) {
            Some(at) => of_block(&self.keys, at),
            None => self.keys.clone(),
        };
    }

    /// Returns a dimension; `None` if it is not determined.
    fn number(&self, expr: &Expr) -> Result<Option<u64>, String> {
        match self.scope.eval(expr, self.captures) {
            Ok(value) => Ok(value.as_int().and_then(|n| u64::try_from(n).ok())),
            Err(EvalError::Absent(name)) if name != TOKENS => Err(format!("{}.{name}", self.arch)),
            Err(_) => Ok(None),
        }
    }

    fn value(&self, expr: &Expr) -> Option<Datum> {
        self.scope.eval(expr, self.captures).ok().filter(|value| !value.is_null())
    }

    /// Returns the keys that expressions depend on, with their values.
    fn keys<'e>(&self, exprs: impl Iterator<Item = &'e Expr>) -> Vec<(String, String)> {
        let mut names = BTreeSet::new();
        exprs.for_each(|expr| self.names(expr, &mut names));
        let value = |name: String| {
            if name == TOKENS {
                return self.tokens.as_ref().map(|(key, n)| {
                    let value = if key == TOKEN_LIST { format!("{n} tokens") } else { n.to_string() };
                    (key.clone(), value)
                });
            }
            let path = Expr::parse(&format!("{name}?")).ok()?;
            let value = self.value(&path)?.to_string();
            Some((format!("{}.{name}", self.arch), value))
        };
        names.into_iter().filter_map(value).collect()
    }

    /// Collects the names that an expression reads; only the chosen branch of a condition counts.
    fn names(&self, expr: &Expr, out: &mut BTreeSet<String>) {
        match expr {
            Expr::Path(path) => self.path_names(path, out),
            Expr::If(parts) => {
                let holds = self.value(&parts[0]).is_some_and(|value| value.truth());
                self.names(if holds { &parts[1] } else { &parts[2] }, out);
            }
            Expr::Binary(BinaryOp::Coalesce, sides) => {
                let has_left = self.value(&sides[0]).is_some();
                self.names(if has_left { &sides[0] } else { &sides[1] }, out);
            }
            Expr::Binary(_, sides) => sides.iter().for_each(|side| self.names(side, out)),
            Expr::Call(_, arguments) => arguments.iter().for_each(|argument| self.names(argument, out)),
            Expr::List(items) => items.iter().for_each(|item| self.names(item, out)),
            Expr::Not(inner) | Expr::Neg(inner) => self.names(inner, out),
            Expr::Null | Expr::Bool(_) | Expr::Int(_) | Expr::Float(_) | Expr::Text(_) => {}
        }
    }

    fn path_names(&self, path: &Path, out: &mut BTreeSet<String>) {
        let is_open = self.open.borrow().contains(&path.root);
        let definition = self.scope.lets.and_then(|lets| lets.get(&path.root));
        if let (Some(definition), false) = (definition, is_open) {
            self.open.borrow_mut().push(path.root.clone());
            self.names(definition, out);
            self.open.borrow_mut().pop();
            return;
        }
        let mut name = path.root.clone();
        for step in &path.steps {
            if let PathStep::Field(field) = step {
                name = format!("{name}.{field}");
            }
        }
        out.insert(name);
    }
}

/// Inserts a value under the parts of its key's name.
fn insert(keys: &mut Map<String, Json>, key: &str, value: Json) {
    match key.split_once('.') {
        None => {
            keys.insert(key.to_owned(), value);
        }
        Some((head, rest)) => {
            let inner = keys.entry(head).or_insert_with(|| Json::Object(Map::new()));
            if let Json::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// Returns the values of keys in a block: of a list with one element per block, the block's element.
fn of_block(keys: &Map<String, Json>, at: usize) -> Map<String, Json> {
    let value = |value: &Json| match value {
        Json::Array(items) => match items.get(at) {
            Some(item) => item.clone(),
            None if items.len() <= MAX_LIST => value.clone(),
            None => Json::Null,
        },
        Json::Object(members) => Json::Object(of_block(members, at)),
        other => other.clone(),
    };
    keys.iter().map(|(key, member)| (key.clone(), value(member))).collect()
}
