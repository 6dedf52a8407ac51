"""gguf-verify and llama-perplexity in turn on one text, and the table of it: for bench_verify.py and bench_mixers.py."""

import json
import os
import re
import statistics

from timing import cpu_name, in_turns, run

OURS = r"perplexity\s+([0-9.]+)"
PEER = r"Final estimate: PPL = ([0-9.]+)"


def perplexity_of(output, pattern):
    found = re.search(pattern, output)
    return float(found.group(1)) if found else float("nan")


def add_options(parser):
    """What both programs take."""
    parser.add_argument("--ours", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json")


def commands(options, model, prompts, ours=(), peer=()):
    """Both commands, with further options of either."""
    size = ["--chunks", str(options.chunks)]
    threads = str(options.threads)
    own = [options.ours, model, "--prompts", *prompts, "--ctx", str(options.ctx), *size, "--threads", threads, "--quiet"]
    other = [os.path.join(options.peer, "llama-perplexity"), "-m", model, "-f", options.text]
    other += ["-c", str(options.ctx), "-t", threads, *size]
    return [*own, *ours], [*other, *peer]


def measure(name, ours, peer, rounds, fine):
    """Both commands in turn; gguf-verify may end with the codes `fine`."""
    result = {"name": name, "ours": [], "peer": [], "memory": {"ours": 0.0, "peer": 0.0}, "ppl": {}}
    for round_number in range(rounds):
        for who, command, codes, pattern in in_turns([("ours", ours, fine, OURS), ("peer", peer, (0,), PEER)], round_number):
            done = run(command, fine=codes)
            result[who].append(done.seconds)
            result["memory"][who] = max(result["memory"][who], done.memory)
            result["ppl"][who] = perplexity_of(done.output, pattern)
    return result


def print_head(options, what, first):
    print(f"{cpu_name()}; {options.threads} threads; {what}; {options.chunks} chunks of {options.ctx} tokens;")
    print(f"medians of {options.rounds} rounds\n")
    print(f"| {first} | ours, s | peer, s | ratio | ours, tokens/s | peer, tokens/s | ours, PPL | peer, PPL "
          "| ours, MiB | peer, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)


def print_row(options, result, digits):
    ours, peer = statistics.median(result["ours"]), statistics.median(result["peer"])
    n_tokens = options.chunks * options.ctx
    ppl, memory = result["ppl"], result["memory"]
    print(
        f"| {result['name']} | {ours:.2f} | {peer:.2f} | {peer / ours:.2f} | {n_tokens / ours:.0f} "
        f"| {n_tokens / peer:.0f} | {ppl['ours']:.{digits}f} | {ppl['peer']:.{digits}f} "
        f"| {memory['ours']:.0f} | {memory['peer']:.0f} |",
        flush=True,
    )


def save(options, results):
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cpu": cpu_name(), "threads": options.threads, "results": results}, file, indent=1)
