//! What the programs have in common: their arguments, names, messages and refusals.

mod archs;
mod completions;
mod default_names;
mod determinism;
#[cfg(unix)]
mod guards;
mod hints;
mod isolated;
mod output;
mod refused;
