#!/usr/bin/env bash
# Fuzzes each target for some seconds with libFuzzer, each with a seed of its own that is printed and repeats the run:
# on nightly with the address sanitizer, on stable without it. Corpora grow in fuzz/corpus and start from the seeds of
# tests/it/fuzz; what fails ends the run of its target and is
# kept in fuzz/artifacts. Ends with 1 if anything was found.
# Targets that are named get a program each, which holds only what they reach and is up to ten times as fast; all
# together share one, which is built once.
# Usage: scripts/fuzz.sh [--no-sanitizer] SECONDS [TARGET...]
#        FUZZ_SEED=N takes this seed for all, FUZZ_JOBS=N builds with so many jobs, FUZZ_RUN="nice -n 19" runs under it.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=true
if [ "${1:-}" = --no-sanitizer ]; then
    sanitizer=false
    shift
fi
seconds=${1:?usage: scripts/fuzz.sh [--no-sanitizer] SECONDS [TARGET...]}
shift
targets=("$@")
shared=false
if [ ${#targets[@]} = 0 ]; then
    shared=true
    mapfile -t targets < <(sed -n 's/^    ("\([a-z0-9_]*\)", .*/\1/p' fuzz/entries.rs)
fi
jobs=${FUZZ_JOBS:+-j "$FUZZ_JOBS"}
triple=$(rustc -vV | sed -n 's/^host: //p')

# The seeds, words and files of the repository, by the tests that also check them.
GGUF_FUZZ_CORPUS=$PWD/fuzz/corpus cargo test $jobs --quiet --test it -- \
    fuzz::seeds_reach fuzz::files_of_the_repository >/dev/null

toolchain=
if ! $sanitizer; then
    echo "without the address sanitizer, as asked for"
elif cargo +nightly -V >/dev/null 2>&1; then
    toolchain=+nightly
    export RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS:-}"
    # Pools of threads live as long as the process: no leaks.
    export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1
    echo "with the address sanitizer: $(cargo +nightly -V)"
else
    echo "without the address sanitizer: there is no nightly toolchain"
fi
build=target/fuzz${toolchain:+-asan}
program=$build/$triple/release/any
# build [TARGET]: the program of one target, or the one of all.
build() {
    env ${1:+FUZZ_TARGET="$1"} RUSTC_WRAPPER="$PWD/fuzz/rustc.sh" cargo $toolchain build $jobs --release --quiet \
        --manifest-path fuzz/Cargo.toml --bin any --target "$triple" --target-dir "$build"
}
if $shared; then build; fi

mkdir -p fuzz/artifacts
# Targets that need files get a directory in memory, if there is one.
room=$(mktemp -d "$([ -d /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/gguf-fuzz.XXXXXX")
trap 'rm -rf "$room"' EXIT
n_found=0
total=0
printf '%-20s %12s %8s %8s %8s  %s\n' target executions edges features findings seed
for target in "${targets[@]}"; do
    if ! $shared; then build "$target"; fi
    seed=${FUZZ_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
    log=fuzz/artifacts/$target.log
    mkdir -p "fuzz/corpus/$target"
    before=$(find fuzz/artifacts -name "$target-*" | wc -l)
    TMPDIR=$room FUZZ_TARGET=$target ${FUZZ_RUN:-} "$program" -seed="$seed" -max_total_time="$seconds" \
        -print_final_stats=1 -timeout=15 -rss_limit_mb=2048 -malloc_limit_mb=512 \
        -artifact_prefix="fuzz/artifacts/$target-" -dict="fuzz/corpus-words/$target.dict" \
        "fuzz/corpus/$target" >"$log" 2>&1 || true
    found=$(($(find fuzz/artifacts -name "$target-*" | wc -l) - before))
    executions=$(grep -ao 'number_of_executed_units: *[0-9]*' "$log" | grep -o '[0-9]*$' | tail -1) || true
    read -r edges features < <(grep -ao 'cov: [0-9]* ft: [0-9]*' "$log" | tail -1 | awk '{print $2, $4}') || true
    printf '%-20s %12s %8s %8s %8s  %s\n' \
        "$target" "${executions:-?}" "${edges:-0}" "${features:-0}" "$found" "$seed"
    n_found=$((n_found + found))
    total=$((total + ${executions:-0}))
done
echo "$total executions, $n_found findings (inputs and logs: fuzz/artifacts)"
[ "$n_found" = 0 ]
