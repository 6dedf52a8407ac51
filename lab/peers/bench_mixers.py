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
import os
import pathlib
import shutil
import sys

import perplexity_pairs as pairs
from timing import run, warm

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
    memory = ["--memory", options.memory] if options.memory else []
    prompts = [options.text, "--plain-text"]
    ours, peer = pairs.commands(options, model, prompts, ours=memory, peer=PEER_OPTIONS.get(kind, []))
    # A model of random weights fails what a sound one passes; what counts is that figures came out.
    result = pairs.measure(kind, ours, peer, options.rounds, (0, 1, 3, 4))
    if not options.keep:
        os.remove(model)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(parser)
    parser.add_argument("--convert", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--kinds", default="gemma,deepseek,qwen3next,mamba2")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--memory")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--outtype", default="f16")
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()

    os.makedirs(options.dir, exist_ok=True)
    pairs.print_head(options, options.outtype, "model")
    results, apart = [], []
    for kind in options.kinds.split(","):
        result = measure(options, kind)
        results.append(result)
        pairs.print_row(options, result, 1)
        ppl = result["ppl"]
        if not abs(ppl["ours"] / ppl["peer"] - 1) <= options.tolerance:
            apart.append(kind)
    pairs.save(options, results)
    if apart:
        print(f"perplexities differ by more than {options.tolerance}: {', '.join(apart)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
