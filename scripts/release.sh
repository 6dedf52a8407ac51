#!/usr/bin/env bash
# Builds the four static programs with their completions, manual pages, reference of JSON, a Debian package where dpkg-deb is there, and checksums.
#
#   scripts/release.sh [TARGET] [DIR]
#
# TARGET is the triple of this machine unless said otherwise, DIR is dist/. x86_64-unknown-linux-musl and aarch64-unknown-linux-musl need
# no compiler or library of that system here: Rust brings linker and C library (`rustup target add TARGET`).
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${1:-$host}
dir=${2:-dist}
built=${CARGO_TARGET_DIR:-target}/$target/dist
programs=(gguf-convert gguf-quantize gguf-verify gguf-inspect)
GGUF_FOUNDRY_COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
export GGUF_FOUNDRY_COMMIT
if [ "$target" != "$host" ] && command -v rustup > /dev/null; then
    rustup target add "$target"
fi
case $target in
    "${host%%-*}"-*) ;;
    *-linux-musl)
        linker=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<< "$target")_LINKER
        export "$linker=${!linker:-rust-lld}"
        ;;
esac
# An explicit --target keeps the flags away from build scripts and procedural macros. The linker strips: `strip` of this machine does not know
# programs of another, and a profile's `strip` is lost where it has settings for single packages.
RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols" cargo build --profile dist --locked --bins --target "$target"
for program in "${programs[@]}"; do
    # Neither an interpreter nor a library that must be there.
    if command -v readelf > /dev/null && readelf -lW "$built/$program" | grep -q INTERP; then
        echo "$built/$program is not static" >&2
        exit 1
    fi
done
rm -rf "${dir:?}"/completions "$dir"/man "$dir"/json.md "$dir"/*.deb "$dir"/SHA256SUMS
mkdir -p "$dir"
for program in "${programs[@]}"; do
    install -m 755 "$built/$program" "$dir/$program"
done
# Made of the same parsers by a program for this machine, of which nothing is shipped: built quickly.
cargo run --locked --features packaging --example packaging -- "$dir" > /dev/null
# The reference of --json.
cargo run --locked -p gguf-foundry-json-page -- "$dir/json.md"
if command -v dpkg-deb > /dev/null; then
    scripts/debian.sh "$dir" "$target"
fi
(cd "$dir" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum > SHA256SUMS \
    && cat SHA256SUMS)
