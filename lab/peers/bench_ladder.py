#!/usr/bin/env python3
"""Time, memory and bytes read of `gguf-quantize ladder` next to single runs of gguf-quantize, and of llama-quantize.

    lab/peers/bench_ladder.py MODEL.gguf BIN_DIR [--types TYPE,TYPE,...] [--peer LLAMA_QUANTIZE]

Writes to ./ladder-bench, needs twice the size of all files there, and compares every file with that of its single run.
With --peer, llama-quantize makes the same types one after another, and its tensors are compared with ours. It syncs
nothing, as our runs here.
"""

import argparse
import filecmp
import mmap
import os
import resource
import shutil
import subprocess
import sys
import time

TYPES = "Q8_0,Q6_K,Q5_K_M,Q5_K_S,Q5_1,Q5_0,Q4_1,Q4_K_M,Q4_K_S,Q4_0,IQ4_NL,IQ4_XS,Q3_K_L,Q3_K_M,Q3_K_S,IQ3_M,IQ3_S,Q2_K,TQ2_0,TQ1_0"


def run(*command: str) -> float:
    """Runs a command and returns its seconds."""
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def same_end(ours: str, theirs: str) -> bool:
    """Compares the data of two files from their ends: headers differ by a key or two, tensor data does not."""
    n_bytes = min(os.path.getsize(ours), os.path.getsize(theirs)) - (4 << 20)
    with open(ours, "rb") as a, open(theirs, "rb") as b:
        a, b = (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in (a, b))
        step = 64 << 20
        return all(a[len(a) - at - step:len(a) - at] == b[len(b) - at - step:len(b) - at]
                   for at in range(0, max(n_bytes - step, 1), step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("programs")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--peer")
    args = parser.parse_args()
    types = args.types.split(",")
    quantize = os.path.join(args.programs, "gguf-quantize")
    shutil.rmtree("ladder-bench", ignore_errors=True)
    os.makedirs("ladder-bench/single")
    ours = ["--no-sync", "--quiet"]
    single = [run(quantize, args.model, f"ladder-bench/single/{name}.gguf", name, *ours) for name in types]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    together = run(quantize, "ladder", args.model, "-o", "ladder-bench/all", "--types", ",".join(types), *ours)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    equal = 0
    for name in types:
        own = next(file for file in os.listdir("ladder-bench/all") if file.endswith(f"-{name}.gguf"))
        equal += filecmp.cmp(f"ladder-bench/all/{own}", f"ladder-bench/single/{name}.gguf", shallow=False)
    read = (usage.ru_inblock - before) * 512 / os.path.getsize(args.model)
    stem = os.path.basename(args.model).removesuffix(".gguf")
    print(f"{stem}: {len(types)} single runs {sum(single):.1f} s, ladder {together:.1f} s, {together / sum(single):.2f}")
    print(f"equal files: {equal} of {len(types)}; read from the disk: {read:.2f} of the model's size")
    print(f"largest memory of a run: {usage.ru_maxrss / 1024:.0f} MiB", flush=True)
    if not args.peer:
        return
    total, alike = 0.0, 0
    for name, own in zip(types, single):
        target = "ladder-bench/peer.gguf"
        seconds = run(args.peer, args.model, target, name, str(os.cpu_count()))
        total += seconds
        alike += same_end(f"ladder-bench/single/{name}.gguf", target)
        print(f"{name:8} llama-quantize {seconds:6.1f} s, single run {own:5.1f} s, {seconds / own:.1f}", flush=True)
    print(f"llama-quantize {total:.1f} s: {total / together:.1f} times the ladder; equal data: {alike} of {len(types)}")


if __name__ == "__main__":
    main()
