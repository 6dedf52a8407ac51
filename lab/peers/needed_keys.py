#!/usr/bin/env python3
"""Writes crates/gguf-format/src/required_keys.json: keys without which llama.cpp loads no file of an architecture.

Usage (needs llama.cpp's source only): needed_keys.py LLAMA_CPP OUTPUT
Reads the calls of `ml.get_key` in each `load_arch_hparams` that no condition guards and that do not say `false`.
"""
import collections
import json
import re
import sys
from pathlib import Path

source, output = Path(sys.argv[1]) / "src", sys.argv[2]
names = (source / "llama-arch.cpp").read_text()
archs = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', names))
keys = dict(re.findall(r'\{\s*(LLM_KV_\w+),\s*"([^"]+)"\s*\}', names))
bodies = {}
for path in (source / "models").glob("*.cpp"):
    found = re.findall(r"void (\w+)::load_arch_hparams\([^)]*\)\s*\{\n(.*?)\n\}", path.read_text(), re.S)
    bodies.update(found)
rows = collections.defaultdict(set)
classes = re.findall(r"case (LLM_ARCH_\w+):\s*return new (\w+)\(", (source / "llama-model.cpp").read_text())
for arch, name in classes:
    for line in re.sub(r"/\*.*?\*/", "", bodies.get(name, "")).splitlines():
        # Four spaces: under no condition.
        call = re.match(r" {4}ml\.get_key(?:_or_arr)?\((LLM_KV_\w+),\s*(.*)\);", line)
        if call and not re.search(r",\s*false\s*$", call[2]) and keys[call[1]].startswith("%s."):
            rows[keys[call[1]][3:]].add(archs[arch])
rows = {key: " ".join(sorted(rows[key])) for key in sorted(rows)}
Path(output).write_text(json.dumps(rows, indent=0) + "\n")
