//! Search for the weights in a saved object: the top-level dictionary, or one inside it.

use std::collections::HashSet;

use crate::pickle::{Id, Pickle, Value};
use crate::torch::error::TorchError;

/// Keys under which training programs store the weights, most likely first.
const WRAPPERS: &[&str] =
    &["state_dict", "model_state_dict", "model", "module", "net", "params", "generator", "ema"];
/// Maximum nesting depth of such keys around the weights.
const WRAPPED: usize = 2;
/// Limits of nested dictionaries: depth, and bytes of a name before its last dot.
const DEPTH: usize = 16;
const PREFIX_BYTES: usize = 1024;

/// The tensors of a file.
#[derive(Debug, Default)]
pub(super) struct StateDict {
    /// Tensors by name, in the order of the file.
    pub(super) tensors: Vec<(String, Id)>,
    /// Keys whose values are not tensors.
    pub(super) others: Vec<String>,
    /// Key of the dictionary with the weights, and of the dictionaries beside it that hold other weights; or nothing.
    pub(super) sets: Option<(String, Vec<String>)>,
}

pub(super) fn find(pickle: &Pickle) -> Result<StateDict, TorchError> {
    let root = pickle.root();
    let Value::Map(_) = pickle.get(root) else {
        return Err(TorchError::Top { found: pickle.get(root).kind() });
    };
    let mut found = StateDict::default();
    match direct(pickle, root, WRAPPED) {
        Some(map) => {
            found.sets = sets(pickle, root, map, WRAPPED);
            take(pickle, map, &mut found)?;
        }
        None => flatten(pickle, root, &mut found)?,
    }
    if found.tensors.is_empty() {
        return Err(TorchError::NoTensors);
    }
    let mut seen = HashSet::with_capacity(found.tensors.len());
    match found.tensors.iter().find(|(name, _)| !seen.insert(name.as_str())) {
        Some((name, _)) => Err(TorchError::Duplicate { name: name.clone() }),
        None => Ok(found),
    }
}

fn pairs(pickle: &Pickle, map: Id) -> &[(Id, Id)] {
    match pickle.get(map) {
        Value::Map(pairs) => pairs,
        _ => &[],
    }
}

fn is_tensor(pickle: &Pickle, id: Id) -> bool {
    matches!(pickle.get(id), Value::Rebuilt { .. })
}

/// Returns the dictionary that contains the weights: `map` itself, or one under the usual keys, up to `depth` levels
/// down.
///
/// Tensors beside such a key are of the training (a loss, the state of a random generator), unless their names have the
/// dots of modules.
fn direct(pickle: &Pickle, map: Id, depth: usize) -> Option<Id> {
    let pairs = pairs(pickle, map);
    let mut tensors = pairs.iter().filter(|&&(_, value)| is_tensor(pickle, value)).peekable();
    let own = tensors.peek().map(|_| map);
    if depth == 0 || tensors.any(|pair| is_of_module(pickle, *pair)) {
        return own;
    }
    let wrapped = WRAPPERS.iter().find_map(|wrapper| {
        // A later assignment replaces an earlier one.
        let (_, value) = pairs.iter().rev().find(|&&(key, _)| pickle.text(key) == Some(wrapper))?;
        direct(pickle, *value, depth - 1)
    });
    wrapped.or(own)
}

/// Returns true for a tensor whose name has the dots of modules.
fn is_of_module(pickle: &Pickle, (key, value): (Id, Id)) -> bool {
    is_tensor(pickle, value) && pickle.text(key).is_some_and(|name| name.contains('.'))
}

/// Returns the key in `map` that leads to the weights, and those that lead to other weights: of another model, or averages
/// of the same.
fn sets(pickle: &Pickle, map: Id, taken: Id, depth: usize) -> Option<(String, Vec<String>)> {
    let depth = depth.checked_sub(1)?;
    let leads_to = |&(_, value): &(Id, Id)| direct(pickle, value, depth);
    let named =
        |pair: &(Id, Id)| pickle.text(pair.0).filter(|key| !is_training_state(key)).map(str::to_owned);
    let own = pairs(pickle, map).iter().find(|pair| leads_to(pair) == Some(taken))?;
    let has_weights = |id: Id| pairs(pickle, id).iter().any(|pair| is_of_module(pickle, *pair));
    let is_other = |pair: &&(Id, Id)| leads_to(pair).is_some_and(|id| id != taken && has_weights(id));
    let others: Vec<String> = pairs(pickle, map).iter().filter(is_other).filter_map(named).collect();
    if others.is_empty() { sets(pickle, own.1, taken, depth) } else { Some((named(own)?, others)) }
}

/// Collects the tensors of one dictionary, and the keys of its other values.
fn take(pickle: &Pickle, map: Id, found: &mut StateDict) -> Result<(), TorchError> {
    for &(key, value) in pairs(pickle, map) {
        match pickle.text(key) {
            Some(name) if is_tensor(pickle, value) => found.tensors.push((name.to_owned(), value)),
            Some(name) => found.others.push(name.to_owned()),
            None if is_tensor(pickle, value) => {
                return Err(TorchError::Key { found: pickle.get(key).kind() });
            }
            None => {}
        }
    }
    Ok(())
}

/// Collects the tensors of nested dictionaries, their keys joined with dots.
///
/// Each dictionary is visited once, so that shared ones do not multiply and cyclic ones end.
fn flatten(pickle: &Pickle, root: Id, found: &mut StateDict) -> Result<(), TorchError> {
    let mut seen = HashSet::from([root]);
    let mut open = vec![(String::new(), pairs(pickle, root).iter())];
    while let Some((prefix, rest)) = open.last_mut() {
        let Some(&(key, value)) = rest.next() else {
            open.pop();
            continue;
        };
        let Some(key) = pickle.text(key).filter(|key| !is_training_state(key)) else { continue };
        let name = format!("{prefix}{key}");
        match pickle.get(value) {
            Value::Rebuilt { .. } => found.tensors.push((name, value)),
            Value::Map(pairs) => {
                if !seen.insert(value) {
                    return Err(TorchError::Cycle { name });
                }
                if open.len() >= DEPTH || name.len() > PREFIX_BYTES {
                    let name = name.chars().take(64).collect();
                    return Err(TorchError::TooDeep { name });
                }
                open.push((name + ".", pairs.iter()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns true for keys that never hold weights.
fn is_training_state(key: &str) -> bool {
    key.starts_with("optimizer") || key.starts_with("lr_scheduler")
}
