#!/usr/bin/env python3
"""Times gguf-verify beside llama-perplexity, whole command against whole command, on the same text.

    bench_verify.py --ours PATH --peer DIR --model IN.gguf --text FILE [--types F16,Q4_1,Q8_0] [--chunks 16]
                    [--ctx 512] [--rounds 3] [--threads N] [--dir DIR] [--json FILE]

DIR holds llama-perplexity, llama-quantize and llama-tokenize. Files of the types are made from the model by
llama-quantize (a quantized model is requantized: speed is what is measured). The text is encoded once by
llama-tokenize, so that both programs see the same tokens. Both run in turn, with the file in the page cache.

Prints a Markdown table with medians: seconds of the whole command, tokens per second of it, perplexities, and the
highest RssAnon (memory that is not a mapped file). gguf-verify multiplies in f32 whatever the type; llama-perplexity
rounds activations to 8 bits for quantized types and to f16 for F16, so perplexities differ a little.
"""

import argparse
import json
import os
import subprocess
import sys

import perplexity_pairs as pairs
from timing import run, warm


def encode(options):
    """The text's tokens as a prompt file."""
    command = [os.path.join(options.peer, "llama-tokenize"), "-m", options.model, "-f", options.text, "--ids", "--no-bos"]
    output = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    path = os.path.join(options.dir, "bench-tokens.jsonl")
    with open(path, "w") as file:
        file.write(json.dumps({"tokens": json.loads(output[output.index("[") :])}) + "\n")
    return path


def quantized(options, file_type):
    path = os.path.join(options.dir, f"bench-{file_type}.gguf")
    if not os.path.exists(path):
        tool = os.path.join(options.peer, "llama-quantize")
        run([tool, "--allow-requantize", options.model, path, file_type, str(options.threads)])
    warm(path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(parser)
    parser.add_argument("--model", required=True)
    parser.add_argument("--types", default="F16,Q4_1,Q8_0,Q4_0")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--dir", default=".")
    options = parser.parse_args()

    tokens = encode(options)
    pairs.print_head(options, os.path.basename(options.model), "type")
    results = []
    for file_type in options.types.split(","):
        ours, peer = pairs.commands(options, quantized(options, file_type), [tokens])
        # 3: failed, as models of random weights do. 4: passed as far as it could be judged, without a text encoder.
        results.append(pairs.measure(file_type, ours, peer, options.rounds, (0, 3, 4)))
        pairs.print_row(options, results[-1], 4)
    pairs.save(options, results)


if __name__ == "__main__":
    sys.exit(main())
