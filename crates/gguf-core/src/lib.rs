//! Basics shared by the crates of gguf-foundry: types, shapes, exact numbers, bounded bytes, inputs and outputs. Knows
//! no file format.
//!
//! | module | subject |
//! |---|---|
//! | (root) | the tables of GGML types and of checkpoint element types, [`Shape`], the traits of tensor streams |
//! | [`account`] | what becomes of each piece of an input |
//! | [`numeric`] | C's casts and roundings, F16 and BF16, bit for bit |
//! | [`comparison`] | sums over values and their reference |
//! | [`simd`] | available vector instructions, and code compiled for them |
//! | [`bytes`] [`limits`] [`text`] | untrusted input: a checked cursor, caps, escaped strings |
//! | [`mmap`] [`output`] [`scratch`] [`spill`] | mapped inputs, atomic outputs, reused buffers, unnamed number files |
//! | [`ranged`] | files of remote checkpoints, fetched range by range |
//! | [`weight_file`] | a file with weights, mapped or fetched |
//! | [`platform`] | operating system services, implemented for each system |
//! | [`sha256`] | digests of files |
//! | [`progress`] | progress and cancellation of a long run |
//! | [`written`] | values of reports, as JSON has them |
//! | [`isolated`] | untrusted programs (chat templates, tokenizer rules) in a process with resource limits |

mod content;
mod dtype;
mod hint;
mod shape;
mod tensor;

pub mod account;
pub mod bytes;
pub mod comparison;
pub mod exact;
pub mod input;
pub mod isolated;
pub mod limits;
pub mod little_endian;
pub mod mmap;
pub mod numeric;
pub mod output;
pub mod platform;
pub mod progress;
pub mod ranged;
pub mod scratch;
pub mod sha256;
pub mod shard_name;
pub mod simd;
pub mod similar;
pub mod small_float;
pub mod spill;
pub mod sync;
pub mod text;
pub mod unique_keys;
pub mod weight_file;
pub mod written;

pub use content::Content;
pub use dtype::{ElementType, GgmlType, GgmlTypeInfo, ImatrixNeed};
pub use hint::Hint;
pub use shape::Shape;
pub use tensor::{Packing, SourceError, StackFactors, TensorMeta, TensorSource, WeightMeta, WeightSource};
