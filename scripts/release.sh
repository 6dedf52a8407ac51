#!/usr/bin/env bash
# Builds the four static binaries with their completions, manual pages, a Debian package where dpkg-deb is there, and checksums
# into dist/.
# Usage: scripts/release.sh [TARGET]
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${1:-$host}
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
# An explicit --target keeps the flag away from build scripts and procedural macros.
GGUF_FOUNDRY_COMMIT=$commit RUSTFLAGS="-C target-feature=+crt-static" \
    cargo build --profile dist --locked --features packaging --bins --example packaging --target "$target"
rm -rf dist/completions dist/man dist/*.deb
mkdir -p dist
for bin in gguf-convert gguf-quantize gguf-verify gguf-inspect; do
    install -s "target/$target/dist/$bin" "dist/$bin"
done
if [ "${target%%-*}" = "${host%%-*}" ]; then
    "target/$target/dist/examples/packaging" dist
else
    # A program for another machine does not run here; its completions and pages are the same.
    cargo run --profile dist --locked --features packaging --example packaging -- dist
fi
if command -v dpkg-deb > /dev/null; then
    scripts/debian.sh dist "$target"
fi
(cd dist && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum > SHA256SUMS \
    && cat SHA256SUMS)
