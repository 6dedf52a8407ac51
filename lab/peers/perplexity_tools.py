#!/usr/bin/env python3
"""Compares what gguf-verify and llama-perplexity say: divergence statistics, logit files in both directions, tasks.

Usage: python3 lab/peers/perplexity_tools.py LLAMA_BIN_DIRECTORY [MODEL.gguf] [--chunks N] [--type TYPE]
           [--write-fixtures]

The model (the bundled one by default) is made F32, quantized (q4_k_m by default) and made F32 again, so that
llama-perplexity multiplies with floats as we do, and it keeps keys and values as floats. `--write-fixtures` instead keeps what the peer says of the bundled model
in fixtures/tasks/peer.json and fixtures/logits/. The programs are those of target/$PROFILE (release).
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CTX = 256
# Floats all the way: by default the peer keeps keys and values in 16 bits.
FLOATS = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", 2]
KINDS = {"hellaswag": "hellaswag.txt", "winogrande": "winogrande.csv", "multiple-choice": "multiple-choice.bin"}
# What the peer prints, and where it is in our JSON; the second number is the factor of our value.
FIGURES = [
    ("Mean PPL(Q)", "perplexity/value", 1, "perplexity/stderr"),
    ("Mean PPL(base)", "baseline_ppl", 1, "baseline_ppl_stderr"),
    ("Cor(ln(PPL(Q)), ln(PPL(base)))", "ln_ppl_correlation", 100, None),
    ("Mean ln(PPL(Q)/PPL(base))", "delta_ln_ppl/value", 1, "delta_ln_ppl/stderr"),
    ("Mean PPL(Q)/PPL(base)", "ppl_ratio/value", 1, "ppl_ratio/stderr"),
    ("Mean PPL(Q)-PPL(base)", "ppl_difference/value", 1, "ppl_difference/stderr"),
    ("Mean KLD", "kld/mean", 1, "kld/stderr"),
    ("Mean Δp", "dp/mean", 100, "dp/stderr"),
    ("RMS Δp", "rms_dp", 100, "rms_dp_stderr"),
    ("Same top p", "top1_agreement", 100, "top1_stderr"),
]
QUANTILES = {
    "Maximum": "max", "99.9%": "p999", "99.0%": "p99", "95.0%": "p95", "90.0%": "p90", "75.0%": "p75",
    "Median": "median", "25.0%": "p25", "10.0%": "p10", "5.0%": "p05", "1.0%": "p01", "0.1%": "p001", "Minimum": "min",
}


def run(*args, check=True):
    result = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, errors="replace")
    if check and result.returncode not in (0, 3, 4):
        sys.exit(f"{args}: {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.stdout + ("" if args[-1] == "--json" else result.stderr)


def at(document, path):
    for name in path.split("/"):
        document = document[name]
    return document


def peer_figures(text):
    """Every `name: value ± error` of the final statistics, with the size of the last printed digit."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"^\s*([^:]+?)\s*:\s*(-?[\d.]+)%?(?:\s*±\s*([\d.]+))?", line)
        if match:
            name = re.sub(r"\s+", " ", match[1])
            digits = len(match[2].partition(".")[2])
            error_digits = len((match[3] or "").partition(".")[2])
            found[name] = (float(match[2]), digits, match[3] and float(match[3]), error_digits)
    return found


def compare_figures(title, peer, ours):
    rows = [(name, path, factor) for name, path, factor, _ in FIGURES]
    rows += [(f"{label} KLD", f"kld/{key}", 1) for label, key in QUANTILES.items() if key not in ("p75", "p25")]
    rows += [(f"{label} Δp", f"dp/{key}", 100) for label, key in QUANTILES.items()]
    errors = {name: (path, factor) for name, _, factor, path in FIGURES if path}
    worst = []
    equal = total = 0

    def one(name, theirs, digits, value):
        nonlocal equal, total
        total += 1
        step = 10.0 ** -digits
        # Equal as printed, or one unit of the last digit apart.
        if abs(theirs - value) <= 1.5 * step:
            equal += 1
        else:
            worst.append(f"    {name}: {theirs} here {value:.{digits + 2}f}")

    for name, path, factor in rows:
        theirs, digits, error, error_digits = peer[name]
        one(name, theirs, digits, factor * at(ours, path))
        if error is not None and name in errors:
            path, factor = errors[name]
            one(f"{name}, error", error, error_digits, factor * at(ours, path))
    print(f"{title}: {equal} of {total} figures equal to the last printed digit or one beside it")
    print("\n".join(worst), end="\n" if worst else "")


def logit_file(path):
    data = Path(path).read_bytes()
    assert data[:8] == b"_logits_"
    n_ctx, n_vocab, n_chunk = struct.unpack_from("<3i", data, 8)
    tokens = data[20:20 + 4 * n_ctx * n_chunk]
    return (n_ctx, n_vocab, n_chunk, tokens), data[20 + len(tokens):]


def compare_logits(peer, ours):
    (a, rows_a), (b, rows_b) = logit_file(peer), logit_file(ours)
    n_ctx, n_vocab, n_chunk, _ = a
    row_bytes = 8 + 2 * (n_vocab + n_vocab % 2)
    print(f"logit file: header and {n_ctx * n_chunk} tokens {'equal' if a == b else 'DIFFER'}, "
          f"{len(rows_a)} and {len(rows_b)} bytes of rows")
    largest = 0.0
    n_same = n = 0
    for start in range(0, len(rows_a), row_bytes):
        decoded = []
        for rows in (rows_a, rows_b):
            scale, least = struct.unpack_from("<2f", rows, start)
            codes = memoryview(rows[start + 8:start + 8 + 2 * n_vocab]).cast("H")
            decoded.append((scale, least, codes))
        (sa, la, ca), (sb, lb, cb) = decoded
        n_same += sum(x == y for x, y in zip(ca, cb))
        n += n_vocab
        largest = max(largest, max(abs(sa * x + la - sb * y - lb) for x, y in zip(ca, cb)))
    print(f"            {100 * n_same / n:.2f} % of the codes equal, log-probabilities at most {largest:.6f} apart")


def peer_outcomes(kind, text):
    """Whether each task was right, in the order in which they were run, and Winogrande's scores."""
    right, scores, before = [], [], 0
    for line in text.splitlines():
        cells = line.split()
        if len(cells) >= 2 and cells[0] == str(len(right) + 1) and re.match(r"^\d+\.\d+%?$", cells[1]):
            n_right = round(float(cells[1].rstrip("%")) / 100 * (len(right) + 1))
            right.append(n_right > before)
            before = n_right
            if kind == "winogrande":
                scores.append([float(cells[2]), float(cells[3])])
    return right, scores


def peer_tasks(peer, model, out, kind, n_tasks):
    """What the peer prints about a file of tasks."""
    path = ROOT / "fixtures/tasks" / KINDS[kind]
    given = path
    if kind == "winogrande":
        # The peer leaves out the last line, unless an empty one follows it.
        given = out / "winogrande.csv"
        given.write_text(path.read_text() + "\n")
    limit = [f"--{kind}-tasks", n_tasks or 1000000 * (kind == "hellaswag")]
    return run(peer, "-m", model, "-bf" if kind == "multiple-choice" else "-f", given, f"--{kind}", *limit, "-np", 8,
               *FLOATS)


def compare_tasks(peer, ours, model, out, kind, n_tasks):
    path = ROOT / "fixtures/tasks" / KINDS[kind]
    text = peer_tasks(peer, model, out, kind, n_tasks)
    right, scores = peer_outcomes(kind, text)
    limit = ["--tasks", n_tasks] if n_tasks else []
    report = json.loads(run(ours, model, f"--{kind}", path, *limit, "--json"))["tasks"][0]
    outcomes = report["outcomes"]
    same = sum(a == b["is_right"] for a, b in zip(right, outcomes))
    line = f"{kind}: {len(right)} and {len(outcomes)} tasks, {sum(right)} and {sum(b['is_right'] for b in outcomes)} right"
    line += f", {same} outcomes equal"
    if scores:
        apart = max(abs(x - y) for a, b in zip(scores, outcomes) for x, y in zip(a, b["scores"]))
        line += f", scores at most {apart:.6f} apart"
    final = [line for line in text.splitlines() if re.search(r"Final|Random|%\t\[", line)]
    print(f"{line}\n    here {100 * report['accuracy']:.4f} ± {100 * report['stderr']:.4f} "
          f"[{100 * report['low']:.4f}, {100 * report['high']:.4f}], guessing {100 * report['chance']:.4f}")
    for line in final[-2:]:
        print(f"    peer {line.strip()}")


def write_fixtures(args, perplexity, f32, out):
    kept = {}
    for kind in KINDS:
        for n_tasks in (0, 10):
            right, scores = peer_outcomes(kind, peer_tasks(perplexity, f32, out, kind, n_tasks))
            kept[f"{kind}/{n_tasks}"] = {"right": right, "scores": scores}
    (ROOT / "fixtures/tasks/peer.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    folder = ROOT / "fixtures/logits"
    folder.mkdir(exist_ok=True)
    cut = ["-c", 32, "-b", 32, *FLOATS, "--kl-divergence-base", folder / "tiny-llama.logits"]
    run(perplexity, "-m", f32, "-f", ROOT / "fixtures/tiny-llama/corpus.txt", "--chunks", 3, *cut)
    small, wide = out / "q4_0.gguf", out / "q4_0-wide.gguf"
    run(args.peer / "llama-quantize", "--pure", "--token-embedding-type", "q4_0", f32, small, "q4_0")
    run(args.peer / "llama-quantize", "--allow-requantize", small, wide, "f32")
    said = run(perplexity, "-m", wide, "--kl-divergence", *cut)
    lines = [line for line in said.splitlines() if re.match(r"^ *\d+ .*±", line)]
    (folder / "q4_0.txt").write_text("".join(f"{line}\n" for line in lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", type=Path)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--chunks", default="8")
    parser.add_argument("--type", default="q4_k_m")
    parser.add_argument("--write-fixtures", action="store_true")
    args = parser.parse_args()
    bins = ROOT / "target" / os.environ.get("PROFILE", "release")
    perplexity, verify = args.peer / "llama-perplexity", bins / "gguf-verify"
    out = ROOT / "target/perplexity-tools"
    out.mkdir(parents=True, exist_ok=True)
    f32, small, wide = out / "f32.gguf", out / "small.gguf", out / "wide.gguf"
    widen = [args.peer / "llama-quantize", "--allow-requantize"]
    if args.model:
        run(*widen, args.model, f32, "f32")
    else:
        run(bins / "gguf-convert", "hf2gguf", ROOT / "fixtures/tiny-llama", "-o", f32, "--type", "f32", "--quiet")
    if args.write_fixtures:
        return write_fixtures(args, perplexity, f32, out)
    run(bins / "gguf-quantize", f32, small, args.type, "--quiet")
    run(*widen, small, wide, "f32")

    text = ROOT / "fixtures/tiny-llama/corpus.txt"
    cut = ["-f", text, "-c", CTX, "--chunks", args.chunks, *FLOATS]
    peers, own = out / "peer.logits", out / "own.logits"
    run(perplexity, "-m", f32, *cut, "--kl-divergence-base", peers)
    run(verify, f32, "--prompts", text, "--ctx", CTX, "--chunks", args.chunks, "--save-baseline", own, "--json")
    compare_logits(peers, own)
    for name, base in (("the peer's logit file", peers), ("our logit file", own)):
        said = run(perplexity, "-m", wide, "--kl-divergence", "--kl-divergence-base", base, "-c", CTX, *FLOATS)
        ours = json.loads(run(verify, wide, "--baseline", base, "--json"))
        compare_figures(f"{name}, read by both", peer_figures(said), ours)
    ours = json.loads(run(verify, wide, "--baseline", f32, "--prompts", text, "--ctx", CTX, "--chunks", args.chunks, "--json"))
    compare_figures("the baseline run by us", peer_figures(said), ours)

    for kind in KINDS:
        for n_tasks in (0, 10):
            compare_tasks(perplexity, verify, f32, out, kind, n_tasks)


if __name__ == "__main__":
    main()
