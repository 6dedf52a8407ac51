#!/usr/bin/env python3
"""One output, or the files of a ladder, written by the workers of a Ray cluster on a file system that they share.

    ray_quantize.py --parts 8 [--address auto] -- gguf-convert hf2gguf CHECKPOINT --type q4_k_m --into OUT.gguf
    ray_quantize.py --parts 8 -- gguf-quantize --type q4_k_m IN.gguf --into OUT.gguf
    ray_quantize.py --parts 4 -- gguf-quantize ladder SOURCE -o DIR --imatrix FILE

Each part is a task that runs the command with `--part I/N`; parts need nothing of one another, and the last gives OUT.gguf its
name. The files of a ladder are put together by the same command with `--resume`, on this machine. A part whose worker dies runs again elsewhere; one that fails by itself is tried --retries times and then stops the run with
what it said. Run again after that: parts that are there are not written twice. Paths must mean the same on all machines, and
the programs must be on their PATH. Without --address a cluster of this machine is started. Needs `pip install ray`.
"""

import argparse
import os
import socket
import subprocess
import sys
import time

import ray


@ray.remote
def write(command, part, count, threads):
    """Writes a part: where, how long, exit code, and the last lines that were said."""
    start = time.monotonic()
    words = [*command, "--part", f"{part}/{count}", "--threads", str(threads), "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = (done.stderr or done.stdout).strip().splitlines()[-3:]
    return part, socket.gethostname(), time.monotonic() - start, done.returncode, said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, required=True, help="into how many parts the work is cut; two for each machine or more")
    parser.add_argument("--address", help="of a running cluster; `auto` on one of its machines")
    parser.add_argument("--threads", type=int, default=1, help="threads of a part, and processors that Ray sets aside for it")
    parser.add_argument("--retries", type=int, default=3, help="times that a part is tried again, whoever is to blame")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- gguf-convert … --into FILE, or gguf-quantize ladder …")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    is_ladder = command[1:2] == ["ladder"]
    if not is_ladder and "--into" not in command:
        parser.error("the command needs `--into FILE`, which all parts are written into")
    if options.parts < 1:
        parser.error("--parts: a positive number expected")
    ray.init(address=options.address, log_to_driver=False)

    # A worker that dies is Ray's matter, a program that fails is ours.
    task = write.options(num_cpus=options.threads, max_retries=options.retries)
    start = lambda part: task.remote(command, part, options.parts, options.threads)
    running = {start(part): 1 for part in range(1, options.parts + 1)}
    n_done, begun = 0, time.monotonic()
    while running:
        [ready], _ = ray.wait(list(running), num_returns=1)
        attempt = running.pop(ready)
        part, host, seconds, code, said = ray.get(ready)
        if code == 0:
            n_done += 1
            print(f"part {part}/{options.parts} on {host}: {seconds:.1f} s ({n_done} of {options.parts})", flush=True)
            continue
        print(f"part {part}/{options.parts} on {host}: exit code {code}: {' '.join(said)}", file=sys.stderr, flush=True)
        # Wrong arguments and broken files do not mend themselves.
        if code in (2, 3) or attempt > options.retries:
            sys.exit(code)
        running[start(part)] = attempt + 1
    if is_ladder:
        # Page, list and checksums of all files.
        sys.exit(subprocess.run([*command, "--resume"], check=False).returncode)
    output = command[command.index("--into") + 1]
    if not os.path.isfile(output):
        sys.exit(f"all parts were written, but there is no {output} here: do the machines share its file system?")
    print(f"{output}: {options.parts} parts in {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main()
