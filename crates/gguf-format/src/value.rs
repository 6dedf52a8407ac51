//! Metadata: the thirteen value types of the format, and the ordered table of keys.

use std::collections::HashMap;
use std::fmt;

/// Type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit signed integer.
    I8,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit signed integer.
    I16,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    I32,
    /// 32-bit float.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// Length and bytes.
    String,
    /// Element type, count, elements.
    Array,
    /// 64-bit unsigned integer.
    U64,
    /// 64-bit signed integer.
    I64,
    /// 64-bit float.
    F64,
}

impl ValueType {
    const ALL: [(Self, &'static str, &'static str); 13] = [
        (Self::U8, "u8", "uint8"),
        (Self::I8, "i8", "int8"),
        (Self::U16, "u16", "uint16"),
        (Self::I16, "i16", "int16"),
        (Self::U32, "u32", "uint32"),
        (Self::I32, "i32", "int32"),
        (Self::F32, "f32", "float32"),
        (Self::Bool, "bool", "bool"),
        (Self::String, "str", "string"),
        (Self::Array, "arr", "array"),
        (Self::U64, "u64", "uint64"),
        (Self::I64, "i64", "int64"),
        (Self::F64, "f64", "float64"),
    ];

    /// Number in the file format.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Returns the type with this number in the file format.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).map(|row| row.0)
    }

    /// Short name (`u32`, `str`), as accepted by `--set`.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Long name (`uint32`, `string`), as printed by gguf-py in lower case.
    pub fn long_name(self) -> &'static str {
        Self::ALL[self as usize].2
    }

    /// Returns the type with this short or long name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|row| row.1.eq_ignore_ascii_case(name) || row.2.eq_ignore_ascii_case(name))
            .map(|row| row.0)
    }

    /// Minimum size in bytes of an element of this type in a file.
    pub fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value. Strings are bytes: the format requires UTF-8, but not all files comply.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are those of `ValueType`")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Vec<u8>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value: elements of one type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are those of `ValueType`")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<Vec<u8>>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Applies an expression to the vector inside an [`Array`], whatever its type.
macro_rules! for_each_array {
    ($array:expr, $v:ident => $body:expr) => {
        match $array {
            $crate::Array::U8($v) => $body,
            $crate::Array::I8($v) => $body,
            $crate::Array::U16($v) => $body,
            $crate::Array::I16($v) => $body,
            $crate::Array::U32($v) => $body,
            $crate::Array::I32($v) => $body,
            $crate::Array::F32($v) => $body,
            $crate::Array::Bool($v) => $body,
            $crate::Array::String($v) => $body,
            $crate::Array::Array($v) => $body,
            $crate::Array::U64($v) => $body,
            $crate::Array::I64($v) => $body,
            $crate::Array::F64($v) => $body,
        }
    };
}

#[allow(unused_imports, reason = "the reader and writer")]
pub(crate) use for_each_array;

/// Returns the type of a [`Value`], or of the elements of an [`Array`].
macro_rules! variant_type {
    ($value:expr) => {
        variant_type!($value, U8 I8 U16 I16 U32 I32 F32 Bool String Array U64 I64 F64)
    };
    ($value:expr, $($variant:ident)*) => {
        match $value {
            $(Self::$variant(_) => ValueType::$variant,)*
        }
    };
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        for_each_array!(self, v => v.len())
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements whose index is wanted, in their order.
    pub fn filtered(&self, mut is_wanted: impl FnMut(usize) -> bool) -> Self {
        let mut filtered = self.clone();
        for_each_array!(&mut filtered, v => {
            let mut index = 0..;
            v.retain(|_| index.next().is_some_and(&mut is_wanted));
        });
        filtered
    }

    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        variant_type!(self)
    }

    /// Returns the element at `index` as a value.
    pub fn get(&self, index: usize) -> Option<Value> {
        Some(match self {
            Self::U8(v) => Value::U8(*v.get(index)?),
            Self::I8(v) => Value::I8(*v.get(index)?),
            Self::U16(v) => Value::U16(*v.get(index)?),
            Self::I16(v) => Value::I16(*v.get(index)?),
            Self::U32(v) => Value::U32(*v.get(index)?),
            Self::I32(v) => Value::I32(*v.get(index)?),
            Self::F32(v) => Value::F32(*v.get(index)?),
            Self::Bool(v) => Value::Bool(*v.get(index)?),
            Self::String(v) => Value::String(v.get(index)?.clone()),
            Self::Array(v) => Value::Array(v.get(index)?.clone()),
            Self::U64(v) => Value::U64(*v.get(index)?),
            Self::I64(v) => Value::I64(*v.get(index)?),
            Self::F64(v) => Value::F64(*v.get(index)?),
        })
    }
}

impl Value {
    /// Type of the value.
    pub fn value_type(&self) -> ValueType {
        variant_type!(self)
    }

    /// Returns the text of a string that is valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Returns the number of any integer type.
    pub fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Returns the number of any integer type if it is not negative and fits.
    pub fn as_u64(&self) -> Option<u64> {
        u64::try_from(self.as_i128()?).ok()
    }

    /// Returns the number of either float type.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value of a bool.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the array of an array value.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }
}

macro_rules! from {
    ($( $ty:ty => $variant:ident($held:ty); )*) => {
        $(
            impl From<$ty> for Value {
                fn from(value: $ty) -> Self {
                    Self::$variant(value.into())
                }
            }
            impl From<Vec<$ty>> for Value {
                fn from(values: Vec<$ty>) -> Self {
                    Self::Array(Array::$variant(values.into_iter().map(<$held>::from).collect()))
                }
            }
        )*
    };
}

from! {
    u16 => U16(u16);
    i16 => I16(i16);
    u32 => U32(u32);
    i32 => I32(i32);
    f32 => F32(f32);
    bool => Bool(bool);
    String => String(Vec<u8>);
    &str => String(Vec<u8>);
    u64 => U64(u64);
    i64 => I64(i64);
    f64 => F64(f64);
}

/// Ordered keys and values of a file. Keys are unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over keys and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + DoubleEndedIterator {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Returns true if the key exists.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Sets a key: replaces an existing value in place, else appends. A Python dictionary does the same, so the key
    /// order equals that of llama.cpp's converter.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let key = key.into();
        match self.index.get(&key) {
            Some(&at) => self.entries[at].1 = value.into(),
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value.into()));
            }
        }
    }

    /// Removes a key and returns its value; later keys move up.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        let (_, value) = self.entries.remove(at);
        for (at, (key, _)) in self.entries.iter().enumerate().skip(at) {
            self.index.insert(key.clone(), at);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_numbers_are_those_of_the_format() {
        for (id, row) in ValueType::ALL.iter().enumerate() {
            assert_eq!(row.0.id() as usize, id);
            assert_eq!(ValueType::from_id(id as u32), Some(row.0));
            assert_eq!(ValueType::from_name(row.2), Some(row.0));
        }
        assert_eq!(ValueType::from_id(13), None);
    }

    #[test]
    fn set_replaces_in_place_and_remove_closes_the_gap() {
        let mut metadata = Metadata::new();
        metadata.set("a", 1u32);
        metadata.set("b", "two");
        metadata.set("c", vec![true, false]);
        metadata.set("a", 3u32);
        let keys: Vec<_> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["a", "b", "c"]);
        assert_eq!(metadata.remove("b").and_then(|v| v.as_str().map(str::to_owned)).as_deref(), Some("two"));
        assert_eq!(metadata.get("c").and_then(Value::as_array).map(Array::len), Some(2));
        assert_eq!(metadata.get("b"), None);
    }
}
