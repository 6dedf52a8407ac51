#!/usr/bin/env bash
# How long a newcomer waits: a fresh clone with an empty target folder, wall time by phase.
# Usage: scripts/build_time.sh [demo] [test] [edit] [ci]     (default: demo test edit)
#   demo   scripts/demo.sh to its table
#   test   cargo test, the README's, after the demo if that was measured before
#   edit   a change in src/cli, rebuilt in the dev profile
#   ci     all of .ci/run
# The registry's crates are fetched before the clock starts. Figures of a busy machine are worth nothing: quote an idle one.
set -euo pipefail
cd "$(dirname "$0")/.."
phases=("$@")
[ $# -gt 0 ] || phases=(demo test edit)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
git clone --quiet . "$dir/clone"
# The corpus lies beside the repository where there is one; CI looks for it there.
corpus=$(cd .. && pwd)/shared
[ ! -d "$corpus" ] || ln -s "$corpus" "$dir/shared"
cd "$dir/clone"
cargo fetch --quiet --locked

echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores; $(rustc --version)"
row() { printf '%-44s %5d s\n' "$1" "$2"; }

# Runs cargo (or a script around it) and prints when the first crate of this repository began, when the build was done, and the end.
phase() {
    local name=$1 log=$dir/log start=$SECONDS library='' built=''
    shift
    "$@" > "$log.out" 2> >(while IFS= read -r line; do printf '%s %s\n' "$SECONDS" "$line"; done > "$log") || {
        tail -n 20 "$log" "$log.out" >&2
        exit 1
    }
    local end=$SECONDS
    sleep 1
    library=$(awk '/ Compiling gguf-core v/ { print $1; exit }' "$log")
    built=$(awk '/ Finished / { print $1; exit }' "$log")
    row "$name: dependencies" $((${library:-$start} - start))
    row "$name: this repository" $((${built:-$end} - ${library:-$start}))
    row "$name: all" $((end - start))
}

for what in "${phases[@]}"; do
    case $what in
        demo) phase "scripts/demo.sh" scripts/demo.sh ;;
        test) phase "cargo test" cargo test ;;
        edit)
            cargo build --quiet --bins
            printf '\n/// Changed.\npub(crate) const CHANGED: u8 = 1;\nconst _: u8 = CHANGED;\n' >> src/cli.rs
            phase "a change in src/cli, dev profile" cargo build --bins
            git checkout --quiet src/cli.rs
            ;;
        ci) phase ".ci/run" .ci/run ;;
        *) echo "build_time: unknown phase \`$what\`: expected demo, test, edit or ci" >&2; exit 2 ;;
    esac
done
