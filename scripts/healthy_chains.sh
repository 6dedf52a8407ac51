#!/usr/bin/env bash
# Chains of conversions that people make, none of which may fail or be doubted: the checkpoint as F32, BF16 and F16, each quantized to
# 18 types, with and without an importance matrix, beside the checkpoint over some 1,000 tokens. Exits with 1 if one does not pass.
# Needs the programs in target/release.
#
#   scripts/healthy_chains.sh [CHECKPOINT [TEXT]]
set -euo pipefail
cd "$(dirname "$0")/.."
checkpoint=${1:-fixtures/tiny-llama}
text=${2:-fixtures/tiny-llama/corpus.txt}
bin=$PWD/target/release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bin/gguf-convert" hf2gguf "$checkpoint" -o "$work/m-f32.gguf" --type f32 --quiet
"$bin/gguf-verify" imatrix "$work/m-f32.gguf" --prompts "$text" --chunks 20 -o "$work/imatrix.gguf" --quiet > /dev/null
n=0 bad=0
for between in f32 bf16 f16; do
    [ "$between" = f32 ] || "$bin/gguf-convert" hf2gguf "$checkpoint" -o "$work/m-$between.gguf" --type "$between" --quiet
    for type in q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 q4_k_m q4_k_s q4_1 q4_0 iq4_nl iq4_xs q3_k_l q3_k_m q3_k_s q2_k iq3_s iq2_xs; do
        for imatrix in none with; do
            extra=()
            [ "$imatrix" = none ] || extra=(--imatrix "$work/imatrix.gguf")
            out="$work/x-$type.gguf"
            rm -f "$out"
            # Types below three bits need a matrix.
            "$bin/gguf-quantize" "$work/m-$between.gguf" "$out" --type "$type" "${extra[@]}" --quiet > /dev/null 2>&1 || continue
            code=0
            line=$("$bin/gguf-verify" "$out" --baseline "$checkpoint" --prompts "$text" --ctx 256 --chunks 8 --quiet) || code=$?
            n=$((n + 1))
            if [ "$code" != 0 ]; then
                bad=$((bad + 1))
                printf '%s by %s, matrix: %s: exit %s\n%s\n' "$type" "$between" "$imatrix" "$code" "$line"
            fi
        done
    done
done
echo "$n files, $bad that did not pass"
[ "$bad" = 0 ]
