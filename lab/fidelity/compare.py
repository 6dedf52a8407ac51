#!/usr/bin/env python3
"""What rounding by a model's own activations gives beside the importance matrix of the same tokens, at the same size.

    compare.py --programs DIR --model F32.gguf --calibrate PATH [PATH...] --evaluate FILE [FILE...]
               [--types Q4_K,Q3_K,Q4_0,IQ4_XS,Q2_K] [--mixes] [--solvers sequential] [--self-text] [--tokens N] [--ctx 512] [--dir DIR]
               [--target-of Q4_K_M,Q3_K_M] [--peer DIR] [--json FILE]

DIR of --programs holds gguf-quantize and gguf-verify. Types are given to all matrices but the embeddings and the output,
which stay as they are; with --mixes they are file types as users ask for them. No text of --evaluate may be in --calibrate.
With --target-of the types are chosen for the size of the file of each of these mixes, and are held against that mix by the
importance matrix; `reference` among --solvers shows what the choice alone brings.
Each text of --evaluate is a row of the table: mean KLD against the model with its standard error, for the importance matrix
(whose bytes are llama.cpp's) and for each solver, their ratio, the 99 % KLD, top-1 agreement and perplexity. With --peer,
the folder of llama-perplexity, a second table has what the peer's runtime finds of the same files, texts and chunks.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time

PURE = {"Q4_K": "Q4_K_S", "Q3_K": "Q3_K_S", "Q5_K": "Q5_K_S", "Q6_K": "Q6_K", "Q2_K": "Q2_K", "IQ2_S": "IQ2_M"}


def call(command, fine=(0,)):
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in fine:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.strip()[-800:]}")
    return done.stdout


def quantize(options, kind, solver, path, size=None):
    command = [os.path.join(options.programs, "gguf-quantize"), options.model, path, "--json", "--quiet", "--no-sync"]
    if size:
        command += ["--target-size", str(size)]
    elif options.mixes or options.target_of:
        command += ["--type", kind]
    else:
        command += ["--type", PURE.get(kind, kind)]
        command += ["--pure", "--token-embedding-type", "f32", "--output-tensor-type", "f32"]
    for text in options.calibrate:
        command += ["--calibrate", text]
    if not options.self_text and "self" not in options.calibrate:
        command += ["--no-self-text"]
    command += ["--calibrate-tokens", str(options.tokens), "--solver", solver]
    start = time.perf_counter()
    report = json.loads(call(command))
    return report, time.perf_counter() - start


def evaluate(options, path, text):
    command = [os.path.join(options.programs, "gguf-verify"), path, "--baseline", options.model, "--prompts", text]
    command += ["--ctx", str(options.ctx), "--json", "--quiet"]
    report = json.loads(call(command, fine=(0, 3, 4)))["models"][0]
    return report["kld"] | {"top1": report["top1_agreement"]}, report["perplexity"]


def peer_divergence(options, path, text):
    """Mean KLD and its standard error, and the share of equal first choices, as llama-perplexity finds them."""
    base = os.path.join(options.dir, f"{os.path.basename(text)}.{options.ctx}.kld-base")
    # Its kernels for tiles ask for instructions that not every system grants.
    program = [os.path.join(options.peer, "llama-perplexity"), "--no-repack", "--kl-divergence-base", base]
    if not os.path.exists(base):
        call(program + ["-m", options.model, "-f", text, "-c", options.ctx])
    # It may end before its log is written: then it is asked again.
    for _ in range(20):
        report = call(program + ["-m", path, "--kl-divergence"])
        mean = re.search(r"Mean +KLD: +([0-9.e-]+) ± +([0-9.e-]+)", report)
        top1 = re.search(r"Same top p: +([0-9.]+)", report)
        if mean and top1:
            return float(mean[1]), float(mean[2]), float(top1[1]) / 100
    raise SystemExit(f"llama-perplexity says nothing of KLD for {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--calibrate", nargs="+", required=True)
    parser.add_argument("--evaluate", nargs="+", required=True)
    parser.add_argument("--types", default="Q4_K,Q3_K,Q4_0,IQ4_XS,Q2_K")
    parser.add_argument("--mixes", action="store_true")
    parser.add_argument("--target-of", help="mixes whose sizes types are chosen for")
    parser.add_argument("--solvers", default="sequential")
    parser.add_argument("--self-text", action="store_true", help="let the model write half of the text")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--json")
    parser.add_argument("--peer")
    options = parser.parse_args()

    solvers = options.solvers.split(",")
    print("| type | solver | text | tokens | imatrix, KLD | solved, KLD | ratio | 99 % | top-1 | PPL | seconds |")
    print("|---|---|---|---:|---:|---:|---:|---|---|---|---:|", flush=True)
    found, of_peer = [], []
    for kind in (options.target_of or options.types).split(","):
        paths, seconds, size = {}, {}, {}
        for solver in [None, *solvers]:
            paths[solver] = os.path.join(options.dir, f"fidelity-{kind}-{solver or 'plain'}.gguf")
            target = file_bytes if solver and options.target_of else None
            report, seconds[solver] = quantize(options, kind, solver or "reference", paths[solver], target)
            size[solver] = report["total"]["bytes_after"]
            if solver is None:
                file_bytes = os.path.getsize(paths[solver])
            elif target and os.path.getsize(paths[solver]) > target:
                raise SystemExit(f"{kind}: {solver} has {os.path.getsize(paths[solver])} bytes, not at most {target}")
            elif not target and size[solver] != size[None]:
                raise SystemExit(f"{kind}: {solver} has {size[solver]} bytes of weights, not {size[None]}")
        for text in options.evaluate:
            figures = {solver: evaluate(options, path, text) for solver, path in paths.items()}
            plain, plain_ppl = figures[None]
            for solver in solvers:
                solved, ppl = figures[solver]
                ratio = solved["mean"] / plain["mean"]
                row = {"type": kind, "solver": solver, "text": os.path.basename(text), "ratio": ratio, "imatrix": plain,
                       "solved": solved, "seconds": seconds[solver], "bytes": size[solver]}
                found.append(row)
                print(
                    f"| {kind} | {solver} | {row['text']} | {ppl['tokens']} | {plain['mean']:.5f} ± {plain['stderr']:.5f} "
                    f"| {solved['mean']:.5f} ± {solved['stderr']:.5f} | {ratio:.3f} | {plain['p99']:.3f} → {solved['p99']:.3f} "
                    f"| {plain['top1']:.4f} → {solved['top1']:.4f} | {plain_ppl['value']:.3f} → {ppl['value']:.3f} "
                    f"| {seconds[solver]:.1f} |",
                    flush=True,
                )
            if options.peer:
                peer = {solver: peer_divergence(options, path, text) for solver, path in paths.items()}
                for solver in solvers:
                    (plain_kld, plain_error, plain_top), (kld, error, top) = peer[None], peer[solver]
                    of_peer.append(f"| {kind} | {solver} | {os.path.basename(text)} | {plain_kld:.5f} ± {plain_error:.5f} "
                                   f"| {kld:.5f} ± {error:.5f} | {kld / plain_kld:.3f} | {plain_top:.4f} → {top:.4f} |")
        for path in paths.values():
            os.remove(path)
    if of_peer:
        print("\nllama-perplexity:\n\n| type | solver | text | imatrix, KLD | solved, KLD | ratio | top-1 |")
        print("|---|---|---|---:|---:|---:|---|")
        print("\n".join(of_peer))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
