//! Conversions by the programs.

mod adapters;
pub mod annotate;
mod bad_input;
mod claims;
mod draft;
mod flm;
mod gguf2hf;
mod mmproj;
mod msmodelslim;
mod native;
mod numbers;
mod options;
mod program;
mod torch;
mod towers;
