//! Persistent ids: the descriptions of storages.

use crate::pickle::globals::{Global, StorageClass, StorageElements};
use crate::pickle::{Id, Pickle, Value};
use crate::torch::error::TensorProblem;
use gguf_core::ElementType;

/// A parsed persistent id: `('storage', class, key, location, number of elements)`.
///
/// The older container adds a view of the storage: `None` or `(key, offset, number of elements)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StorageId {
    pub(super) key: String,
    /// Element type; bytes for an untyped storage.
    pub(super) ty: ElementType,
    pub(super) n_elems: u64,
    /// First element and number of elements of the view; the whole storage without one.
    pub(super) view: (u64, u64),
}

impl StorageId {
    /// Reads the id of a persistent value.
    ///
    /// # Errors
    /// A value that is no such id, an unsupported element type, a view beyond the storage.
    pub(super) fn read(pickle: &Pickle, storage: Id) -> Result<Self, TensorProblem> {
        let Value::Persistent(id) = pickle.get(storage) else {
            return Err(TensorProblem::Field { field: "storage", found: pickle.get(storage).kind() });
        };
        Self::of_tuple(pickle, *id)
    }

    pub(super) fn of_tuple(pickle: &Pickle, id: Id) -> Result<Self, TensorProblem> {
        let Value::Tuple(fields) = pickle.get(id) else { return Err(TensorProblem::PersistentId) };
        let (&[tag, class, key, _, n_elems], view) =
            fields.split_first_chunk().ok_or(TensorProblem::PersistentId)?;
        let key = key_text(pickle, key).ok_or(TensorProblem::PersistentId)?;
        let n_elems = pickle.int(n_elems).ok_or(TensorProblem::PersistentId)?;
        let n_elems = u64::try_from(n_elems)
            .map_err(|_| TensorProblem::Negative { field: "number of elements", value: n_elems })?;
        let Value::Global(Global::Storage(class)) = pickle.get(class) else {
            return Err(TensorProblem::PersistentId);
        };
        if pickle.text(tag) != Some("storage") {
            return Err(TensorProblem::PersistentId);
        }
        let ty = element_type(*class)?;
        let view = match view {
            [] => (0, n_elems),
            &[view] if *pickle.get(view) == Value::None => (0, n_elems),
            &[view] => {
                let fields = match pickle.items(view) {
                    Some(&[_, offset, n]) => pickle.int(offset).zip(pickle.int(n)),
                    _ => None,
                };
                let (offset, n) = fields.ok_or(TensorProblem::PersistentId)?;
                let checked = u64::try_from(offset).ok().zip(u64::try_from(n).ok());
                let inside =
                    |&(first, n): &(u64, u64)| first.checked_add(n).is_some_and(|end| end <= n_elems);
                checked.filter(inside).ok_or_else(|| TensorProblem::StorageView {
                    key: key.clone(),
                    offset,
                    n,
                    n_elems,
                })?
            }
            _ => return Err(TensorProblem::PersistentId),
        };
        Ok(Self { key, ty, n_elems, view })
    }
}

/// Returns a key as text; early versions wrote numbers.
pub(super) fn key_text(pickle: &Pickle, key: Id) -> Option<String> {
    match pickle.get(key) {
        Value::Text(text) => Some(text.to_string()),
        Value::Int(n) => Some(n.to_string()),
        _ => None,
    }
}

fn element_type(class: StorageClass) -> Result<ElementType, TensorProblem> {
    match class.elements {
        StorageElements::Typed(ty) => Ok(ty),
        StorageElements::Untyped => Ok(ElementType::U8),
        StorageElements::Unreadable => Err(TensorProblem::StorageClass { class: class.name }),
    }
}
