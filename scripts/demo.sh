#!/usr/bin/env bash
# The main job on the bundled model: convert a Hugging Face checkpoint, quantize it to several types, look into one,
# and verify them all against the checkpoint: one table, one exit code.
# Usage: scripts/demo.sh [--profile release|dev | --programs DIRECTORY] [OUTPUT_DIRECTORY]
# With --programs nothing is built: those of a release (dist/) are tried.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=release
bin=
case ${1:-} in
    --profile) profile=$2; shift 2 ;;
    --programs) bin=$2; shift 2 ;;
esac
out=${1:-target/demo}
if [ -z "$bin" ]; then
    cargo build --profile "$profile" --bins
    bin=${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")
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
# A third of the text is enough to see that it works; the README shows the figures of all of it.
chunks=()
if [ "$profile" = dev ]; then chunks=(--chunks 32); fi
run "$bin/gguf-verify" "${files[@]}" --baseline fixtures/tiny-llama --prompts fixtures/tiny-llama/corpus.txt --ctx 256 \
    "${chunks[@]}"
