#!/usr/bin/env bash
# Line coverage of the parsers by fuzz inputs: replays them in a program that counts what it runs (-Cinstrument-coverage,
# stable), and lists the lines reached of each file that reads foreign bytes. Without a corpus it takes what the repository
# holds (seeds, bad files, the peers' files, regressions), so that the figures can be repeated. Reads the profile with
# `cov` (cargo install llvm_profparser).
# Usage: scripts/coverage.sh [--missing] [CORPUS...]      (--missing lists the lines that were not reached)
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/coverage.py "$@"
