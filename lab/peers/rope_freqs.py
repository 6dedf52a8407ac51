#!/usr/bin/env python3
"""Prints the rows of the table in crates/gguf-views/src/rope.rs: the sha256 of Llama 3's rope factors as torch computes them.

The arithmetic is that of LlamaModel.generate_extra_tensors in llama.cpp's converter, step by step.
"""
import hashlib
import math

import torch


def factors(theta, dim, factor, context, low=1.0, high=4.0):
    frequencies = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    out = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            out.append(1)
        elif wavelength > context / low:
            out.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(out, dtype=torch.float32).numpy()


for row in [(500000.0, 128, 8.0, 8192), (500000.0, 64, 32.0, 8192), (500000.0, 128, 32.0, 8192),
            (500000.0, 128, 16.0, 8192), (500000.0, 80, 8.0, 8192), (1000000.0, 128, 8.0, 8192),
            (1000000.0, 128, 16.0, 8192), (1000000.0, 64, 8.0, 8192), (10000.0, 128, 8.0, 8192),
            (10000000.0, 128, 8.0, 8192), (100000.0, 128, 8.0, 8192), (50000.0, 16, 8.0, 64)]:
    print(row, hashlib.sha256(factors(*row).tobytes()).hexdigest())
