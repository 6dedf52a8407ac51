#!/usr/bin/env python3
"""Times our block quantizers beside ggml's `ggml_quantize_chunk`, one thread, in turns.

    bench_blocks.py --ggml libggml-base.so [--types Q6_K,IQ3_S] [--rounds 3] [--json FILE]

Ours are measured by `cargo bench --bench quant`, the peer's by calls of the library, both over bell-shaped
values in rows of 2048. MB/s of f32, the best of all rounds; ratios to the peer. `+` is with an importance matrix.
Needs numpy.
"""

import argparse
import ctypes
import json
import os
import re
import subprocess
import time

import numpy as np

from timing import cpu_name

# Numbers of the types in ggml.h, and whether the peer takes an importance matrix: no, may, must.
TYPES = {
    "Q2_K": (10, "may"), "Q3_K": (11, "may"), "Q4_K": (12, "may"), "Q5_K": (13, "may"), "Q6_K": (14, "may"),
    "Q4_0": (2, "may"), "Q4_1": (3, "may"), "Q5_0": (6, "may"), "Q5_1": (7, "may"), "Q8_0": (8, "no"),
    "IQ4_NL": (20, "may"), "IQ4_XS": (23, "may"), "IQ3_S": (21, "may"), "IQ3_XXS": (18, "may"), "IQ2_S": (22, "may"),
    "IQ2_XS": (17, "must"), "IQ2_XXS": (16, "must"), "IQ1_M": (29, "may"), "IQ1_S": (19, "must"),
    "TQ1_0": (34, "no"), "TQ2_0": (35, "no"), "MXFP4": (39, "no"),
}
N_COLS, N_ROWS = 2048, 64


class Peer:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.quantize = self.lib.ggml_quantize_chunk
        self.quantize.restype = ctypes.c_size_t
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self.quantize.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
        random = np.random.default_rng(1)
        bell = lambda n: ((random.integers(0, 65536, (4, n)).sum(0) - 131070.0) / 2097152.0).astype(np.float32)
        self.values, self.weights = bell(N_ROWS * N_COLS), (bell(N_COLS) ** 2 + 1e-4).astype(np.float32)
        self.out = np.zeros(self.values.nbytes, np.uint8)

    def rate(self, number, is_weighed):
        """MB/s, the better of two calls."""
        weights = self.weights.ctypes.data if is_weighed else None
        self.lib.ggml_quantize_init(number)
        best = 0.0
        for _ in range(2):
            start = time.perf_counter()
            self.quantize(number, self.values.ctypes.data, self.out.ctypes.data, 0, N_ROWS, N_COLS, weights)
            best = max(best, self.values.nbytes / 1e6 / (time.perf_counter() - start))
        return best


def ours(name):
    """MB/s by (with importance, level)."""
    command = ["cargo", "bench", "--quiet", "--bench", "quant", "--", f"quantize/{name.lower()}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {}
    for row in re.finditer(r"^quantize/([a-z0-9_]+)(\+imatrix)?/(\w+) .* ([\d.]+) GB/s$", text, re.M):
        if row[1] == name.lower():
            found[bool(row[2]), row[3]] = float(row[4]) * 1000
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", required=True)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    peer = Peer(options.ggml)
    results, levels = [], None
    for name in options.types.split(","):
        number, importance = TYPES[name]
        best = {}
        for _ in range(options.rounds):
            for is_weighed in {"no": [False], "may": [False, True], "must": [True]}[importance]:
                best[is_weighed, "peer"] = max(best.get((is_weighed, "peer"), 0.0), peer.rate(number, is_weighed))
            for key, rate in ours(name).items():
                best[key] = max(best.get(key, 0.0), rate)
        if levels is None:
            levels = [level for is_weighed, level in best if level not in ("peer", "scalar")]
            levels = list(dict.fromkeys(levels))
            print(f"{cpu_name()}, one thread; best of {options.rounds} rounds\n")
            print("| type | peer | scalar | " + " | ".join(levels) + " | × " + " | × ".join(levels) + " |")
            print("|---" + "|---:" * (2 + 2 * len(levels)) + "|", flush=True)
        for is_weighed in sorted({key[0] for key in best if key[1] == "peer"}):
            row = {level: best.get((is_weighed, level), float("nan")) for level in ["peer", "scalar", *levels]}
            rates = " | ".join(f"{row[level]:.0f}" for level in ["peer", "scalar", *levels])
            ratios = " | ".join(f"{row[level] / row['peer']:.1f}" for level in levels)
            print(f"| {name}{' +' if is_weighed else ''} | {rates} | {ratios} |", flush=True)
            results.append({"type": name, "importance": is_weighed, **row})
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cpu": cpu_name(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
