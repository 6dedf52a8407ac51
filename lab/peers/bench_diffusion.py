#!/usr/bin/env python3
"""Measures the conversion of a random checkpoint with the shapes of Flux, in one pass and in two steps.

Usage: bench_diffusion.py --programs DIRECTORY [--type q4_k_s] [--gb 2.0] [--runs 3] [--out DIRECTORY]
                          [--comfy COMFYUI_GGUF --python PYTHON --llama-quantize PATCHED [--as-llama]]

DIRECTORY has gguf-convert and gguf-quantize. The checkpoint (BF16, one safetensors file) is made if it is not there; it has
whole blocks of FLUX.1 (width 3072) until it has the size. With `--comfy`, ComfyUI-GGUF's `tools/convert.py` runs in
PYTHON (torch, gguf, safetensors) and the patched llama-quantize after it: their wall times are added, the highest RssAnon is that of
either. An unpatched llama-quantize refuses the architecture: with `--as-llama`, gguf-inspect gives the file the keys of a
small Llama before (not timed), and llama-quantize runs with `--pure`. So it quantizes the same large matrices to the same
type, and a few small ones as well. Prints medians of wall and processor time and the highest RssAnon (memory that is not a mapped file); needs numpy.
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import sys
import tempfile

import numpy

from timing import cpu_name, quiet, run, sha256, warm

WIDTH = 3072
# Keys with which llama-quantize takes any file for a Llama.
KEYS_OF_LLAMA = [
    "general.architecture=str:llama",
    "llama.block_count=u32:1",
    "llama.context_length=u32:512",
    f"llama.embedding_length=u32:{WIDTH}",
    f"llama.feed_forward_length=u32:{4 * WIDTH}",
    "llama.attention.head_count=u32:24",
    "llama.attention.layer_norm_rms_epsilon=f32:1e-5",
    "llama.vocab_size=u32:10",
]


def shapes(n_bytes):
    """Names and shapes, double blocks and single blocks in Flux's proportion, up to a size."""
    yield "img_in.weight", (WIDTH, 64)
    yield "txt_in.weight", (WIDTH, 4096)
    yield "time_in.in_layer.weight", (WIDTH, 256)
    yield "final_layer.linear.weight", (64, WIDTH)
    total, block = 0, 0
    while total < n_bytes:
        rows = []
        if block % 3 == 0:
            for part in ("img", "txt"):
                name = f"double_blocks.{block // 3}.{part}"
                rows += [
                    (f"{name}_attn.qkv.weight", (3 * WIDTH, WIDTH)),
                    (f"{name}_attn.qkv.bias", (3 * WIDTH,)),
                    (f"{name}_attn.proj.weight", (WIDTH, WIDTH)),
                    (f"{name}_mlp.0.weight", (4 * WIDTH, WIDTH)),
                    (f"{name}_mlp.2.weight", (WIDTH, 4 * WIDTH)),
                    (f"{name}_mod.lin.weight", (6 * WIDTH, WIDTH)),
                ]
        name = f"single_blocks.{block}"
        rows += [
            (f"{name}.linear1.weight", (7 * WIDTH, WIDTH)),
            (f"{name}.linear2.weight", (WIDTH, 5 * WIDTH)),
            (f"{name}.modulation.lin.weight", (3 * WIDTH, WIDTH)),
        ]
        for row in rows:
            total += 2 * int(numpy.prod(row[1]))
            yield row
        block += 1


def make(path, n_bytes):
    """Writes the checkpoint; noise of the size of trained weights, repeated with other signs."""
    generator = numpy.random.default_rng(7)
    base = (generator.standard_normal(1 << 22) * 0.02).astype(numpy.float32)
    rows = sorted(shapes(n_bytes))
    header, at = {}, 0
    for name, shape in rows:
        end = at + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in rows:
            left = int(numpy.prod(shape))
            while left:
                piece = numpy.roll(base, int(generator.integers(len(base))))[:left]
                file.write((piece.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes())
                left -= len(piece)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--type", default="q4_k_s")
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    parser.add_argument("--comfy", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--llama-quantize", type=pathlib.Path)
    parser.add_argument("--as-llama", action="store_true")
    args = parser.parse_args()
    model = args.out / f"flux-{args.gb:g}gb.safetensors"
    if not model.exists():
        make(model, int(args.gb * 1e9))
    outputs = {name: args.out / f"bench-{name}.gguf" for name in ("one", "auto", "two", "peer-auto", "peer")}
    convert, quantize = args.programs / "gguf-convert", args.programs / "gguf-quantize"
    one = [convert, "hf2gguf", model, "-o", outputs["one"], "--type", args.type]
    ways = {
        "one pass": [one],
        "two steps": [
            [convert, "hf2gguf", model, "-o", outputs["auto"], "--type", "auto"],
            [quantize, outputs["auto"], outputs["two"], "--type", args.type],
        ],
    }
    if args.comfy:
        script = args.comfy / "tools" / "convert.py"
        ways["peer"] = [
            [args.python, script, "--src", model, "--dst", outputs["peer-auto"]],
            [args.llama_quantize, *(["--pure"] if args.as_llama else []), outputs["peer-auto"], outputs["peer"], args.type.upper()],
        ]
    n_bytes = warm(model)
    print(f"{cpu_name()}; {n_bytes / 1e9:.2f} GB to {args.type}, {args.runs} runs, medians\n")
    print("| way | wall, s | MB/s | processor, s | RssAnon, MiB |")
    print("|---|---:|---:|---:|---:|")
    try:
        for way, steps in ways.items():
            seconds, processor, memory = [], [], 0
            for _ in range(args.runs):
                for output in outputs.values():
                    quiet(output)
                done = []
                for step in steps:
                    if args.as_llama and step[0] == args.llama_quantize:
                        run([args.programs / "gguf-inspect", "set", outputs["peer-auto"], *KEYS_OF_LLAMA, "--force"])
                    done.append(run(step))
                print(f"<!-- {way}: {', '.join(f'{one.seconds:.2f} s' for one in done)} -->")
                seconds.append(sum(one.seconds for one in done))
                processor.append(sum(one.processor for one in done))
                memory = max(memory, *(one.memory for one in done))
            wall = statistics.median(seconds)
            print(f"| {way} | {wall:.2f} | {n_bytes / wall / 1e6:.0f} | {statistics.median(processor):.2f} | {memory:.0f} |")
            ends = {"one pass": "one", "two steps": "two", "peer": "peer"}
            print(f"<!-- {way}: {sha256(outputs[ends[way]])} -->")
    finally:
        for output in outputs.values():
            if output.exists():
                os.unlink(output)


if __name__ == "__main__":
    main()
