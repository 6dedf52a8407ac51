#!/usr/bin/env python3
"""Time, memory and bytes read of `gguf-quantize ladder` next to single runs of gguf-quantize with the same types.

    lab/peers/bench_ladder.py MODEL.gguf BIN_DIR [TYPE,TYPE,...]

Writes to ./ladder-bench, needs twice the size of all files there, and compares every file with that of its single run.
"""

import filecmp
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
    subprocess.run([*command, "--no-sync", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def main() -> None:
    model, programs, *rest = sys.argv[1:]
    types = (rest[0] if rest else TYPES).split(",")
    quantize = os.path.join(programs, "gguf-quantize")
    shutil.rmtree("ladder-bench", ignore_errors=True)
    os.makedirs("ladder-bench/single")
    single = sum(run(quantize, model, f"ladder-bench/single/{name}.gguf", name) for name in types)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    together = run(quantize, "ladder", model, "-o", "ladder-bench/all", "--types", ",".join(types))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    stem = os.path.basename(model).removesuffix(".gguf")
    equal = 0
    for name in types:
        ends = f"-{name}.gguf"
        own = next(file for file in os.listdir("ladder-bench/all") if file.endswith(ends))
        equal += filecmp.cmp(f"ladder-bench/all/{own}", f"ladder-bench/single/{name}.gguf", shallow=False)
    read = (usage.ru_inblock - before) * 512 / os.path.getsize(model)
    print(f"{stem}: {len(types)} single runs {single:.1f} s, ladder {together:.1f} s, {together / single:.2f}")
    print(f"equal files: {equal} of {len(types)}; read from the disk: {read:.2f} of the model's size")
    print(f"largest memory of a run: {usage.ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
