#!/usr/bin/env python3
"""Writes crates/gguf-format/src/loader_keys.json: keys that llama.cpp's loader reads, with the architectures for which it does.

Usage (needs llama.cpp's source only): loader_keys.py LLAMA_CPP OUTPUT
A model reads what the file of its class names, what the classes read whose loader it inherits or calls, and what the
functions of `llama-model.cpp` read that it calls. `*` stands for every architecture. A `!` follows architectures that need
the key: their own `load_arch_hparams` reads it under no condition, and does not say `false`.
"""
import collections
import json
import re
import sys
from pathlib import Path

source, output = Path(sys.argv[1]) / "src", sys.argv[2]
names = (source / "llama-arch.cpp").read_text()
archs = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', names))
keys = dict(re.findall(r'\{\s*(LLM_KV_\w+),\s*"%s\.([^"]+)"\s*\}', names))
parents = dict(re.findall(r"struct (\w+) : public (\w+)", (source / "models" / "models.h").read_text()))
model = (source / "llama-model.cpp").read_text()
texts, bodies = {}, {}
for path in (source / "models").glob("*.cpp"):
    text = path.read_text()
    found = dict(re.findall(r"void (\w+)::load_arch_hparams\([^)]*\)\s*\{\n(.*?)\n\}", text, re.S))
    bodies.update(found)
    texts.update(dict.fromkeys(found, text))


def read(text):
    return {keys[key] for key in re.findall(r"LLM_KV_\w+", text) if key in keys}


functions = {name: read(body) for name, body in re.findall(r"\n\w[^\n]*::(\w+)\([^\n]*\{\n(.*?)\n\}", model, re.S)}
common = functions.pop("load_hparams")
for part in ("llama-vocab.cpp", "llama-model-loader.cpp"):
    common |= read((source / part).read_text())


def of_class(name):
    text = texts.get(name, "")
    others = set(re.findall(r"(\w+)::load_arch_hparams\(", text)) | {parents.get(name)}
    called = [found for function, found in functions.items() if re.search(rf"\b{function}\(", text)]
    return read(text).union(*called, *(of_class(other) for other in others - {name, None}))


def needed(name):
    for line in re.sub(r"/\*.*?\*/", "", bodies.get(name, "")).splitlines():
        # Four spaces: under no condition.
        call = re.match(r" {4}ml\.get_key(?:_or_arr)?\((LLM_KV_\w+),\s*(.*)\);", line)
        if call and not re.search(r",\s*false\s*$", call[2]) and call[1] in keys:
            yield keys[call[1]]


rows = collections.defaultdict(set, {key: {"*"} for key in common})
# Numbers that all its models have and its loader too, in place of keys that its files state as well.
for key in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
    rows[key].add("gemma3n")
for arch, name in re.findall(r"case (LLM_ARCH_\w+):\s*return new (\w+)\(", model):
    own = set(needed(name))
    for key in own | of_class(name) - common:
        rows[key].add(archs[arch] + "!" * (key in own))
rows = {key: " ".join(sorted(rows[key])) for key in sorted(rows)}
Path(output).write_text(json.dumps(rows, indent=0) + "\n")
