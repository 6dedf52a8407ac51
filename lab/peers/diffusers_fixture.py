"""Writes fixtures/diffusers.tsv: where diffusers' functions for single files put each tensor of an original checkpoint.

usage: diffusers_fixture.py CASE... > fixtures/diffusers.tsv      (never needed to build, test or use anything)

CASE is a folder with `original.safetensors` and `diffusers/FOLDER/*.safetensors`, in which no two tensors are equal: the
second is what `diffusers.loaders.single_file_utils` makes of the first. Of numbered blocks the first and the last are kept.
A line has the case, the stored name and shape, the original name and shape, and the first row of the original that the
stored tensor holds, or `swapped`: the second half of its rows before the first.
"""
import json
import re
import struct
import sys
from pathlib import Path


def tensors(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            yield name, entry["shape"], raw[8 + size + start:8 + size + end]


def blocks(name):
    return [(name[:match.start()], int(match[1])) for match in re.finditer(r"(?<=blocks\.|layers\.)(\d+)(?=\.)", name)] + [
        (name[:match.start()], int(match[1])) for match in re.finditer(r"(?<=refiner\.)(\d+)(?=\.)", name)]


def kept(names):
    last = {}
    for prefix, number in (block for name in names for block in blocks(name)):
        last[prefix] = max(last.get(prefix, 0), number)
    return [name for name in names if all(number in (0, last[prefix]) for prefix, number in blocks(name))]


def place(shape, data, originals):
    for name, (own_shape, own) in originals.items():
        if own_shape[1:] != shape[1:] or not data:
            continue
        row = len(own) // own_shape[0]
        half = len(own) // 2
        if len(own) == len(data) and own != data and own[half:] + own[:half] == data:
            return name, own_shape, "swapped"
        at = own.find(data)
        if at >= 0 and at % row == 0:
            return name, own_shape, at // row
    raise SystemExit(f"nothing in the original is {shape}")


for case in map(Path, sys.argv[1:]):
    originals = {name: (shape, data) for name, shape, data in tensors(case / "original.safetensors")}
    stored = {}
    for file in sorted(case.glob("diffusers/*/*.safetensors")):
        stored.update((name, (shape, data)) for name, shape, data in tensors(file))
    for name in sorted(kept(list(stored))):
        original, shape, row = place(*stored[name], originals)
        sizes = ["x".join(map(str, dims)) for dims in (stored[name][0], shape)]
        print(case.name, name, sizes[0], original, sizes[1], row, sep="\t")
