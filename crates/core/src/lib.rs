//! What every other module rests on: types, shapes, exact numbers, bounded bytes. Knows no file format.

mod dtype;
mod hint;
mod shape;
mod tensor;

pub mod bytes;
pub mod limits;
pub mod little_endian;
pub mod mmap;
pub mod numeric;
pub mod output;
pub mod progress;
pub mod scratch;
pub mod simd;
pub mod similar;
pub mod small_float;
pub mod text;

pub use dtype::{ElementType, GgmlType, GgmlTypeInfo, ImatrixNeed};
pub use hint::Hint;
pub use shape::Shape;
pub use tensor::{Packing, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource};
