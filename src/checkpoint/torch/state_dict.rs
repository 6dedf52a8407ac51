//! Finding the weights in what was saved: the dictionary at the top, or one inside it.

use std::collections::HashSet;

use crate::checkpoint::pickle::{Id, Pickle, Value};
use crate::checkpoint::torch::error::TorchError;

/// Keys under which training programs keep the weights, the likeliest first.
const WRAPPERS: &[&str] =
    &["state_dict", "model_state_dict", "model", "module", "net", "params", "generator", "ema"];
/// How deep the weights may be wrapped.
const WRAPPED: usize = 2;
/// Caps of dictionaries in dictionaries: depth, and bytes of a name's part before its last dot.
const DEPTH: usize = 16;
const PREFIX_BYTES: usize = 1024;

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct StateDict {
    /// Tensors by name, in the order of the file.
    pub(super) tensors: Vec<(String, Id)>,
    /// Keys whose values are no tensors.
    pub(super) others: Vec<String>,
}

/// Finds the dictionary of tensors.
///
/// # Errors
/// [`TorchError`]: there is none, or names that are not text or occur twice.
pub(super) fn find(pickle: &Pickle) -> Result<StateDict, TorchError> {
    let root = pickle.root();
    let Value::Map(_) = pickle.get(root) else {
        return Err(TorchError::Top { found: pickle.get(root).kind() });
    };
    let mut found = StateDict::default();
    match direct(pickle, root, WRAPPED) {
        Some(map) => take(pickle, map, &mut found)?,
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

/// The dictionary with tensors in it: `map` itself, or one under the usual keys, `depth` levels down.
fn direct(pickle: &Pickle, map: Id, depth: usize) -> Option<Id> {
    let pairs = pairs(pickle, map);
    if pairs.iter().any(|&(_, value)| is_tensor(pickle, value)) {
        return Some(map);
    }
    if depth == 0 {
        return None;
    }
    WRAPPERS.iter().find_map(|wrapper| {
        // A later assignment replaces an earlier one.
        let (_, value) = pairs.iter().rev().find(|&&(key, _)| pickle.text(key) == Some(wrapper))?;
        direct(pickle, *value, depth - 1)
    })
}

/// Tensors of one dictionary; what else is in it is noted.
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

/// Tensors of dictionaries in dictionaries, their keys joined with dots. Every dictionary counts once, so that shared
/// ones do not multiply and cyclic ones end.
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

/// Keys that never hold weights.
fn is_training_state(key: &str) -> bool {
    key.starts_with("optimizer") || key.starts_with("lr_scheduler")
}
