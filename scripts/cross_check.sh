#!/usr/bin/env bash
# Compiles for systems that this machine is not, and tests the vector code for ARM where an emulator is installed.
#
#   scripts/cross_check.sh [TARGET...]
#
# Without arguments: Linux on ARM, built static; the tests of the block quantizers run under qemu-aarch64-static where that is installed. Any other
# target (aarch64-apple-darwin) is checked: linking needs the system's own tools. Standard libraries come by `rustup target add`.
set -euo pipefail
cd "$(dirname "$0")/.."
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(aarch64-unknown-linux-musl)
for target in "${targets[@]}"; do
  rustup target add "$target" > /dev/null 2>&1 || { echo "$target: rustup has no standard library for it" >&2; exit 1; }
  echo "== $target" >&2
  case $target in
    aarch64-unknown-linux-musl)
      # Rust brings linker and C library for musl.
      export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
      cargo build --release --bins --target "$target"
      if emulator=$(command -v qemu-aarch64-static); then
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=$emulator cargo test --release --target "$target" -p gguf-quant -p gguf-core --lib
      else
        echo "no qemu-aarch64-static here: the tests were not run" >&2
      fi
      ;;
    *) cargo check --bins --target "$target" ;;
  esac
done
echo "compiled for ${targets[*]}"
