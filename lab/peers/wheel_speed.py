#!/usr/bin/env python3
"""Times the Python package beside gguf-py, in turns: quantizing and decoding arrays, MB/s of float32.

    wheel_speed.py [--rounds 5] [--threads 1,N]

Runs in an environment with both packages (`scripts/wheel.sh --test` leaves one in target/wheel/fresh). Medians; `-`: gguf-py
cannot. The bytes and floats are compared as well.
"""

import argparse
import os
import statistics
import time

import gguf
import gguf_foundry as gf
import numpy as np
from gguf import quants

from timing import cpu_name

N_ROWS, N_COLS = 2048, 4096


def seconds(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    values = np.random.default_rng(1).standard_normal((N_ROWS, N_COLS)).astype(np.float32)
    megabytes = values.nbytes / 1e6
    print(f"{cpu_name()}; gguf-py with numpy {np.__version__}; medians of {options.rounds} rounds, "
          f"MB/s of float32, [{N_ROWS}, {N_COLS}]\n")
    print(f"| type | gguf-py quantizes | ours, 1 thread | ours, {options.threads} | ratio, 1 thread | gguf-py decodes | ours, 1 thread | ratio | equal |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|", flush=True)
    for ty in gf.types():
        if not ty.can_quantize or ty.block_size == 1 and ty.name not in ("F16", "BF16"):
            continue
        try:
            peer = gguf.GGMLQuantizationType(ty.id)
        except ValueError:
            continue
        importance = np.ones(N_COLS, np.float32) if ty.needs_imatrix else None
        blocks = gf.quantize(values, peer, imatrix=importance)
        calls = {
            "one": lambda: gf.quantize(values, peer, imatrix=importance, threads=1),
            "all": lambda: gf.quantize(values, peer, imatrix=importance, threads=options.threads),
            "peer": lambda: quants.quantize(values, peer),
            "decode": lambda: gf.dequantize(blocks, peer, threads=1),
            "peer decode": lambda: quants.dequantize(blocks, peer),
        }
        times, results = {name: [] for name in calls}, {}
        for _ in range(options.rounds):
            for name in list(calls):
                try:
                    taken, results[name] = seconds(calls[name])
                except NotImplementedError:
                    del calls[name]
                else:
                    times[name].append(taken)
        rate = {name: megabytes / statistics.median(all) for name, all in times.items() if all}
        shown = lambda name: f"{rate[name]:.0f}" if name in rate else "-"
        ratio = lambda a, b: f"{rate[a] / rate[b]:.1f}" if a in rate and b in rate else "-"
        pairs = [(a, b) for a, b in (("one", "peer"), ("one", "all"), ("decode", "peer decode")) if b in results]
        is_equal = all(results[a].tobytes() == results[b].tobytes() for a, b in pairs)
        print(f"| {ty.name} | {shown('peer')} | {shown('one')} | {shown('all')} | {ratio('one', 'peer')} | {shown('peer decode')} "
              f"| {shown('decode')} | {ratio('decode', 'peer decode')} | {'yes' if is_equal else 'NO'} |", flush=True)


if __name__ == "__main__":
    main()
