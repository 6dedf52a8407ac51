#!/usr/bin/env python3
"""Writes crates/convert/src/runtime_biases.tsv: under which architectures llama.cpp's loader takes which biases.

Usage: runtime_biases.py LLAMA_CPP_DIR > crates/convert/src/runtime_biases.tsv

A line has an architecture, a tab, and the names of tensors, `N` for a number, whose `.bias` the architecture's
`load_arch_tensors` asks for. A file with a tensor that nobody asks for is not loaded ("wrong number of tensors").
"""
import re
import sys
from pathlib import Path

QKV = ["attn_qkv", "attn_q", "attn_k", "attn_v"]


def main() -> None:
    source = Path(sys.argv[1]) / "src"
    text = (source / "llama-arch.cpp").read_text()
    names = dict(re.findall(r'\{\s*(LLM_TENSOR_\w+),\s*"([^"]+)"\s*\}', text))
    archs = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', text))
    model = (source / "llama-model.cpp").read_text()
    classes = dict(re.findall(r"case (LLM_ARCH_\w+):\s*\n?\s*return new (llama_model_\w+)", model))
    header = (source / "models" / "models.h").read_text()
    parents = dict(re.findall(r"struct (llama_model_\w+)\s*:\s*public\s+(llama_model_\w+)", header))
    bodies = {}
    for path in sorted((source / "models").glob("*.cpp")):
        found = re.finditer(r"void (llama_model_\w+)::load_arch_tensors\(.*?\) \{(.*?)\n\}", path.read_text(), re.S)
        bodies.update((match.group(1), match.group(2)) for match in found)

    print("# Biases that llama.cpp's loader takes, by architecture. Written by lab/peers/runtime_biases.py.")
    for arch, name in sorted(classes.items(), key=lambda row: archs[row[0]]):
        while name not in bodies and name in parents:
            name = parents[name]
        body = re.sub(r"//.*", "", bodies.get(name, ""))
        for other in re.findall(r"(llama_model_\w+)::load_arch_tensors", body):
            body += re.sub(r"//.*", "", bodies.get(other, ""))
        asked = re.findall(r"\b\w*tn\w*\(\s*(LLM_TENSOR_\w+)\s*,\s*(\"\w+\"|[a-zA-Z_]\w*)", body)
        # A name instead of a literal stands for either ending; the number of a layer is none.
        taken = {names[tensor] for tensor, ending in asked if ending == '"bias"' or ending not in ("i", "il", "bid", "j") and '"' not in ending}
        if "create_tensor_qkv" in body:
            taken.update(f"blk.%d.{name}" for name in QKV)
        print(f"{archs[arch]}\t{' '.join(sorted(name.replace('%d', 'N') for name in taken))}")


if __name__ == "__main__":
    main()
