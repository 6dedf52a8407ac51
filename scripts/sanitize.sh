#!/usr/bin/env bash
# The tests of every unsafe block under the address sanitizer of a nightly toolchain: mapped files (crates/gguf-core), the
# vector instructions of the quantizers and decoders (crates/gguf-blocks, each level the processor has), and the products of
# matrices (crates/gguf-matmul, with those who use them: crates/gguf-solve, crates/gguf-engine). Says so and passes where there is no nightly toolchain; SANITIZE_MUST=1 fails there.
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
sanitized "crates/gguf-core (mapped files, levels)" -p gguf-core --lib -- --skip a_locked_file_stays_in_memory
sanitized "crates/gguf-blocks (vector instructions)" -p gguf-blocks --lib
sanitized "crates/gguf-matmul, crates/gguf-solve (products)" -p gguf-matmul -p gguf-solve --lib
sanitized "crates/gguf-engine (products)" -p gguf-engine --lib
sanitized "crates/gguf-format, crates/gguf-checkpoint (readers of mapped files)" -p gguf-format -p gguf-checkpoint --lib
