#!/usr/bin/env bash
# Reports of gguf-verify in a real browser: one file, six, encoders, experts, a failing one, names that are markup.
# Opened by headless Chromium at 400, 720, 1200 and 1600 pixels, light and dark: nothing in the console, nothing outside the window,
# no request beyond the page, foreign names as text. Screenshots are kept. Without Chromium it says so and passes.
# Usage: scripts/browser_check.sh [OUTPUT_DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/browser}

for name in "${CHROMIUM:-chromium}" chromium-browser google-chrome; do
    if browser=$(command -v "$name"); then break; fi
done
if [ -z "$browser" ]; then
    echo "no Chromium here: the pages were not opened (CHROMIUM=PROGRAM names one)"
    exit 0
fi
if ! command -v python3 >/dev/null; then
    echo "no python3 here: the pages were not opened"
    exit 0
fi

cargo build --bins
bin=$PWD/target/debug
rm -rf "$out"
mkdir -p "$out"
model=$PWD/fixtures/tiny-llama
experts=$PWD/fixtures/native/nvfp4_qwen3moe/hf
cd "$out"

"$bin/gguf-convert" hf2gguf "$model" -o f32.gguf --type f32 --quiet --no-sync
for type in q8_0 q6_k q5_k_m q4_k_m q3_k_m q2_k; do
    "$bin/gguf-quantize" f32.gguf "tiny-llama-$type.gguf" --type "$type" --quiet --no-sync
done

# A verdict is what a report shows: 3 and 4 are as good as 0 here.
verify() {
    local code=0
    "$bin/gguf-verify" "$@" --prompts "$model/corpus.txt" --ctx 256 --chunks 8 --quiet --no-sync >/dev/null || code=$?
    case $code in 0 | 3 | 4) ;; *) echo "gguf-verify $*: exit code $code" >&2; return 1 ;; esac
}

verify tiny-llama-q4_k_m.gguf --baseline f32.gguf --report one.html --report one.md --report one.json
verify tiny-llama-q*.gguf --baseline f32.gguf --report six.html --report six.md
verify tiny-llama-q4_k_m.gguf --report alone.html

# Encoders, and a model with experts.
"$bin/gguf-inspect" set f32.gguf llama.attention.causal=bool:false -o encoder.gguf --quiet --no-sync >/dev/null
for type in q8_0 q4_0; do
    "$bin/gguf-quantize" encoder.gguf "encoder-$type.gguf" --type "$type" --quiet --no-sync
done
verify encoder-q8_0.gguf encoder-q4_0.gguf --baseline encoder.gguf --report encoders.html --report encoders.md
"$bin/gguf-convert" hf2gguf "$experts" -o experts.gguf --type f32 --no-tokenizer --quiet --no-sync
"$bin/gguf-quantize" experts.gguf experts-q4_0.gguf --type q4_0 --quiet --no-sync
python3 -c 'print("{\"tokens\": %s}" % [at * 7 % 31 for at in range(64)])' >ids.jsonl
code=0
"$bin/gguf-verify" experts-q4_0.gguf --baseline experts.gguf --prompts ids.jsonl --score all --quiet --no-sync \
    --report experts.html --report experts.md >/dev/null || code=$?
case $code in 0 | 3 | 4) ;; *) exit 1 ;; esac

# A file that is cut off, one that misses its limit, one that is in order.
head -c 2000 f32.gguf >cut.gguf
verify tiny-llama-q2_k.gguf cut.gguf tiny-llama-q8_0.gguf --baseline f32.gguf --max-kld 0.001 --report failing.html \
    --report failing.md

# Markup, escapes, marks of direction and a name without a break, wherever a name can stand.
hostile='<script>document.title="owned"</script><img src=http:x onerror=alert(1)>'
file='<img src=x onerror=alert(1)>|`"&amp;.gguf'
long=$(printf 'x%.0s' {1..180}).gguf
cp tiny-llama-q4_k_m.gguf "$file"
cp tiny-llama-q2_k.gguf "$long"
printf '{"text": "<script>alert(1)</script> %s"}\n' "$(printf 'once upon a time <b>%.0s' {1..60})" >'<b>prompts.jsonl'
"$bin/gguf-inspect" set "$file" "general.name=str:$hostile"$'\e[31m\xe2\x80\xae' --quiet >/dev/null
code=0
"$bin/gguf-verify" "$file" "$long" --baseline f32.gguf --prompts '<b>prompts.jsonl' --ctx 256 --quiet --no-sync \
    --report hostile.html --report hostile.md >/dev/null || code=$?
case $code in 0 | 3 | 4) ;; *) exit 1 ;; esac

cd - >/dev/null
python3 scripts/browser_check.py "$browser" "$out/shots" "$out"/{one,six,alone,encoders,experts,failing,hostile}.html \
    --text "$out/hostile.html" "$hostile" --text "$out/hostile.html" "$file" --text "$out/hostile.html" "$long" \
    --text "$out/hostile.html" '\u{1b}[31m\u{202e}' --text "$out/hostile.html" '<b>prompts.jsonl' \
    --text "$out/failing.html" cut.gguf
echo "screenshots: $out/shots"
