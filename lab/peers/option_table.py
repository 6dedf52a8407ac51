#!/usr/bin/env python3
"""docs/from-llama-cpp.md has a row for every option of llama.cpp's tools.

Usage: python3 lab/peers/option_table.py LLAMA_CPP BIN
LLAMA_CPP is a source tree, BIN the folder with its llama-quantize, llama-perplexity and llama-imatrix. Options of Python
scripts and of llama-gguf-split are read from the sources, those of the programs from what --help prints.
"""

import re
import subprocess
import sys
from pathlib import Path

SCRIPTS = {
    "convert_hf_to_gguf.py": "convert_hf_to_gguf.py",
    "convert_lora_to_gguf.py": "convert_lora_to_gguf.py",
    "gguf_dump.py": "gguf-py/gguf/scripts/gguf_dump.py",
    "gguf_set_metadata.py": "gguf-py/gguf/scripts/gguf_set_metadata.py",
    "gguf_new_metadata.py": "gguf-py/gguf/scripts/gguf_new_metadata.py",
    "gguf_convert_endian.py": "gguf-py/gguf/scripts/gguf_convert_endian.py",
    "gguf_hash.py": "gguf-py/gguf/scripts/gguf_hash.py",
}
SHARED = "Options that llama-perplexity and llama-imatrix share with all of llama.cpp"
OPTION = re.compile(r"--[a-z][a-z0-9-]*")


def sections(page):
    """The options in the first column of each section's tables."""
    found, title = {}, ""
    for line in page.splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        elif line.startswith("|"):
            found.setdefault(title, set()).update(OPTION.findall(line.split("|")[1]))
    return found


def of_script(path):
    calls = re.findall(r"add_argument\((.*?)\)\n", path.read_text(), re.S)
    return {name for call in calls for name in re.findall(r"[\"'](--[a-z0-9-]+)[\"']", call)}


def of_program(path):
    done = subprocess.run([path, "--help"], capture_output=True, text=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if re.match(r" {0,4}-", line)]
    # The description stands behind the names, or on lines of its own.
    return {name for line in lines for name in OPTION.findall(re.split(r"\s{2,}(?![\s-])", line.strip())[0])}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, programs = Path(sys.argv[1]), Path(sys.argv[2])
    listed = sections((Path(__file__).parents[2] / "docs/from-llama-cpp.md").read_text())
    theirs = {title: of_script(source / path) for title, path in SCRIPTS.items()}
    split = (source / "tools/gguf-split/gguf-split.cpp").read_text()
    theirs["llama-gguf-split"] = {name for line in split.splitlines() if "printf(" in line for name in OPTION.findall(line)}
    for name in ("llama-quantize", "llama-perplexity", "llama-imatrix"):
        theirs[name] = of_program(programs / name)
    n_options, missing, stale = 0, [], []
    for title, options in theirs.items():
        options -= {"--help", "--version"}
        own = listed.get(title, set())
        shared = listed.get(SHARED, set()) if title in ("llama-perplexity", "llama-imatrix") else set()
        n_options += len(options)
        missing += [f"{title} {name}" for name in sorted(options - own - shared)]
        stale += [f"{title} {name}" for name in sorted(own - options)]
    print(f"{n_options} options of {len(theirs)} tools")
    if missing or stale:
        sys.exit("without a row: " + ", ".join(missing) + "\nthat they do not have: " + ", ".join(stale))


if __name__ == "__main__":
    main()
