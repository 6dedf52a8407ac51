#!/usr/bin/env python3
"""Times gguf-quantize beside llama-quantize, whole command against whole command.

    bench_quantize.py --ours PATH --peer PATH --model IN.gguf [--types Q8_0,Q4_K_M] [--imatrix FILE]
                      [--rounds 5] [--threads N] [--dir DIR] [--json FILE]

Both run alternately on the same machine with the same number of threads and the model in the page cache. Two
comparisons are made, because the programs promise different things:

    durable   ours as it is by default (the file is on the disk when it ends); the peer followed by `sync FILE`
    cached    ours with --no-sync; the peer as it is (the file may still be in memory only)

Prints a Markdown table with medians. Files are compared by SHA-256; a difference ends the program with code 1.
Peak memory is the highest RssAnon of /proc/PID/status, looked at every 5 ms: memory that is not a mapped file.
"""

import argparse
import json
import os
import statistics
import sys

from timing import cpu_name, in_turns, quiet, run, sha256, warm

DEFAULT_TYPES = (
    "Q8_0,Q4_0,Q4_1,Q5_0,Q5_1,Q6_K,Q5_K_M,Q4_K_M,Q3_K_M,Q2_K,IQ4_NL,IQ4_XS,IQ3_S,IQ3_XXS,IQ2_S,IQ2_XS,IQ2_XXS,"
    "IQ1_M,IQ1_S,TQ1_0,TQ2_0,MXFP4_MOE,Q1_0,Q2_0,F16,BF16"
)


def measure(options, file_type):
    ours, peer = (os.path.join(options.dir, f"bench-{who}.gguf") for who in ("ours", "peer"))
    imatrix = ["--imatrix", options.imatrix] if options.imatrix else []
    our_command = [options.ours, "--quiet", *imatrix, options.model, ours, file_type, str(options.threads)]
    peer_command = [options.peer, *imatrix, options.model, peer, file_type, str(options.threads)]
    times = {key: [] for key in ("ours_durable", "peer_durable", "ours_cached", "peer_cached")}
    memory = {"ours": 0.0, "peer": 0.0}
    same = True
    for round_number in range(options.rounds):
        jobs = [
            ("ours", "durable", our_command, None),
            ("peer", "durable", peer_command, peer),
            ("ours", "cached", [our_command[0], "--no-sync", *our_command[1:]], None),
            ("peer", "cached", peer_command, None),
        ]
        for who, mode, command, sync_path in in_turns(jobs, round_number):
            quiet(ours if who == "ours" else peer)
            done = run(command, sync_path)
            times[f"{who}_{mode}"].append(done.seconds)
            memory[who] = max(memory[who], done.memory)
        if round_number == 0:
            same = sha256(ours) == sha256(peer)
    for path in (ours, peer):
        os.remove(path)
    medians = {key: statistics.median(values) for key, values in times.items()}
    return {"type": file_type, "same": same, "memory_mib": memory, "seconds": times, "median": medians}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--imatrix")
    parser.add_argument("--types", default=DEFAULT_TYPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dir", default=".")
    parser.add_argument("--json")
    options = parser.parse_args()

    warm(options.model)
    size = os.path.getsize(options.model)
    print(f"{cpu_name()}; {options.threads} threads; {os.path.basename(options.model)}, {size / 1e9:.2f} GB;", end=" ")
    print(f"medians of {options.rounds} rounds\n")
    print("| type | ours, s | peer, s | ratio | ours cached, s | peer cached, s | ratio | ours, MB/s "
          "| ours, MiB | peer, MiB | same bytes |")
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    results = []
    for file_type in options.types.split(","):
        try:
            result = measure(options, file_type)
        except RuntimeError as error:
            print(f"| {file_type} | {str(error).splitlines()[-1]} |", flush=True)
            continue
        results.append(result)
        m, memory = result["median"], result["memory_mib"]
        print(
            f"| {file_type} | {m['ours_durable']:.2f} | {m['peer_durable']:.2f} "
            f"| {m['peer_durable'] / m['ours_durable']:.2f} "
            f"| {m['ours_cached']:.2f} | {m['peer_cached']:.2f} | {m['peer_cached'] / m['ours_cached']:.2f} "
            f"| {size / 1e6 / m['ours_cached']:.0f} | {memory['ours']:.0f} | {memory['peer']:.0f} "
            f"| {'yes' if result['same'] else 'NO'} |",
            flush=True,
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cpu": cpu_name(), "threads": options.threads, "bytes": size, "results": results}, file, indent=1)
    return 0 if all(result["same"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
