#!/usr/bin/env python3
"""Compares the memory of a context: what llama.cpp reports when it loads a model, and `gguf-inspect memory`.

Usage: python3 lab/peers/kv_memory.py GGUF_CONVERT GGUF_INSPECT LLAMA_PERPLEXITY MODEL...
Each MODEL is a GGUF file or the folder of a checkpoint, which is converted first. Keys, values and states must be equal
in the two decimals that llama.cpp prints, for two lengths of context and with F16 and Q8_0; the largest ratio between
estimated and reported compute buffers is printed. Models that llama.cpp does not load are counted.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CONTEXTS = (4096, 32768)
TYPES = ("f16", "q8_0")
CACHE = re.compile(r"llama_(?:kv_cache|memory_recurrent)\w*: size += +([\d.]+) MiB")
COMPUTE = re.compile(r"compute buffer size = +([\d.]+) MiB")


def reported(perplexity, model, text, n_ctx, kind):
    """Sizes of caches and of compute buffers in MiB; None if the model is not loaded."""
    command = [perplexity, "-m", model, "-f", text, "-c", str(n_ctx), "-ctk", kind, "-ctv", kind, "-fa", "on"]
    command += ["--no-warmup", "-lv", "4", "-t", "2"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except subprocess.TimeoutExpired:
        return None
    log = done.stdout + done.stderr
    if "compute buffer size" not in log:
        return None
    return [float(n) for n in CACHE.findall(log)], [float(n) for n in COMPUTE.findall(log)]


def expected(inspect, model, kind):
    command = [inspect, "memory", model, "--ctx", ",".join(map(str, CONTEXTS)), "--kv", kind, "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[0]
    return {at["tokens"]: at for at in json.loads(done.stdout)["contexts"]}


def converted(convert, inspect, checkpoint, file):
    """Converts a checkpoint; one without a tokenizer gets the key with which llama.cpp loads it."""
    command = [convert, "hf2gguf", checkpoint, "-o", file, "--type", "f16", "--no-sync", "--quiet"]
    if subprocess.run(command, capture_output=True).returncode == 0:
        return True
    if subprocess.run([*command, "--no-tokenizer"], capture_output=True).returncode != 0:
        return False
    found = json.loads(subprocess.run([inspect, file, "--json", "--quiet"], capture_output=True).stdout)
    shapes = {tensor["name"]: tensor["shape"] for tensor in found["tensors"]}
    n_vocab = shapes.get("token_embd.weight", [0])[0]
    keys = ["tokenizer.ggml.model=no_vocab", f"{found['architecture']}.vocab_size=u32:{n_vocab}"]
    command = [inspect, "set", file, *keys, "--force", "--quiet"]
    return subprocess.run(command, capture_output=True).returncode == 0


def main():
    convert, inspect, perplexity, *models = sys.argv[1:]
    n_equal, differing, absent, refused, ratios = 0, [], [], [], []
    with tempfile.TemporaryDirectory() as work:
        text = Path(work, "text.txt")
        text.write_text("a b c " * 200)
        for model in models:
            file = model
            if Path(model).is_dir():
                file = str(Path(work, "model.gguf"))
                if not converted(convert, inspect, model, file):
                    absent.append(f"{model}: not converted")
                    continue
            for kind in TYPES:
                ours = expected(inspect, file, kind)
                for n_ctx in CONTEXTS:
                    theirs = reported(perplexity, file, str(text), n_ctx, kind)
                    if theirs is None:
                        absent.append(f"{model} {kind} {n_ctx}: not loaded by llama.cpp")
                        continue
                    if isinstance(ours, str):
                        refused.append(f"{model} {kind}: {ours}")
                        continue
                    at, (caches, compute) = ours[n_ctx], theirs
                    mib = (at["kv_bytes"] + at["state_bytes"]) / 2**20
                    if abs(mib - sum(caches)) <= 0.00501 * max(len(caches), 1):
                        n_equal += 1
                    else:
                        differing.append(f"{model} {kind} {n_ctx}: {mib:.2f} MiB, llama.cpp {sum(caches):.2f} {caches}")
                    if sum(compute) > 0:
                        ratios.append((at["compute_bytes"] / 2**20 / sum(compute), model, n_ctx))
    for line in absent + refused + differing:
        print(line)
    ratios.sort()
    print(f"{n_equal} equal, {len(differing)} differ, {len(refused)} unknown here, {len(absent)} not loaded")
    if ratios:
        median = ratios[len(ratios) // 2][0]
        print(f"compute, estimate over report: median {median:.2f}, from {ratios[0]} to {ratios[-1]}")
    return 1 if differing or n_equal == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
