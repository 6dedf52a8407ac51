//! Nothing that a run reads is lost to what it writes: every output of every program over every input, by name, by link
//! and by hard link; over files of other kinds; two outputs in one file.

mod edits;
mod shortened;
mod signals;
mod table;
mod ways;
mod workbench;
