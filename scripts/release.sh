#!/usr/bin/env bash
# Builds the four static binaries and their checksums into dist/.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-$(rustc -vV | sed -n 's/^host: //p')}
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
# An explicit --target keeps the flag away from build scripts and procedural macros.
GGUF_FOUNDRY_COMMIT=$commit RUSTFLAGS="-C target-feature=+crt-static" \
    cargo build --release --locked --bins --target "$target"
mkdir -p dist
for bin in gguf-convert gguf-quantize gguf-verify gguf-inspect; do
    install -s "target/$target/release/$bin" "dist/$bin"
done
(cd dist && sha256sum gguf-* | grep -v SHA256SUMS > SHA256SUMS && cat SHA256SUMS)
