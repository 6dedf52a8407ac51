#!/usr/bin/env bash
# The main job on the bundled model: convert a Hugging Face checkpoint, quantize it to several types, look into one,
# and verify them all against the checkpoint: one table, one exit code.
# Usage: scripts/demo.sh [--programs DIRECTORY] [OUTPUT_DIRECTORY]
# Builds the programs as the tests do, so that both take one build. With --programs nothing is built: those of a release
# (target/release, dist/) are tried, on all of the text.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=
# A part of the text is enough to see that it works; the README shows the figures of all of it.
chunks=(--chunks 12)
if [ "${1:-}" = --programs ]; then
    bin=$2 chunks=()
    shift 2
fi
out=${1:-target/demo}
if [ -z "$bin" ]; then
    cargo build --bins
    bin=${CARGO_TARGET_DIR:-target}/debug
fi
mkdir -p "$out"

run() {
    printf '\n$ %s\n' "$(basename "$1") ${*:2}"
    "$@"
}

types=(q8_0 q6_k q4_k_m q3_k_m q2_k)
files=("$out/tiny-llama-f32.gguf")
run "$bin/gguf-convert" hf2gguf fixtures/tiny-llama -o "${files[0]}" --type f32
for type in "${types[@]}"; do
    run "$bin/gguf-quantize" "${files[0]}" "$out/tiny-llama-$type.gguf" --type "$type"
    files+=("$out/tiny-llama-$type.gguf")
done
run "$bin/gguf-convert" hf2gguf fixtures/tiny-llama -o "$out/tiny-llama-q4_k_m-one-pass.gguf" --type q4_k_m
cmp "$out/tiny-llama-q4_k_m.gguf" "$out/tiny-llama-q4_k_m-one-pass.gguf"
run "$bin/gguf-inspect" "$out/tiny-llama-q4_k_m.gguf"
run "$bin/gguf-verify" "${files[@]}" --baseline fixtures/tiny-llama --prompts fixtures/tiny-llama/corpus.txt --ctx 256 \
    "${chunks[@]}"
