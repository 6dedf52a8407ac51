#!/usr/bin/env bash
# SmolLM2 there and back: GGUF -> checkpoint -> GGUF gives the same tensors and tokenizer, and transformers loads the checkpoint.
# Usage: smollm2_roundtrip.sh FOLDER_OF_OUR_PROGRAMS SMOLLM2.gguf [PYTHON_WITH_TRANSFORMERS]
# The model comes from scripts/get-smollm2.sh.
set -euo pipefail
bin=$1
model=$2
python=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bin/gguf-convert" gguf2hf "$model" -o "$work/hf" --type f32
"$bin/gguf-convert" hf2gguf "$work/hf" -o "$work/back.gguf" --type f16
# The same values from the original: decoded, and rounded to F16.
"$bin/gguf-quantize" --quiet --allow-requantize "$model" "$work/want.gguf" F16
"$bin/gguf-inspect" diff "$work/back.gguf" "$work/want.gguf" > "$work/diff.txt" || true
cat "$work/diff.txt"
grep -q ' 0 tensors differ' "$work/diff.txt"
if grep -q '^key tokenizer\.' "$work/diff.txt"; then
    echo "a tokenizer key differs" >&2
    exit 1
fi
if [ -n "$python" ]; then
    "$python" - "$work/hf" <<'PY'
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
inputs = tokenizer("The capital of France is", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=8, do_sample=False)[0]))
PY
fi
echo "tensors and tokenizer are equal"
