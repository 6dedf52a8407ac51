#!/usr/bin/env python3
"""AutoRound (PyPI auto-round, on the CPU) and our calibrated rounding: the same checkpoint, text, tokens, types and judges.

    head_to_head.py --programs DIR --checkpoint DIR --calibrate FILE --evaluate FILE [FILE...] [--types Q4_K_M,Q3_K_M,Q2_K_S]
                    [--iters 200] [--plain] [--ext] [--seed 42] [--ctx 512] [--threads N] [--peer DIR] [--dir DIR]

Runs in an environment with auto-round, torch and transformers. The text is cut into windows of --ctx tokens; AutoRound tunes on
all of them, ours solves with six of seven and holds out the rest. AutoRound's file comes first and gives ours the type of each
tensor (--like). Rows: the importance matrix of the same tokens, AutoRound as it is (--plain) and with enable_alg_ext (--ext; both
unless one is named), sequential, and tuned with text that the model writes. Mean KLD against the checkpoint in F32 by our engine, and with --peer, the folder of
llama-perplexity, by that. --evaluate: name texts like the calibration's and of other kinds, such as french.txt and a program.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time

from compare import call, evaluate, peer_divergence


def windows(options):
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(options.checkpoint)
    with open(options.calibrate, encoding="utf-8") as file:
        ids = tokenizer(file.read(), add_special_tokens=False, verbose=False)["input_ids"]
    cut = [ids[at:at + options.ctx] for at in range(0, len(ids) - options.ctx + 1, options.ctx)]
    if tokenizer.bos_token_id is not None:
        cut = [[tokenizer.bos_token_id, *window[1:]] for window in cut]
    if len(cut) < 8:
        raise SystemExit(f"{options.calibrate}: {len(ids)} tokens, at least {8 * options.ctx} expected")
    return cut


def autoround(task):
    """In a process of its own: its time and memory are its own."""
    import auto_round.export.export_to_gguf.export as export
    import torch
    from auto_round import AutoRound
    from transformers import AutoTokenizer
    if task["threads"]:
        torch.set_num_threads(task["threads"])
    conversion_of = export.get_conversion

    def conversion(*arguments, **named):
        """Its converter stops at a tokenizer that it has not on its list: that one is read as GPT-2's."""
        found = conversion_of(*arguments, **named)
        text = sys.modules[found.ModelBase.__module__].TextModel
        known = text.get_vocab_base_pre

        def pre_tokenizer(self, tokenizer):
            try:
                return known(self, tokenizer)
            except NotImplementedError:
                return "gpt-2"

        text.get_vocab_base_pre = pre_tokenizer
        return found

    export.get_conversion = conversion
    data = [torch.tensor([window]) for window in task["windows"]]
    settings = {"enable_alg_ext": True} if task["ext"] else {}
    tuner = AutoRound(task["checkpoint"], AutoTokenizer.from_pretrained(task["checkpoint"]), scheme=task["scheme"], dataset=data,
                      iters=task["iters"], seqlen=task["ctx"], nsamples=len(data), batch_size=min(8, len(data)), seed=task["seed"],
                      device_map="cpu", enable_torch_compile=False, **settings)
    tuner.quantize_and_save(task["out"], format=task["scheme"])


def file_of(folder):
    found = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names if name.endswith(".gguf")]
    if len(found) != 1:
        raise SystemExit(f"{folder}: one GGUF file expected, found {found}")
    return found[0]


def main():
    if sys.argv[1:] == ["worker"]:
        return autoround(json.load(sys.stdin))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("programs", "checkpoint", "calibrate"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--evaluate", nargs="+", required=True)
    parser.add_argument("--types", default="Q4_K_M,Q3_K_M,Q2_K_S")
    parser.add_argument("--iters", type=int, default=200)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--ext", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0, help="of each side; 0: all cores")
    parser.add_argument("--peer")
    parser.add_argument("--dir", default=".")
    options = parser.parse_args()
    if not options.plain and not options.ext:
        options.plain = options.ext = True

    def ours(program, *arguments):
        threads = ["--threads", options.threads] if options.threads else []
        start = time.perf_counter()
        call([os.path.join(options.programs, program), *arguments, *threads])
        return time.perf_counter() - start

    cut = windows(options)
    options.model = os.path.join(options.dir, "model-f32.gguf")
    ours("gguf-convert", "hf2gguf", options.checkpoint, "-o", options.model, "--type", "f32")
    text = os.path.join(options.dir, "calibrate.jsonl")
    with open(text, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"tokens": window}) + "\n" for window in cut)
    versions = {name: importlib.metadata.version(name) for name in ("auto-round", "torch", "transformers")}
    version = call([os.path.join(options.programs, "gguf-quantize"), "--version"]).split("\n")[0]
    print(f"{version}; {', '.join(' '.join(pair) for pair in versions.items())}; seed {options.seed}, {options.iters} steps; "
          f"{os.path.basename(options.checkpoint.rstrip('/'))}, {len(cut)} windows of {options.ctx} tokens, "
          f"{options.threads or os.cpu_count()} threads\n")
    judges = [os.path.basename(path) for path in options.evaluate]
    print("| type | rounding | seconds |" + "".join(f" {name}, KLD | ratio |" + (" peer's |" * bool(options.peer)) for name in judges))
    print("|---|---|---:|" + "---:|---:|" * len(judges) + "---:|" * (len(judges) if options.peer else 0), flush=True)
    for kind in options.types.split(","):
        paths, seconds = {"importance matrix": None}, {}
        for is_ext in [ext for ext, wanted in ((False, options.plain), (True, options.ext)) if wanted]:
            name = "AutoRound, alg_ext" if is_ext else "AutoRound"
            out = os.path.join(options.dir, f"autoround-{kind}-{'ext' if is_ext else 'plain'}")
            task = {"checkpoint": options.checkpoint, "scheme": f"gguf:{kind.lower()}", "windows": cut, "iters": options.iters,
                    "ctx": options.ctx, "seed": options.seed, "ext": is_ext, "out": out, "threads": options.threads}
            start = time.perf_counter()
            done = subprocess.run([sys.executable, __file__, "worker"], input=json.dumps(task), capture_output=True, text=True)
            seconds[name] = time.perf_counter() - start
            if done.returncode:
                raise SystemExit(f"auto-round: exit code {done.returncode}\n{done.stderr.strip()[-800:]}")
            paths[name] = file_of(out)
        like = list(paths.values())[1]
        n_tokens = len(cut) * options.ctx
        # The model writes as many tokens for a tuning as the text has.
        for name, solver, more in (
            ("importance matrix", "reference", ["--no-self-text", "--calibrate-tokens", n_tokens]),
            ("ours, sequential", "sequential", ["--no-self-text", "--calibrate-tokens", n_tokens]),
            ("ours, tuned", "tuned", ["--calibrate-tokens", 2 * n_tokens]),
        ):
            paths[name] = os.path.join(options.dir, f"ours-{kind}-{solver}.gguf")
            seconds[name] = ours("gguf-quantize", options.model, paths[name], "--like", like, "--calibrate", text,
                                 "--solver", solver, "--quiet", *more)
        plain = {}
        for name, path in paths.items():
            row = f"| {kind} | {name} | {seconds[name]:.0f} |"
            for judge in options.evaluate:
                found = evaluate(options, path, judge)[0]
                first = plain.setdefault(judge, found["mean"])
                row += f" {found['mean']:.5f} ± {found['stderr']:.5f} | {found['mean'] / first:.3f} |"
                row += f" {peer_divergence(options, path, judge)[0]:.5f} |" if options.peer else ""
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
