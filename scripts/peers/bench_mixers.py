#!/usr/bin/env python3
"""Times gguf-verify beside llama-perplexity on random models of a billion parameters, one for each kind of layers.

    bench_mixers.py --convert PATH --ours PATH --peer DIR --text FILE --dir DIR [--kinds gemma,deepseek,qwen3next,mamba2]
                    [--layers N] [--outtype f16] [--chunks 4] [--ctx 512] [--rounds 3] [--threads N] [--memory SIZE]
                    [--tolerance 0.05] [--keep] [--json FILE]

DIR of --peer holds llama-perplexity; PATHs are gguf-convert and gguf-verify; both programs encode the text. A checkpoint of
each kind is made by make_random_mixers.py, converted and removed; then both programs run in turn on the same text, with
the file in the page cache, and the file is removed too (--keep leaves it). At most 5 GB of disk.

Prints a Markdown table with medians: seconds of the whole command, tokens per second, perplexities, and the highest
RssAnon (memory that is not a mapped file). Ends with 1 if perplexities differ by more than the tolerance. With F16 the peer
rounds activations to f16 and may choose other experts; `--outtype f32 --tolerance 1e-5` compares the arithmetic.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

from bench_verify import perplexity_of
from timing import cpu_name, in_turns, run, warm

HERE = pathlib.Path(__file__).resolve().parent
# With its repacked kernels llama.cpp 0.5.0 fails an assertion on latent attention in F16.
PEER_OPTIONS = {"deepseek": ["--no-repack"]}


def make(options, kind):
    """The F16 file of a kind."""
    path = os.path.join(options.dir, f"mixers-{kind}.gguf")
    if not os.path.exists(path):
        checkpoint = os.path.join(options.dir, f"mixers-{kind}")
        layers = ["--layers", options.layers] if options.layers else []
        run([sys.executable, HERE / "make_random_mixers.py", checkpoint, kind, *layers])
        run([options.convert, "hf2gguf", checkpoint, "-o", path, "--outtype", options.outtype, "--quiet"])
        shutil.rmtree(checkpoint)
    warm(path)
    return path


def measure(options, kind):
    model = make(options, kind)
    size = ["--chunks", str(options.chunks)]
    ours = [options.ours, model, "--prompts", options.text, "--plain-text", "--ctx", str(options.ctx), *size]
    ours += ["--threads", str(options.threads), "--quiet"]
    ours += ["--memory", options.memory] if options.memory else []
    peer = [os.path.join(options.peer, "llama-perplexity"), "-m", model, "-f", options.text]
    peer += ["-c", str(options.ctx), "-t", str(options.threads), *size, *PEER_OPTIONS.get(kind, [])]
    result = {"kind": kind, "ours": [], "peer": [], "memory": {"ours": 0.0, "peer": 0.0}, "ppl": {}}
    for round_number in range(options.rounds):
        # A model of random weights fails what a sound one passes; what counts is that figures came out.
        jobs = [
            ("ours", ours, (0, 1, 3, 4), r"perplexity\s+([0-9.]+)"),
            ("peer", peer, (0,), r"Final estimate: PPL = ([0-9.]+)"),
        ]
        for who, command, fine, pattern in in_turns(jobs, round_number):
            done = run(command, fine=fine)
            result[who].append(done.seconds)
            result["memory"][who] = max(result["memory"][who], done.memory)
            result["ppl"][who] = perplexity_of(done.output, pattern)
    if not options.keep:
        os.remove(model)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convert", required=True)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--kinds", default="gemma,deepseek,qwen3next,mamba2")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--memory")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--outtype", default="f16")
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()

    os.makedirs(options.dir, exist_ok=True)
    n_tokens = options.chunks * options.ctx
    print(f"{cpu_name()}; {options.threads} threads; {options.outtype}; {options.chunks} chunks of {options.ctx} tokens;")
    print(f"medians of {options.rounds} rounds\n")
    print("| model | ours, s | peer, s | ratio | ours, tokens/s | peer, tokens/s | ours, PPL | peer, PPL "
          "| ours, MiB | peer, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    results, apart = [], []
    for kind in options.kinds.split(","):
        result = measure(options, kind)
        results.append(result)
        ours, peer = statistics.median(result["ours"]), statistics.median(result["peer"])
        ppl, memory = result["ppl"], result["memory"]
        print(
            f"| {kind} | {ours:.2f} | {peer:.2f} | {peer / ours:.2f} | {n_tokens / ours:.0f} "
            f"| {n_tokens / peer:.0f} | {ppl['ours']:.1f} | {ppl['peer']:.1f} "
            f"| {memory['ours']:.0f} | {memory['peer']:.0f} |",
            flush=True,
        )
        if not abs(ppl["ours"] / ppl["peer"] - 1) <= options.tolerance:
            apart.append(kind)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cpu": cpu_name(), "threads": options.threads, "results": results}, file, indent=1)
    if apart:
        print(f"perplexities differ by more than {options.tolerance}: {', '.join(apart)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
