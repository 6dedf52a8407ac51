//! A restricted pickle machine: enough of the format to find tensors, and nothing that acts.
//!
//! A pickle is a program for a stack machine. Python's machine imports and calls what the program names; this one
//! knows a fixed list of names ([`Global`]), turns a call of one of them into a description, and refuses every other
//! name. Values live in one arena and refer to one another by handle, so that shared and cyclic values cost nothing
//! and nothing recurses. Each opcode makes at most one value: memory is bounded by the length of the input.
//!
//! Opcodes of protocols 0 to 5 as in Python's `pickletools`, release 3.11, without extension codes, out-of-band
//! buffers and the old object opcodes.

mod error;
pub(crate) mod globals;
mod literal;
mod machine;
mod value;

pub use error::{Forbidden, PickleError};
pub use globals::{Global, Rebuild};
pub use machine::read;
pub use value::{Id, Pickle, Value};
