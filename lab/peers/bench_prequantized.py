#!/usr/bin/env python3
"""Measures the reading of quantized checkpoints beside llama.cpp, whole command against whole command, in turns.

    bench_prequantized.py --llama-cpp SOURCE --bin DIR --ours GGUF_CONVERT [--python PYTHON]
                          [--cases fp8:bf16,gptq:f16,fp8:q4_k_m] [--rounds 3] [--threads N] [--memory 128M]
                          [--dir DIR] [--large gptq:f16] [--no-peer] [--lock FILE].. [--json FILE]

SOURCE is llama.cpp's source folder, DIR holds llama-quantize, PYTHON is an interpreter with the requirements of
convert_hf_to_gguf.py. The checkpoints are those of make_quantized_llama.py: 1.1 billion parameters, random codes. They
are made in --dir, lie in the page cache while they are read, and go when the program ends.

Float types go beside convert_hf_to_gguf.py. For quantized ones the peer needs two programs and a file between them: the
converter (to f32 for the same bytes; here to bf16, which is less to write) and llama-quantize; ours takes one pass.

Two durabilities, so that equals are compared:
  durable   the output is on the disk when the clock stops: the peer followed by `sync FILE`, ours as it is
  cached    the output may still be in the page cache: the peer as it is, ours with --no-sync

Prints Markdown tables: medians of the wall time and the processor time, ratios, and the highest RssAnon (memory without
mapped pages); for outputs of floats whether they are equal. --large is run by us alone on a model three times as
large: memory must not grow. --lock holds a lock file during each case, for machines that others build on.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import statistics
import sys

import make_quantized_llama
from timing import cpu_name, in_turns, quiet, run, sha256, warm

LAYERS, MORE_LAYERS = 22, 72
FLOATS = ("f32", "f16", "bf16")


def ours(options, model, output, file_type, *more):
    return [options.ours, "hf2gguf", model, "-o", output, "--type", file_type, "--threads", options.threads,
            "--memory", options.memory, *more]


def peer(options, model, output, file_type, durable):
    """The peer's programs, each with the file that must be on the disk after it."""
    script = options.llama_cpp / "convert_hf_to_gguf.py"
    convert = [options.python, script, model, "--outfile"]
    if file_type in FLOATS:
        return [([*convert, output, "--outtype", file_type], output if durable else None)]
    between = output.with_suffix(".between.gguf")
    quantize = [options.bin / "llama-quantize", between, output, file_type.upper(), options.threads]
    return [([*convert, between, "--outtype", "bf16"], None), (quantize, output if durable else None)]


@contextlib.contextmanager
def held(paths):
    with contextlib.ExitStack() as stack:
        for path in paths:
            fcntl.flock(stack.enter_context(open(path, "a")), fcntl.LOCK_EX)
        yield


def measure(options, model, file_type):
    out = {who: options.dir / f"bench-{who}.gguf" for who in ("ours", "peer")}
    jobs = []
    for how in ("durable", "cached"):
        more = [] if how == "durable" else ["--no-sync"]
        jobs.append(("ours", how, [(ours(options, model, out["ours"], file_type, *more), None)]))
        if not options.no_peer:
            jobs.append(("peer", how, peer(options, model, out["peer"], file_type, how == "durable")))
    env = os.environ | {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    runs = {(who, how): [] for who, how, _ in jobs}
    same = None
    for round_number in range(options.rounds):
        for who, how, commands in in_turns(jobs, round_number):
            quiet(out[who])
            done = [run(command, sync, env) for command, sync in commands]
            runs[who, how].append((sum(d.seconds for d in done), sum(d.processor for d in done),
                                   max(d.memory for d in done)))
            out[who].with_suffix(".between.gguf").unlink(missing_ok=True)
    if file_type in FLOATS and not options.no_peer:
        same = sha256(out["ours"]) == sha256(out["peer"])
    for path in out.values():
        path.unlink(missing_ok=True)
    median = {key: [statistics.median(values) for values in zip(*rows)] for key, rows in runs.items()}
    memory = {who: max(row[2] for key, rows in runs.items() for row in rows if key[0] == who) for who, _ in runs}
    return {"median": median, "memory": memory, "same": same, "runs": runs}


def model_of(options, method, n_layers):
    path = options.dir / f"bench-{method}-{n_layers}"
    if not (path / "model.safetensors").exists():
        make_quantized_llama.make(path, method, n_layers)
    return path


def cases_of(text):
    return [tuple(case.split(":")) for case in text.split(",") if case]


def print_row(name, how, result, has_peer):
    seconds, processor, _ = result["median"]["ours", how]
    cells = [name, how, f"{seconds:.2f}", "", "", f"{processor:.2f}", "", f"{result['memory']['ours']:.0f}", "", ""]
    if has_peer:
        their_seconds, their_processor, _ = result["median"]["peer", how]
        cells[3:5] = [f"{their_seconds:.2f}", f"{seconds / their_seconds:.3f}"]
        cells[6] = f"{their_processor:.2f}"
        cells[8:] = [f"{result['memory']['peer']:.0f}", {True: "yes", False: "NO", None: ""}[result["same"]]]
    print(f"| {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--cases", default="fp8:bf16,gptq:f16,fp8:q4_k_m")
    parser.add_argument("--large", default="gptq:f16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--memory", default="128M")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--lock", action="append", default=[])
    parser.add_argument("--json")
    options = parser.parse_args()
    cases = cases_of(options.cases)
    if not options.no_peer and (options.llama_cpp is None or options.bin is None):
        parser.error("--llama-cpp and --bin are needed, or --no-peer")

    models, results, ok = [], {}, True
    print(f"{cpu_name()}; {options.threads} threads, --memory {options.memory}; medians of {options.rounds} rounds\n")
    print("| case | output | ours, s | peer, s | ratio | ours, processor s | peer, processor s | ours, MiB | peer, MiB "
          "| same bytes |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---|", flush=True)
    try:
        for method, file_type in cases:
            model = model_of(options, method, LAYERS)
            models.append(model)
            with held(options.lock):
                n_bytes = warm(model)
                results[f"{method}:{file_type}"] = result = measure(options, model, file_type)
            ok &= result["same"] is not False
            for how in ("durable", "cached"):
                print_row(f"{method}, {n_bytes / 1e9:.2f} GB, to {file_type}", how, result, not options.no_peer)
        for method, file_type in cases_of(options.large):
            model = model_of(options, method, MORE_LAYERS)
            models.append(model)
            output = options.dir / "bench-ours.gguf"
            with held(options.lock):
                n_bytes = warm(model)
                quiet(output)
                done = run(ours(options, model, output, file_type))
            results[f"{method}:{file_type}:large"] = done._asdict()
            print(f"| {method}, {n_bytes / 1e9:.2f} GB, to {file_type} | durable | {done.seconds:.2f} | | "
                  f"| {done.processor:.2f} | | {done.memory:.0f} | | |", flush=True)
    finally:
        for path in models:
            shutil.rmtree(path, ignore_errors=True)
        for path in options.dir.glob("bench-*.gguf"):
            path.unlink()
    if options.json:
        def plain(value):
            return {str(key): plain(item) for key, item in value.items()} if isinstance(value, dict) else value

        with open(options.json, "w") as file:
            json.dump({"cpu": cpu_name(), "threads": options.threads, "results": plain(results)}, file, indent=1)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
