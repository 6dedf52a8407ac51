//! Tells the programs the commit of a release build, unless the builder says it in `GGUF_FOUNDRY_COMMIT`. Programs of other
//! builds are linked so that they start sooner.

use std::env;
use std::process::Command;

/// Returns what git prints, if there is a repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=GGUF_FOUNDRY_COMMIT");
    let is = |name: &str, value: &str| env::var_os(name).is_some_and(|found| found == value);
    if !is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        // Tests start them some thousand times, and each start would relocate 170,000 addresses.
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    let is_told = env::var_os("GGUF_FOUNDRY_COMMIT").is_some();
    // Builds for development have none: every commit would compile them anew.
    if is_told || !is("PROFILE", "release") {
        return;
    }
    // Not the commit of a repository that only contains these sources.
    let is_own = git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix.is_empty());
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some((commit, log)) = git(&["rev-parse", "--short", "HEAD"]).zip(log).filter(|_| is_own) {
        println!("cargo::rerun-if-changed={log}");
        println!("cargo::rustc-env=GGUF_FOUNDRY_COMMIT={commit}");
    }
}
