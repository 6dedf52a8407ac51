#!/usr/bin/env bash
# Builds the Python wheel into dist/: the module and the four programs, static, for the Python versions from 3.10 on.
#
#   scripts/wheel.sh [--profile release] [--test]
#
# Needs Python with venv and, in the environment that it makes under target/wheel, maturin from PyPI. --test installs the wheel
# with NumPy and gguf-py in a fresh environment and runs python/tests there.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=dist is_tested=""
while [ $# -gt 0 ]; do
  case $1 in
    --profile) profile=$2; shift 2 ;;
    --test) is_tested=yes; shift ;;
    *) echo "wheel.sh: unknown option $1" >&2; exit 2 ;;
  esac
done
target=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p target/wheel dist
[ -x target/wheel/tools/bin/maturin ] || { python3 -m venv target/wheel/tools; target/wheel/tools/bin/pip install --quiet 'maturin>=1.9,<2'; }

# An explicit --target keeps the flag away from build scripts and procedural macros.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --profile "$profile" --locked --bins --target "$target"
scripts=python/gguf_foundry.data/scripts
rm -rf python/gguf_foundry.data
mkdir -p $scripts
for program in gguf-convert gguf-quantize gguf-verify gguf-inspect; do
  install -s "target/$target/$profile/$program" "$scripts/$program"
done
rm -f dist/gguf_foundry-*.whl
target/wheel/tools/bin/maturin build --manifest-path python/Cargo.toml --profile "$profile" --locked --out dist
rm -rf python/gguf_foundry.data
ls -l dist/gguf_foundry-*.whl

if [ -n "$is_tested" ]; then
  rm -rf target/wheel/fresh
  python3 -m venv target/wheel/fresh
  target/wheel/fresh/bin/pip install --quiet gguf dist/gguf_foundry-*.whl
  # From a folder in which there is no `gguf_foundry` but the installed one.
  tests=$PWD/python/tests fixtures=$PWD/fixtures
  (cd target/wheel && GGUF_FOUNDRY_FIXTURES=$fixtures fresh/bin/python -m unittest discover -s "$tests" -v)
fi
