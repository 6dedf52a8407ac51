//! A restricted pickle machine that supports enough of the format to find tensors and never executes anything.
//!
//! A pickle is a program for a stack machine. Python's machine imports and calls what the program names. This one
//! knows a fixed list of names ([`Global`]), turns a call of one of them into a description, and refuses every other
//! name. Values are stored in one arena and refer to one another by handle, so shared and cyclic values cost nothing
//! and there is no recursion. Each opcode makes at most one value, so memory is bounded by the length of the input.
//!
//! Supports the opcodes of protocols 0 to 5 as in Python's `pickletools`, release 3.11, without extension codes,
//! out-of-band buffers and the old object opcodes.

mod error;
pub(crate) mod globals;
mod literal;
mod machine;
mod value;

pub use error::{Forbidden, PickleError};
pub use globals::{Global, Rebuild};
pub use machine::read;
pub use value::{Id, Pickle, Value};
