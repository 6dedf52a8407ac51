//! The values that a pickle describes, in an arena and addressed by handle.

use crate::pickle::globals::{Global, Rebuild};

/// Handle of a value of a [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(u32);

/// One value.
///
/// Containers hold handles and may contain themselves.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of up to 64 bits.
    Int(i64),
    /// A longer integer: little-endian two's complement, as in the file.
    Long(Box<[u8]>),
    /// Text; byte strings of Python 2 are decoded as Latin-1.
    Text(Box<str>),
    /// A value that does not affect tensors: a float, bytes, a set, a device.
    Opaque,
    /// A tuple.
    Tuple(Box<[Id]>),
    /// A list.
    List(Vec<Id>),
    /// A dictionary of any kind, in the order of its assignments; a key may occur twice.
    Map(Vec<(Id, Id)>),
    /// A name from the list.
    Global(Global),
    /// The object of a persistent id; holds the id.
    Persistent(Id),
    /// The recorded call of a function that creates a tensor.
    ///
    /// The function was not called.
    Rebuilt {
        /// Function of the call.
        by: Rebuild,
        /// Arguments of the call.
        args: Box<[Id]>,
    },
}

impl Value {
    /// Returns the kind of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bool(_) => "a bool",
            Self::Int(_) | Self::Long(_) => "an integer",
            Self::Text(_) => "text",
            Self::Opaque => "another value",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Map(_) => "a dictionary",
            Self::Global(_) => "a name",
            Self::Persistent(_) => "a storage",
            Self::Rebuilt { .. } => "a tensor",
        }
    }
}

/// The result of reading one pickle.
#[derive(Clone, Debug)]
pub struct Pickle {
    values: Vec<Value>,
    root: Id,
    end: usize,
}

impl Pickle {
    pub(super) fn new(values: ValueArena, root: Id, end: usize) -> Self {
        Self { values: values.0, root, end }
    }

    /// Handle of the final value of the pickle.
    pub fn root(&self) -> Id {
        self.root
    }

    /// Number of bytes read, including STOP.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns the value of a handle.
    ///
    /// # Panics
    /// If the handle belongs to another pickle.
    pub fn get(&self, id: Id) -> &Value {
        &self.values[id.0 as usize]
    }

    /// All values that were created, reachable or not.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.values.iter()
    }

    /// Returns the text of a value, or `None` if it is not text.
    pub fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the integer of a value, or `None` if it is not an integer of up to 64 bits.
    pub fn int(&self, id: Id) -> Option<i64> {
        match self.get(id) {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// Returns the items of a tuple or list.
    pub fn items(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::Tuple(items) => Some(items),
            Value::List(items) => Some(items),
            _ => None,
        }
    }
}

/// The arena under construction.
///
/// Frequent immutable values are created once.
#[derive(Debug)]
pub(super) struct ValueArena(Vec<Value>);

impl ValueArena {
    pub(super) fn new() -> Self {
        Self(vec![Value::None, Value::Bool(false), Value::Bool(true), Value::Opaque])
    }

    pub(super) fn none() -> Id {
        Id(0)
    }

    pub(super) fn bool(value: bool) -> Id {
        Id(1 + u32::from(value))
    }

    pub(super) fn opaque() -> Id {
        Id(3)
    }

    /// Adds a value; `None` when handles run out.
    pub(super) fn add(&mut self, value: Value) -> Option<Id> {
        let id = u32::try_from(self.0.len()).ok()?;
        self.0.push(value);
        Some(Id(id))
    }

    pub(super) fn get(&self, id: Id) -> &Value {
        &self.0[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: Id) -> &mut Value {
        &mut self.0[id.0 as usize]
    }
}
