#!/usr/bin/env python3
"""A model in F32 from one that is only to be had quantized, for measurements of rounding.

    dither.py IN.gguf OUT.gguf [--seed 1]

The values of a quantized file lie on the grid of its type: another rounding to a like grid would be judged by where the
first one put them. Uniform noise of half a step to both sides (the block's scale for Q4_0, Q4_1, Q5_0, Q5_1, Q8_0) takes
the grid away. The result is a model of its own, as good as the quantized one, and the reference of all that is measured.
Needs gguf and numpy.
"""

import argparse
import sys

import gguf
import numpy as np

STEP = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}


def steps(tensor, ty, n_values):
    """The step of each value: the scale of its block of 32, which all these types begin with."""
    blocks = np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).reshape(-1, STEP[ty])
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return np.repeat(np.abs(scales), 32, axis=1).reshape(-1)[:n_values]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reader = gguf.GGUFReader(options.input)
    noise = np.random.default_rng(options.seed)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(options.output, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub_type)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        ty = tensor.tensor_type.name
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ty in STEP:
            half = steps(tensor, ty, values.size).reshape(values.shape) / 2
            values = values + half * noise.uniform(-1, 1, values.shape).astype(np.float32)
        elif ty not in ("F32", "F16", "BF16"):
            raise SystemExit(f"{tensor.name}: {ty} has no single step for each block")
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
