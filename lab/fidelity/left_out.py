#!/usr/bin/env python3
"""What calibrated rounding gives on kinds of text that the calibration did not contain.

    left_out.py --programs DIR --model F32.gguf --texts DIR [--types Q4_0,Q3_K] [--solvers sequential] [--tokens 12288]
                [--rounds like,KIND...,self] [--self-text] [--ctx 512] [--dir DIR] [--json FILE]

DIR of --texts is what texts.py made: KIND.calibrate.* and KIND.evaluate.*. Rounds:

like  calibrated with all kinds; judged by the other part of each
KIND  calibrated with all kinds but this one, judged by it (each kind in turn, unless some are named)
self  no text at all: --calibrate self, judged by each kind

With --self-text half of the tokens are the model's own text in every round. All else is compare.py's.
"""

import argparse
import glob
import json
import os
import sys

from compare import evaluate, quantize


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--types", default="Q4_0,Q3_K")
    parser.add_argument("--solvers", default="sequential")
    parser.add_argument("--rounds")
    parser.add_argument("--self-text", action="store_true", help="let the model write half of the text")
    parser.add_argument("--tokens", type=int, default=12288)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--json")
    options = parser.parse_args()
    options.mixes, options.target_of = False, None

    def part(name):
        return {os.path.basename(path).split(".")[0]: path for path in sorted(glob.glob(f"{options.texts}/*.{name}.*"))}

    own, other = part("calibrate"), part("evaluate")
    if len(own) < 2 or own.keys() != other.keys():
        raise SystemExit(f"{options.texts}: both parts of at least two kinds expected, found {sorted(own)} and {sorted(other)}")
    rounds = options.rounds.split(",") if options.rounds else ["like", *own, "self"]
    solvers = options.solvers.split(",")
    print("| calibrated with | judged by | type | solver | tokens | imatrix, KLD | solved, KLD | ratio | 99 % | top-1 | PPL | seconds |")
    print("|---|---|---|---|---:|---:|---:|---:|---|---|---|---:|", flush=True)
    found = []
    for turn in rounds:
        without = [path for kind, path in own.items() if kind != turn]
        options.calibrate = [] if turn == "self" else without
        if turn == "self" or options.self_text:
            options.calibrate = [*options.calibrate, "self"]
        judges = [turn] if turn in own else list(own)
        for kind in options.types.split(","):
            paths, seconds = {}, {}
            for solver in ["reference", *solvers]:
                paths[solver] = os.path.join(options.dir, f"left-out-{turn}-{kind}-{solver}.gguf")
                _, seconds[solver] = quantize(options, kind, solver, paths[solver])
            for judge in judges:
                figures = {solver: evaluate(options, path, other[judge]) for solver, path in paths.items()}
                plain, plain_ppl = figures["reference"]
                for solver in solvers:
                    solved, ppl = figures[solver]
                    ratio = solved["mean"] / plain["mean"]
                    texts = {"like": "all kinds", "self": "self"}.get(turn, "all others")
                    found.append({"round": turn, "judge": judge, "type": kind, "solver": solver, "ratio": ratio,
                                  "imatrix": plain, "solved": solved, "seconds": seconds[solver]})
                    print(
                        f"| {texts} | {judge} | {kind} | {solver} | {ppl['tokens']} | {plain['mean']:.5f} ± {plain['stderr']:.5f} "
                        f"| {solved['mean']:.5f} ± {solved['stderr']:.5f} | {ratio:.3f} | {plain['p99']:.3f} → {solved['p99']:.3f} "
                        f"| {plain['top1']:.4f} → {solved['top1']:.4f} | {plain_ppl['value']:.3f} → {ppl['value']:.3f} "
                        f"| {seconds[solver]:.1f} |",
                        flush=True,
                    )
            for path in paths.values():
                os.remove(path)
            if options.json:
                with open(options.json, "w") as file:
                    json.dump(found, file, indent=1)
    for solver in solvers:
        for kind in options.types.split(","):
            ratios = [row["ratio"] for row in found
                      if row["solver"] == solver and row["type"] == kind and row["round"] in own]
            if ratios:
                print(f"worst left-out kind, {kind}, {solver}: {max(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
