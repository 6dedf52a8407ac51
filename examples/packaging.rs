//! Writes the shell completions and manual pages of the four programs into a directory, as `scripts/release.sh` packs
//! them: `cargo run --features packaging --example packaging -- DIRECTORY`.

use std::io::Write;
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let dir = std::env::args_os().nth(1).ok_or_else(|| anyhow::anyhow!("a directory expected"))?;
    let mut out = std::io::stdout().lock();
    for path in gguf_foundry::cli::packaging::write(Path::new(&dir))? {
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}
