//! No run loses an input by writing an output: every output of every program over every input, by name, by symbolic
//! link and by hard link; over files of other kinds; two outputs in one file.

mod edits;
mod shortened;
mod signals;
mod table;
mod ways;
pub(super) mod workbench;
