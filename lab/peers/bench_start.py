#!/usr/bin/env python3
"""Times what comes before any tensor: reading a header, planning a conversion, a vocabulary.

    bench_start.py --programs DIR [--inspect FILE.gguf] [--dry-run CHECKPOINT] [--vocab CHECKPOINT] [--runs 21] [--json FILE]

FILE.gguf is any model, CHECKPOINT a directory of Hugging Face files; --vocab converts its vocabulary alone. Each
command runs once before the clock starts. Prints medians, and the best of all runs.
"""

import argparse
import json
import os
import statistics
import tempfile

from timing import cpu_name, run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--inspect")
    parser.add_argument("--dry-run", dest="dry_run")
    parser.add_argument("--vocab")
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        convert, output = os.path.join(options.programs, "gguf-convert"), os.path.join(folder, "vocab.gguf")
        jobs = {
            "gguf-inspect of a header": options.inspect and [os.path.join(options.programs, "gguf-inspect"), options.inspect],
            "gguf-convert --dry-run": options.dry_run and [convert, "hf2gguf", options.dry_run, "--dry-run"],
            "gguf-convert --vocab-only": options.vocab
            and [convert, "hf2gguf", options.vocab, "--vocab-only", "-o", output, "--no-sync", "--quiet"],
        }
        print(f"{cpu_name()}; medians of {options.runs} runs\n")
        print("| command | of | wall, ms | best, ms | processor, ms |")
        print("|---|---|---:|---:|---:|", flush=True)
        results = []
        for name, command in jobs.items():
            if not command:
                continue
            done = []
            for _ in range(options.runs + 1):
                if os.path.exists(output):
                    os.remove(output)
                done.append(run(command))
            walls = [one.seconds * 1000 for one in done[1:]]
            busy = statistics.median(one.processor * 1000 for one in done[1:])
            of = next(one for one in command[1:] if os.path.exists(one))
            of = os.path.basename(os.path.normpath(of).removesuffix(os.sep + "hf"))
            print(f"| {name} | {of} | {statistics.median(walls):.1f} | {min(walls):.1f} | {busy:.0f} |", flush=True)
            results.append({"name": name, "of": of, "wall_ms": walls})
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cpu": cpu_name(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
