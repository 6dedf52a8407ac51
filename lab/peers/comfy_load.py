#!/usr/bin/env python3
"""GGUF files of image and video models, loaded by gguf-py with the rules of ComfyUI-GGUF's loader.

Usage: comfy_load.py FILE.gguf.. [--against AUTO.gguf]

What ComfyUI-GGUF's `gguf_sd_loader` asks of a file: the architecture is in its list, names have no prefix, shapes come
from `comfy.gguf.orig_shape.*` or from the file, and a tensor that is no weight of a layer that decodes blocks on the fly
is F32 or F16. With `--against`, every tensor is decoded and compared with the same one of an unquantized file: same shape,
and a relative error (RMS) that its type explains. Needs gguf and numpy; exits with 1 if a file is not loaded.
"""

import argparse
import sys

import gguf
import numpy

ARCHITECTURES = {
    "flux", "sd1", "sdxl", "sd3", "aura", "hidream", "cosmos", "ltxv", "hyvid", "wan", "lumina2", "qwen_image",
}
PLAIN = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
# Largest relative error (RMS) of blocks, by bits per weight: several times the usual one, for tensors of few rows.
ERRORS = [(16.0, 0.005), (8.0, 0.02), (6.0, 0.08), (5.0, 0.12), (4.0, 0.25), (3.0, 0.6), (2.0, 0.8)]


def text(reader, key):
    field = reader.get_field(key)
    return None if field is None else str(bytes(field.parts[field.data[-1]]), "utf-8")


def shape_of(reader, tensor):
    """Shape in PyTorch's order, as `get_orig_shape`."""
    field = reader.get_field(f"comfy.gguf.orig_shape.{tensor.name}")
    if field is not None:
        return tuple(int(field.parts[part][0]) for part in field.data)
    return tuple(int(size) for size in reversed(tensor.shape))


def is_decoded_on_the_fly(name, shape):
    """Weights of Linear, Conv2d, Embedding and norms."""
    return name.endswith((".weight", ".bias")) and len(shape) <= 4


def values(tensor):
    data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return numpy.asarray(data, dtype=numpy.float32).reshape(-1)


def limit(tensor_type):
    block, size = gguf.GGML_QUANT_SIZES[tensor_type]
    bits = size * 8 / block
    return next((error for least, error in ERRORS if bits >= least), 1.0)


def check(path, against):
    reader = gguf.GGUFReader(path)
    problems = []
    arch = text(reader, "general.architecture")
    if arch not in ARCHITECTURES:
        problems.append(f"unexpected architecture {arch!r}")
    for tensor in reader.tensors:
        name, shape = tensor.name, shape_of(reader, tensor)
        if name.startswith("model.diffusion_model."):
            problems.append(f"{name}: prefix")
        if tensor.tensor_type not in PLAIN and not is_decoded_on_the_fly(name, shape):
            problems.append(f"{name}: {tensor.tensor_type.name} of a tensor that is not decoded on the fly")
        if len(name) > 127:
            problems.append(f"{name}: {len(name)} bytes")
        if against is None:
            continue
        source = against.get(name)
        if source is None or source[0] != shape:
            problems.append(f"{name}: shape {shape}, {source and source[0]} in the unquantized file")
            continue
        found, expected = values(tensor), source[1]
        scale = float(numpy.sqrt(numpy.mean(expected**2))) or 1.0
        error = float(numpy.sqrt(numpy.mean((found - expected) ** 2))) / scale if found.size else 0.0
        if error > limit(tensor.tensor_type):
            problems.append(f"{name}: error {error:.4f} as {tensor.tensor_type.name}")
    return arch, len(reader.tensors), problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--against")
    args = parser.parse_args()
    against = None
    if args.against:
        reader = gguf.GGUFReader(args.against)
        against = {tensor.name: (shape_of(reader, tensor), values(tensor)) for tensor in reader.tensors}
    n_bad = 0
    for path in args.files:
        arch, n_tensors, problems = check(path, against)
        print(f"{path}: {arch}, {n_tensors} tensors, {'loaded' if not problems else f'{len(problems)} problems'}")
        for problem in problems:
            print(f"  {problem}")
        n_bad += bool(problems)
    print(f"{len(args.files) - n_bad} of {len(args.files)} files loaded")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
