#!/usr/bin/env bash
# Everything that the table of speed in docs/guarantees.md is made of, ours beside the peer's, in one go.
#
#   lab/peers/bench_all.sh DIR_OF_PEER [--dir WORK] [--only NAME,...] [--llama-cpp SOURCE] [--python PYTHON]
#                              [--vocab CHECKPOINT] [--types Q4_K_M,...] [--rounds 3]
#
# DIR_OF_PEER holds llama-quantize, llama-perplexity, llama-imatrix, llama-tokenize and libggml-base.so. NAMEs: start, blocks,
# quantize, copy, convert, verify, scaling. `convert` needs llama.cpp's SOURCE and a PYTHON with its requirements, `start`
# times the vocabulary of a CHECKPOINT if one is named, `quantize` makes files of --types (all; the peer takes half an hour for
# the smallest). Models are made here, in WORK (default: bench-work; 10 GB). The machine should have nothing else to do.
#
# Each table goes to WORK/NAME.md, with the processor, the day and the commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
peer=$(realpath "$1"); shift
work=bench-work only=start,blocks,quantize,copy,convert,verify,scaling source="" python=python3 vocab="" rounds=3
types=Q8_0,Q4_0,Q2_K,Q3_K_M,Q4_K_M,Q5_K_M,Q6_K,IQ4_XS,IQ3_S,IQ3_XXS,IQ2_S,IQ2_XS,IQ2_XXS,IQ1_M,IQ1_S
while [ $# -gt 0 ]; do
  case $1 in
    --dir) work=$2 ;; --only) only=$2 ;; --llama-cpp) source=$2 ;; --python) python=$2 ;; --vocab) vocab=$2 ;; --types) types=$2 ;; --rounds) rounds=$2 ;;
    *) echo "bench_all.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
mkdir -p "$work"
cargo build --release --bins
ours=target/release here=lab/peers text=fixtures/tiny-llama/corpus.txt

checkpoint() { # NAME LAYERS: a random Llama
  [ -e "$work/$1/config.json" ] || "$python" $here/make_random_llama.py "$work/$1" --layers "$2"
}
large() { checkpoint large 22; } # 1.1 B
f16() { # CHECKPOINT
  [ -e "$work/$1.gguf" ] || $ours/gguf-convert hf2gguf "$work/$1" --type f16 -o "$work/$1.gguf" --quiet > /dev/null
}
table() { # NAME COMMAND...
  local name=$1; shift
  case ",$only," in *",$name,"*) ;; *) return 0 ;; esac
  echo "== $name" >&2
  { printf '%s, %s; ' "$(date -u +%F)" "$(git rev-parse --short HEAD)"; "$@"; } > "$work/$name.md"
  cat "$work/$name.md"
}

start() {
  large
  [ -e "$work/header.gguf" ] || $ours/gguf-convert hf2gguf "$work/large" --vocab-only -o "$work/header.gguf" --quiet > /dev/null
  "$python" $here/bench_start.py --programs $ours --inspect "$work/header.gguf" --dry-run "$work/large" ${vocab:+--vocab "$vocab"}
}
quantize() {
  checkpoint small 2 # 0.22 B
  f16 small
  [ -e "$work/imatrix.gguf" ] || "$peer/llama-imatrix" -m "$work/small.gguf" -f $text -c 512 --chunks 2 -o "$work/imatrix.gguf" > "$work/imatrix.log" 2>&1
  "$python" $here/bench_quantize.py --ours $ours/gguf-quantize --peer "$peer/llama-quantize" --model "$work/small.gguf" --imatrix "$work/imatrix.gguf" \
    --rounds "$rounds" --dir "$work" --types "$types"
}
convert() {
  large
  "$python" $here/bench_convert.py --llama-cpp "$source" --python "$python" --ours $ours/gguf-convert --runs "$rounds" --out "$work" "$work/large"
}
copy() {
  large
  "$python" $here/bench_copy.py --ours $ours/gguf-convert --runs "$rounds" --out "$work" "$work/large"
}
verify() {
  large
  f16 large
  "$python" $here/bench_verify.py --ours $ours/gguf-verify --peer "$peer" --model "$work/large.gguf" --text $text --chunks 2 --rounds "$rounds" \
    --dir "$work" --types F16,BF16,Q8_0,Q4_0,Q4_K_M,Q6_K,IQ4_XS
}
scaling() {
  large
  f16 large
  "$python" $here/bench_scaling.py --programs $ours --checkpoint "$work/large" --model "$work/large.gguf" --text $text --runs "$rounds" --out "$work"
}

table start start
table blocks "$python" $here/bench_blocks.py --ggml "$peer/libggml-base.so" --rounds "$rounds"
table quantize quantize
table copy copy
[ -z "$source" ] || table convert convert
table verify verify
table scaling scaling
