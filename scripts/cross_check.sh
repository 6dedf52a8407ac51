#!/usr/bin/env bash
# Compiles for systems that this machine is not, and tests there what an emulator can run.
#
#   scripts/cross_check.sh [TARGET...]
#
# Without arguments all of these. Linux on ARM is built static, and the tests of the block quantizers and of the matrix products run under
# qemu-aarch64-static where that is installed. Windows and macOS are checked, library and programs, with and without the network: linking needs the systems' own tools. Any
# other target is checked in the same way. Standard libraries come by `rustup target add`.
#
# Where a linker for Windows (x86_64-w64-mingw32-gcc) and wine are installed, `scripts/cross_check.sh x86_64-pc-windows-gnu` builds the programs and
# runs the tests of what all rooms share, and the demo, under wine: not Windows, but its interfaces.
set -euo pipefail
cd "$(dirname "$0")/.."
targets=("$@")
[ ${#targets[@]} -gt 0 ] ||
  targets=(aarch64-unknown-linux-musl x86_64-pc-windows-msvc x86_64-apple-darwin aarch64-apple-darwin)
for target in "${targets[@]}"; do
  rustup target add "$target" > /dev/null 2>&1 || { echo "$target: rustup has no standard library for it" >&2; exit 1; }
  echo "== $target" >&2
  case $target in
    aarch64-unknown-linux-musl)
      # Rust brings linker and C library for musl.
      export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
      cargo build --release --bins --target "$target"
      if emulator=$(command -v qemu-aarch64-static); then
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=$emulator cargo test --release --target "$target" -p gguf-blocks -p gguf-matmul -p gguf-core --lib
      else
        echo "no qemu-aarch64-static here: the tests were not run" >&2
      fi
      ;;
    x86_64-pc-windows-gnu)
      cargo build --bins --target "$target"
      built=$(realpath "${CARGO_TARGET_DIR:-target}")/$target/debug
      command -v wine > /dev/null || { echo "no wine here: nothing was run" >&2; continue; }
      export WINEDEBUG=-all WINEPATH=$built/wine CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=wine
      mkdir -p "$built/wine"
      # Rust's standard library asks this library for random numbers, which older wines do not have.
      echo 'int __stdcall SystemFunction036(void *, unsigned);
        __declspec(dllexport) int __stdcall ProcessPrng(char *p, unsigned long long n) { return SystemFunction036(p, (unsigned)n); }' |
        x86_64-w64-mingw32-gcc -shared -x c - -o "$built/wine/bcryptprimitives.dll" -ladvapi32
      cargo test --target "$target" -p gguf-core --lib
      for program in gguf-convert gguf-quantize gguf-verify gguf-inspect; do
        printf '#!/bin/sh\nexec wine "%s.exe" "$@"\n' "$built/$program" > "$built/wine/$program"
        chmod +x "$built/wine/$program"
      done
      scripts/demo.sh --programs "$built/wine" "$built/demo"
      ;;
    *)
      export RUSTFLAGS="-D warnings"
      cargo check --lib --bins --target "$target"
      cargo check --lib --bins --target "$target" --no-default-features --features cli
      unset RUSTFLAGS
      ;;
  esac
done
echo "compiled for ${targets[*]}"
