//! The four programs: arguments to options, call the library, print.

pub mod convert;
pub mod inspect;
pub mod quantize;
pub mod verify;
