#!/usr/bin/env python3
"""Times our programs with 1 and 2 threads, and works out from that what more threads would give.

    bench_scaling.py --programs DIR --checkpoint DIR --model F16.gguf --text FILE [--chunks 4] [--runs 3] [--out DIRECTORY]

With s seconds that no thread shares and p that all do, one thread takes s + p and two s + p / 2: the two measured times
give both, and s + p / n what n threads would take if memory and disk keep up. Files are not synced here. Bytes of one
file are copied into the page cache under one lock, so no conversion ends before a `cp` of its output would: that time
stands beside it, and what is expected is the larger of the two.
"""

import argparse
import os
import statistics
import tempfile

from timing import cpu_name, in_turns, quiet, run, warm


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", default=tempfile.gettempdir())
    options = parser.parse_args()
    output, copied = os.path.join(options.out, "bench-scaling.gguf"), os.path.join(options.out, "bench-scaling.copy")

    def convert(name):
        command = [os.path.join(options.programs, "gguf-convert"), "hf2gguf", options.checkpoint, "-o", output]
        return [*command, "--type", name, "--no-sync", "--quiet"]

    verify = [os.path.join(options.programs, "gguf-verify"), options.model, "--prompts", options.text]
    verify += ["--ctx", "512", "--chunks", str(options.chunks), "--quiet"]
    jobs = {
        "checkpoint to F16": convert("f16"),
        "checkpoint to Q8_0": convert("q8_0"),
        "checkpoint to Q4_K_M": convert("q4_k_m"),
        "checkpoint to IQ4_XS": convert("iq4_xs"),
        f"gguf-verify, {options.chunks} chunks of 512": verify,
    }
    print(f"{cpu_name()}; medians of {options.runs} runs\n")
    print("| job | 1 thread, s | 2 threads, s | not shared, s | cp of the output, s | 16 threads, s | 64 threads, s |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    try:
        for name, command in jobs.items():
            times = {1: [], 2: []}
            copies = [0.0]
            for turn in range(options.runs):
                for n_threads in in_turns(times, turn):
                    quiet(output)
                    warm(options.checkpoint)
                    times[n_threads].append(run([*command, "--threads", n_threads], fine=(0, 3, 4)).seconds)
                if os.path.exists(output):
                    quiet(copied)
                    warm(output)
                    copies.append(run(["cp", output, copied]).seconds)
            one, two = statistics.median(times[1]), statistics.median(times[2])
            serial = max(0.0, 2 * two - one)
            copy = statistics.median(copies[1:] or copies)
            expected = [max(copy, serial + (one - serial) / n) for n in (16, 64)]
            print(f"| {name} | {one:.2f} | {two:.2f} | {serial:.2f} | {copy:.2f} | {expected[0]:.2f} | {expected[1]:.2f} |", flush=True)
    finally:
        for path in (output, copied):
            if os.path.exists(path):
                os.remove(path)


if __name__ == "__main__":
    main()
