//! Runs inputs without a fuzzer: `replay CORPUS...`, each with a folder of inputs for each target; or `replay
//! TARGET=FILE`. For coverage, which counts what seeds reach, and for inspecting findings, on any toolchain.

#[path = "../entries.rs"]
mod entries;

use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::ExitCode;

/// Inputs of a folder, sorted by name; empty if the folder does not exist.
fn inputs(dir: &PathBuf) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// Stack size of the run: nested templates recurse, with large frames in coverage builds.
const STACK_BYTES: usize = 1 << 30;

fn main() -> ExitCode {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(replay).expect("one thread");
    thread.join().unwrap_or(ExitCode::FAILURE)
}

fn replay() -> ExitCode {
    let mut n_failed = 0;
    for word in std::env::args().skip(1) {
        for (target, ..) in entries::ENTRIES {
            let inputs = match word.split_once('=') {
                Some((name, path)) if name == *target => vec![PathBuf::from(path)],
                Some(_) => Vec::new(),
                None => inputs(&PathBuf::from(&word).join(target)),
            };
            let mut n_accepted = 0;
            for path in &inputs {
                let data = fs_err::read(path).expect("an input that can be read");
                match catch_unwind(|| entries::run(target, &data)) {
                    Ok(is_accepted) => n_accepted += u32::from(is_accepted),
                    Err(_) => {
                        n_failed += 1;
                        println!("{target}: {} failed", path.display());
                    }
                }
            }
            if !inputs.is_empty() {
                println!("{target}: {} inputs, {n_accepted} accepted", inputs.len());
            }
        }
    }
    if n_failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
