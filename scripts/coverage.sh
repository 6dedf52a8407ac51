#!/usr/bin/env bash
# Line coverage of the parsers by the fuzz corpus: replays the seeds, and what fuzz/corpus holds besides, in a program
# that counts what it runs (-Cinstrument-coverage, stable), and lists the lines reached of each file that reads foreign
# bytes. Reads the profile with llvm-cov where one fits the compiler, else with `cov` (cargo install llvm_profparser).
# Usage: scripts/coverage.sh [--missing] [CORPUS...]      (--missing lists the lines that were not reached)
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/coverage.py "$@"
