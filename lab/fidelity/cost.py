#!/usr/bin/env python3
"""What a calibration costs for each parameter and each token, and what that means for larger models.

    cost.py --programs DIR --model MODEL [MODEL...] --calibrate TEXT [--tokens 2048,8192] [--solver sequential] [--type q4_0]
            [--memory 12G] [--dir DIR]

A MODEL is a GGUF file or the folder of a checkpoint, of random weights as well (lab/peers/make_random_llama.py): time does
not depend on what they are. Each is quantized with as many tokens as --tokens says, one after the other; the check of the
result is part of it. Two numbers of tokens tell what does not grow with them (factors, solver) from what does (the two
streams, their sums, the check).
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import timing  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--calibrate", required=True)
    parser.add_argument("--tokens", default="2048,8192")
    parser.add_argument("--solver", default="sequential")
    parser.add_argument("--type", default="q4_0")
    parser.add_argument("--memory", default="12G")
    parser.add_argument("--dir", default=".")
    options = parser.parse_args()
    counts = [int(n) for n in options.tokens.split(",")]
    print(f"{timing.cpu_name()}, {options.solver}, {options.type}\n")
    print("| model | parameters | tokens | wall, s | processor, s | RssAnon, MiB |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    program = os.path.join(options.programs, "gguf-quantize")
    output = os.path.join(options.dir, "cost.gguf")
    for model in options.model:
        rows = []
        for n_tokens in counts:
            command = [program, model, output, "--type", options.type, "--calibrate", options.calibrate, "--no-self-text"]
            command += ["--calibrate-tokens", str(n_tokens), "--solver", options.solver, "--memory", options.memory]
            run = timing.run(command + ["--json", "--quiet", "--no-sync"])
            report = json.loads(run.output[run.output.index("{"):])
            os.remove(output)
            n_params = report["total"]["weights"]
            found = report["calibration"]["kinds"][0]["tokens"]
            rows.append((found, run.seconds, run.processor))
            name = os.path.basename(os.path.normpath(model))
            print(f"| {name} | {n_params / 1e6:.0f} M | {found} | {run.seconds:.1f} | {run.processor:.1f} | {run.memory:.0f} |", flush=True)
        (n0, wall0, own0), (n1, wall1, own1) = rows[0], rows[-1]
        if n1 > n0:
            each = (own1 - own0) / (n1 - n0)
            fixed = own0 - each * n0
            print(f"\n{name}: processor seconds for a million parameters: {fixed / n_params * 1e6:.3f}, and for a thousand tokens "
                  f"{each * 1000 / n_params * 1e6:.3f} more\n")


if __name__ == "__main__":
    sys.exit(main())
