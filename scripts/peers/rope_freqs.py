#!/usr/bin/env python3
"""Golden checksums of Llama 3 rope factors, computed with torch as llama.cpp's converter computes them.

Usage: rope_freqs.py > fixtures/rope-freqs/golden.tsv     (needs torch)
"""
import hashlib
import math

import torch

THETAS = [10000.0, 100000.0, 130000.0, 500000.0, 1000000.0, 1500000.0, 2000000.0, 5000000.0, 8000000.0]
SCALINGS = [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (16.0, 1.0, 4.0, 8192), (16.0, 1.0, 1.0001, 8192)]


def factors(theta, dim, factor, low, high, context):
    result = []
    for frequency in 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)):
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            result.append(1)
        elif wavelength > context / low:
            result.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            result.append(1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(result, dtype=torch.float32)


print("theta\tdim\tfactor\tlow\thigh\tcontext\tsha256 of the values as little-endian f32")
for theta in THETAS:
    for dim in (64, 80, 96, 128, 256):
        for scaling in SCALINGS:
            digest = hashlib.sha256(factors(theta, dim, *scaling).numpy().tobytes()).hexdigest()
            print(theta, dim, *scaling, digest, sep="\t")
