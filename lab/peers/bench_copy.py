#!/usr/bin/env python3
"""Times conversions beside `cp` and `sync` of as many bytes: what the machine takes for reading and writing alone.

    bench_copy.py --ours GGUF_CONVERT MODEL_DIRECTORY [--types f16,bf16,q8_0,q4_0] [--runs 5] [--out DIRECTORY] [--threads N]

The copy reads what the conversion reads and writes as much as it writes: `cp` of a file of the output's size, `cat` of
the rest of the input to /dev/null, `sync` of the copy. Both alternate; before every turn the last output is gone and
the disk is quiet. Warm: the checkpoint lies in the page cache. Cold: the page cache was emptied (root only; else these
rows are left out).
"""

import argparse
import os
import pathlib
import statistics
import tempfile

from timing import cpu_name, in_turns, quiet, run, warm

DROP = "/proc/sys/vm/drop_caches"


def weights(model):
    return sorted(path for path in model.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".flm"))


def cut(paths, n_bytes, part, rest):
    """The first bytes of all files in one file, what is left of them in another."""
    with open(part, "wb") as one, open(rest, "wb") as other:
        for path in paths:
            with open(path, "rb") as file:
                while chunk := file.read(1 << 22):
                    own = max(0, min(len(chunk), n_bytes - one.tell()))
                    one.write(chunk[:own])
                    other.write(chunk[own:])


def forget():
    os.sync()
    with open(DROP, "w") as file:
        file.write("1\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=pathlib.Path, required=True)
    parser.add_argument("--types", default="f16,bf16,q8_0,q4_0")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("model", type=pathlib.Path)
    options = parser.parse_args()
    output, copied, part, rest = (options.out / f"bench-copy.{name}" for name in ("gguf", "copy", "part", "rest"))
    n_in = sum(path.stat().st_size for path in weights(options.model))
    print(f"{cpu_name()}, {options.threads} threads; {n_in / 1e9:.2f} GB read, {options.runs} runs, medians\n")
    print("| type | written, GB | page cache | gguf-convert, s | cp and sync, s | ratio | ours, processor s | copy, processor s |")
    print("|---|---:|---|---:|---:|---:|---:|---:|", flush=True)
    try:
        for name in options.types.split(","):
            ours = [options.ours, "hf2gguf", options.model, "-o", output, "--type", name, "--threads", options.threads, "--quiet"]
            quiet(output)
            run(ours)
            n_out = min(n_in, output.stat().st_size)
            cut(weights(options.model), n_out, part, rest)
            copy = ["sh", "-c", 'cp "$1" "$2" && cat "$3" > /dev/null && sync "$2"', "copy", part, copied, rest]
            for is_cold in (False, True):
                if is_cold and not os.access(DROP, os.W_OK):
                    continue
                found = {"ours": [], "copy": []}
                for turn in range(options.runs):
                    for who, command, target in in_turns([("ours", ours, output), ("copy", copy, copied)], turn):
                        quiet(output)
                        quiet(copied)
                        forget() if is_cold else [warm(path) for path in (options.model, part, rest)]
                        found[who].append(run(command))
                        target.unlink()
                wall, busy = (
                    {who: statistics.median(getattr(done, key) for done in all_done) for who, all_done in found.items()}
                    for key in ("seconds", "processor")
                )
                print(
                    f"| {name} | {n_out / 1e9:.2f} | {'cold' if is_cold else 'warm'} | {wall['ours']:.2f} | {wall['copy']:.2f} "
                    f"| {wall['ours'] / wall['copy']:.2f} | {busy['ours']:.2f} | {busy['copy']:.2f} |",
                    flush=True,
                )
    finally:
        for path in (output, copied, part, rest):
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
