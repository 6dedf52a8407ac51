#!/usr/bin/env bash
# Every file type, without and with an importance matrix, must pass beside what it was made from.
# Usage: scripts/false_alarms.sh [MODEL [OUTPUT_DIRECTORY [VERIFY_OPTION..]]]
# MODEL is a GGUF in F32 or F16 (default: the bundled model, converted). Prints a line a file: verdict, weights, divergence
# and what its types cost a healthy file. Exits with 1 if a file does not pass. Needs the programs in target/release.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-}
out=${2:-target/false_alarms}
shift $(($# < 2 ? $# : 2))
bin=target/release
text=fixtures/tiny-llama/corpus.txt
mkdir -p "$out"
if [ -z "$model" ]; then
    model=$out/tiny-llama-f32.gguf
    "$bin/gguf-convert" hf2gguf fixtures/tiny-llama -o "$model" --type f32 --no-sync --quiet
fi
"$bin/gguf-verify" imatrix "$model" --prompts "$text" --ctx 256 --chunks 20 -o "$out/imatrix.gguf" --quiet

types=$("$bin/gguf-quantize" --help | sed -n 's/^\([A-Z][A-Z0-9_]*\)\(, [A-Z0-9_]*\)* \+[0-9]\+ \+[0-9.]\+ .*/\1/p')
n_passed=0
failed=()
for type in $types; do
    for importance in "" "--imatrix $out/imatrix.gguf"; do
        name=${type,,}${importance:+-imatrix}
        # shellcheck disable=SC2086
        if ! "$bin/gguf-quantize" "$model" "$out/x.gguf" --type "$type" $importance --allow-requantize --no-sync --quiet \
            2>"$out/error.txt"; then
            printf '%-20s not made: %s\n' "$name" "$(head -1 "$out/error.txt")"
            continue
        fi
        code=0
        "$bin/gguf-verify" "$out/x.gguf" --baseline "$model" --prompts "$text" --ctx 256 --score all --chunks 20 --json --quiet \
            "$@" >"$out/$name.json" || code=$?
        python3 - "$name" "$out/$name.json" <<'PY'
import json, sys

name, report = sys.argv[1], json.load(open(sys.argv[2]))["models"][0]
kld, cost, weights = report.get("kld") or {}, report.get("healthy_cost") or {}, report.get("weights") or {}
reasons = [f["check"] for f in report["findings"] if f["severity"] == "error"]
reasons += [f"{open['aspect']}: {open['reason']}" for open in report["not_judged"]]
print(f"{name:<20} {report['verdict']:<8} {weights.get('reproduced')} of {len(weights.get('tensors', []))} reproduced, "
      f"KLD {kld.get('mean', float('nan')):.3g}, healthy {cost.get('kld', float('nan')):.3g} {'; '.join(reasons)}")
PY
        if [ $code = 0 ]; then n_passed=$((n_passed + 1)); else failed+=("$name"); fi
    done
done
rm -f "$out/x.gguf"
echo "$n_passed passed, ${#failed[@]} did not: ${failed[*]:-none}"
[ ${#failed[@]} = 0 ] && [ "$n_passed" -gt 0 ]
