#!/usr/bin/env python3
"""Measures hf2gguf beside llama.cpp's convert_hf_to_gguf.py, in one run, in turns.

Usage: bench_convert.py --llama-cpp SOURCE --python PYTHON --ours GGUF_CONVERT MODEL_DIRECTORY
                        [--type f16] [--runs 5] [--out DIRECTORY] [--threads N] [--no-peer]

SOURCE is llama.cpp's source folder, PYTHON an interpreter with its requirements, MODEL_DIRECTORY a checkpoint, for
example of make_random_llama.py. The checkpoint is read once before, so that it lies in the page cache.

Two durabilities, so that equals are compared:
  durable   the output is on the disk when the clock stops: the peer followed by `sync FILE`, ours as it is
  cached    the output may still be in the page cache: the peer as it is, ours with --no-sync
Before every turn the previous output is gone and the disk is quiet. Prints medians of the wall time and of the
processor time (which says more on a busy machine), the ratios, and the highest RssAnon (memory without mapped pages)
of each; says whether the outputs are equal.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile

from timing import cpu_name, quiet, run, sha256, warm


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-cpp", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, default=sys.executable)
    parser.add_argument("--ours", type=pathlib.Path, required=True)
    parser.add_argument("--type", default="f16")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("model", type=pathlib.Path)
    args = parser.parse_args()
    if not args.no_peer and args.llama_cpp is None:
        parser.error("--llama-cpp is needed, or --no-peer")

    threads = str(args.threads)
    env = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    theirs_out, ours_out = args.out / "bench-theirs.gguf", args.out / "bench-ours.gguf"
    ours = [args.ours, "hf2gguf", args.model, "-o", ours_out, "--type", args.type, "--threads", threads]
    contenders = {
        ("ours", "durable"): (ours, ours_out, False),
        ("ours", "cached"): (ours + ["--no-sync"], ours_out, False),
    }
    if not args.no_peer:
        script = args.llama_cpp / "convert_hf_to_gguf.py"
        theirs = [args.python, script, args.model, "--outfile", theirs_out, "--outtype", args.type]
        contenders |= {
            ("peer", "durable"): (theirs, theirs_out, True),
            ("peer", "cached"): (theirs, theirs_out, False),
        }

    n_bytes = warm(args.model)
    seconds = {key: [] for key in contenders}
    processor = {key: [] for key in contenders}
    peaks = {key: 0 for key in contenders}
    try:
        for _ in range(args.runs):
            for key, (command, output, sync) in contenders.items():
                quiet(output)
                done = run(command, output if sync else None, env)
                seconds[key].append(done.seconds)
                processor[key].append(done.processor)
                peaks[key] = max(peaks[key], done.memory)

        print(f"{cpu_name()}, {threads} threads; {n_bytes / 1e9:.2f} GB to {args.type}, {args.runs} runs, medians\n")
        print("| durability | program | wall, s | least to most | MB/s | processor, s | RssAnon, MiB | ours / peer, wall | processor |")
        print("|---|---|---:|---|---:|---:|---:|---:|---:|")
        for (who, how), times in sorted(seconds.items(), key=lambda item: item[0][1]):
            median = statistics.median(times)
            ratios = ["", ""]
            if who == "ours" and not args.no_peer:
                ratios = [f"{statistics.median(of[who, how]) / statistics.median(of['peer', how]):.3f}" for of in (seconds, processor)]
            print(f"| {how} | {who} | {median:.2f} | {min(times):.2f} to {max(times):.2f} | {n_bytes / median / 1e6:.0f} "
                  f"| {statistics.median(processor[who, how]):.2f} | {peaks[who, how]:.0f} | {ratios[0]} | {ratios[1]} |")
        if not args.no_peer:
            equal = sha256(ours_out) == sha256(theirs_out)
            print("\nThe files are equal." if equal else "\nThe files DIFFER.")
            if not equal:
                sys.exit(1)
    finally:
        ours_out.unlink(missing_ok=True)
        theirs_out.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
