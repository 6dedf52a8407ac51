#!/usr/bin/env bash
# The tests of every unsafe block under the address sanitizer of a nightly toolchain: mapped files (crates/core), the
# vector instructions of the quantizers and decoders (crates/quant, each level the processor has), and the products of
# matrices (crates/matmul, with those who use them: crates/solve, crates/engine). Says so and passes where there is no nightly toolchain; SANITIZE_MUST=1 fails there.
# Usage: scripts/sanitize.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly -V >/dev/null 2>&1; then
    echo "no nightly toolchain here: nothing was checked"
    exit "${SANITIZE_MUST:-0}"
fi
triple=$(rustc -vV | sed -n 's/^host: //p')
echo "address sanitizer of $(cargo +nightly -V)"
grep -rn --include='*.rs' -c 'unsafe {' src crates | awk -F: '$2 > 0 { print "  " $1 ": " $2 " blocks"; n += $2 } END { print "  " n " in all" }'
export RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS:-}"
# Reports end a test; leaks are no matter here: pools of threads live as long as the process.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1

# sanitized NAME ARGUMENT...: a test run, and how many tests it had.
sanitized() {
    local name=$1 log
    shift
    log=$(mktemp)
    if ! cargo +nightly test --target "$triple" --target-dir target/sanitize "$@" >"$log" 2>&1; then
        cat "$log"
        exit 1
    fi
    sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log" | awk -v name="$name" '{ n += $1 } END { print name ": " n " tests passed" }'
    rm -f "$log"
}

# The sanitizer's library answers mlock without locking, which one test looks at.
sanitized "crates/core (mapped files, levels)" -p gguf-foundry-core --lib -- --skip a_locked_file_stays_in_memory
sanitized "crates/quant (vector instructions)" -p gguf-foundry-quant --lib
sanitized "crates/matmul, crates/solve (products)" -p gguf-foundry-matmul -p gguf-foundry-solve --lib
sanitized "crates/engine (products)" -p gguf-foundry-engine --lib
sanitized "crates/gguf, crates/checkpoint (readers of mapped files)" -p gguf-foundry-gguf -p gguf-foundry-checkpoint --lib
