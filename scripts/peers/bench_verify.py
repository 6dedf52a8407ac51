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
import re
import statistics
import subprocess
import sys

from timing import cpu_name, in_turns, run, warm


def perplexity_of(output, pattern):
    found = re.search(pattern, output)
    return float(found.group(1)) if found else float("nan")


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


def measure(options, file_type, tokens):
    model = quantized(options, file_type)
    size = ["--chunks", str(options.chunks)]
    ours = [options.ours, model, "--prompts", tokens, "--ctx", str(options.ctx), *size]
    ours += ["--threads", str(options.threads), "--quiet"]
    peer = [os.path.join(options.peer, "llama-perplexity"), "-m", model, "-f", options.text]
    peer += ["-c", str(options.ctx), "-t", str(options.threads), *size]
    result = {"type": file_type, "ours": [], "peer": [], "memory": {"ours": 0.0, "peer": 0.0}, "ppl": {}}
    for round_number in range(options.rounds):
        # 4: passed as far as it could be judged, without a text encoder.
        jobs = [
            ("ours", ours, (0, 4), r"perplexity\s+([0-9.]+)"),
            ("peer", peer, (0,), r"Final estimate: PPL = ([0-9.]+)"),
        ]
        for who, command, fine, pattern in in_turns(jobs, round_number):
            done = run(command, fine=fine)
            result[who].append(done.seconds)
            result["memory"][who] = max(result["memory"][who], done.memory)
            result["ppl"][who] = perplexity_of(done.output, pattern)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--types", default="F16,Q4_1,Q8_0,Q4_0")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dir", default=".")
    parser.add_argument("--json")
    options = parser.parse_args()

    tokens = encode(options)
    n_tokens = options.chunks * options.ctx
    print(f"{cpu_name()}; {options.threads} threads; {os.path.basename(options.model)}; {options.chunks} chunks of")
    print(f"{options.ctx} tokens; medians of {options.rounds} rounds\n")
    print("| type | ours, s | peer, s | ratio | ours, tokens/s | peer, tokens/s | ours, PPL | peer, PPL "
          "| ours, MiB | peer, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    results = []
    for file_type in options.types.split(","):
        result = measure(options, file_type, tokens)
        results.append(result)
        ours, peer = statistics.median(result["ours"]), statistics.median(result["peer"])
        ppl, memory = result["ppl"], result["memory"]
        print(
            f"| {file_type} | {ours:.2f} | {peer:.2f} | {peer / ours:.2f} | {n_tokens / ours:.0f} "
            f"| {n_tokens / peer:.0f} | {ppl['ours']:.4f} | {ppl['peer']:.4f} "
            f"| {memory['ours']:.0f} | {memory['peer']:.0f} |",
            flush=True,
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cpu": cpu_name(), "threads": options.threads, "results": results}, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
