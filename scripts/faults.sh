#!/usr/bin/env bash
# Lets every writing command fail at its system calls: killed there, or the call returns EIO, ENOSPC, EINTR, or writes half.
# usage: scripts/faults.sh [POINTS [COMMAND]]
#   POINTS   how many points of each command, any of them; `all` (half an hour on two cores); 12 if not given
#   COMMAND  a part of the names of the commands to try (`gguf2hf`, `parts`, ...)
# The seed of the choice is printed; GGUF_FAULTS_SEED repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in strace cc; do
    command -v "$program" > /dev/null || { echo "faults.sh: there is no $program: no fault was tried"; exit 0; }
done
strace -qq -o /dev/null true 2> /dev/null || { echo "faults.sh: strace may not trace here: no fault was tried"; exit 0; }
GGUF_FAULTS="${1:-12}" GGUF_FAULTS_ONLY="${2:-}" cargo test --test it faults:: -- --include-ignored --nocapture
