#!/usr/bin/env bash
# Quantizes the bundled model with gguf-verify's importance matrix and with llama-imatrix's, both from the same text,
# and prints the divergence of both files from the original.
# Usage: lab/peers/imatrix_quality.sh LLAMA_BIN_DIRECTORY [TYPE..]     (default types: q4_k_m iq3_xxs q2_k)
set -euo pipefail
peer=$(realpath "$1")
shift
cd "$(dirname "$0")/../.."
types=("$@")
[ ${#types[@]} -gt 0 ] || types=(q4_k_m iq3_xxs q2_k)
profile=${PROFILE:-release}
bin=target/$profile
out=target/imatrix-quality
text=fixtures/tiny-llama/corpus.txt
mkdir -p "$out"

"$bin/gguf-convert" hf2gguf fixtures/tiny-llama -o "$out/f32.gguf" --type f32 --quiet
"$bin/gguf-verify" imatrix "$out/f32.gguf" --prompts "$text" --ctx 256 -o "$out/ours.gguf" --quiet
"$peer/llama-imatrix" -m "$out/f32.gguf" -f "$text" -c 256 -o "$out/peer.gguf" >"$out/llama-imatrix.log" 2>&1
files=()
for type in "${types[@]}"; do
    for of in ours peer; do
        "$bin/gguf-quantize" "$out/f32.gguf" "$out/$type-$of.gguf" --type "$type" --imatrix "$out/$of.gguf" --quiet
        files+=("$out/$type-$of.gguf")
    done
done
"$bin/gguf-verify" "${files[@]}" --baseline "$out/f32.gguf" --prompts "$text" --ctx 256 --quiet
