#!/usr/bin/env python3
"""Makes a quantized Llama checkpoint of random codes in the shape of TinyLlama 1.1B, for measuring converters.

Usage: make_quantized_llama.py DIRECTORY --method fp8|gptq [--layers 22]

fp8    E4M3 codes with F32 scales for blocks of 128 x 128
gptq   4 bits in groups of 128, symmetric, in the order of activations: every column has a group of its own in g_idx

22 layers are 1.1 billion parameters; 72 layers are three times as many. Embedding, norms and output stay bf16 (fp8) or
f16 (gptq). Needs numpy, and sentencepiece for the tokenizer; memory stays at one tensor.
"""

import argparse
import json
import pathlib

import numpy as np

from make_random_llama import HIDDEN, VOCAB, bf16, config, layer, write_safetensors, write_tokenizer

BLOCK = GROUP = 128
BITS = 4


def e4m3_pool(rng):
    """65536 codes as a writer makes them of normally distributed weights whose largest becomes 448."""
    codes = np.arange(127, dtype=np.int64)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    weights = np.clip(100 * rng.standard_normal(1 << 16), -448, 448)
    nearest = np.searchsorted((values[1:] + values[:-1]) / 2, np.abs(weights))
    return (nearest + 128 * (weights < 0)).astype(np.uint8)


def fp8(name, shape, rng, pool):
    n_rows, n_cols = shape
    grid = [-(-n_rows // BLOCK), -(-n_cols // BLOCK)]
    yield name, "F8_E4M3", shape, lambda: pool[rng.integers(0, pool.size, shape, dtype=np.uint16)]
    yield f"{name}_scale_inv", "F32", grid, lambda: rng.uniform(1e-4, 3e-4, grid).astype("<f4")


def gptq(name, shape, rng, _):
    n_rows, n_cols = shape
    module = name.removesuffix(".weight")
    n_groups = n_cols // GROUP
    words, zeros, scales = [n_cols * BITS // 32, n_rows], [n_groups, n_rows * BITS // 32], [n_groups, n_rows]
    yield f"{module}.qweight", "I32", words, lambda: rng.integers(0, 1 << 32, words, dtype=np.uint32)
    # Version 1 stores zero points less one.
    yield f"{module}.qzeros", "I32", zeros, lambda: np.full(zeros, 0x77777777, dtype="<u4")
    yield f"{module}.scales", "F16", scales, lambda: rng.uniform(0.002, 0.006, scales).astype("<f2")
    yield f"{module}.g_idx", "I32", [n_cols], lambda: (rng.permutation(n_cols) // GROUP).astype("<i4")


def plain(name, shape, rng, dtype):
    def values():
        bits = bf16(rng, shape)
        return bits if dtype == "BF16" else (bits.astype(np.uint32) << 16).view("<f4").astype("<f2")

    yield name, dtype, shape, values


METHODS = {
    "fp8": (fp8, "BF16", "bfloat16", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                      "weight_block_size": [BLOCK, BLOCK]}),
    "gptq": (gptq, "F16", "float16", {"quant_method": "gptq", "bits": BITS, "group_size": GROUP, "sym": True,
                                      "desc_act": True, "checkpoint_format": "gptq", "lm_head": False}),
}


def make(directory, method, n_layers):
    coded, dtype, torch_dtype, description = METHODS[method]
    directory.mkdir(parents=True, exist_ok=True)
    keys = config(n_layers) | {"torch_dtype": torch_dtype, "quantization_config": description}
    (directory / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
    write_tokenizer(directory)

    rng = np.random.default_rng(0)
    pool = e4m3_pool(rng)
    tensors = list(plain("model.embed_tokens.weight", [VOCAB, HIDDEN], rng, dtype))
    for i in range(n_layers):
        for name, shape in layer(i).items():
            tensors += coded(name, shape, rng, pool) if name.endswith("_proj.weight") else plain(name, shape, rng, dtype)
    tensors += plain("model.norm.weight", [HIDDEN], rng, dtype)
    tensors += plain("lm_head.weight", [VOCAB, HIDDEN], rng, dtype)
    write_safetensors(directory / "model.safetensors", tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--layers", type=int, default=22)
    args = parser.parse_args()
    make(args.directory, args.method, args.layers)


if __name__ == "__main__":
    main()
