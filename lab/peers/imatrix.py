#!/usr/bin/env python3
"""Importance matrices of gguf-verify and of llama-imatrix on the same texts: sums, merged files, statistics.

Usage: lab/peers/imatrix.py LLAMA_BIN_DIRECTORY      (our programs: target/release, or target/$PROFILE)

Models: the bundled one in F32; the same with a head of its own; one of 16 random experts in 2 layers. Needs nothing but
Python. Exits with 1 where a difference is larger than the rounding of f32 sums explains.
"""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / os.environ.get("PROFILE", "release")
TINY = ROOT / "fixtures" / "tiny-llama"
TEXT = TINY / "corpus.txt"
CTX = "256"
# llama-imatrix sums in f32 over up to 20 000 rows. By default it also keeps keys and values in 16 bits, which costs more.
EXACT = ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]
LIMITS = {True: (2e-4, 1e-4), False: (2e-3, 2e-4)}
failed = []


def run(*args, may_fail=False):
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True)
    if done.returncode != 0 and not may_fail:
        sys.exit(f"{args}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def ours(*args):
    return run(BIN / "gguf-verify", "imatrix", *args, "--quiet")[0]


def say(case, text, is_good):
    print(f"{case:<34} {text}{'' if is_good else '   <-- DIFFERS'}")
    if not is_good:
        failed.append(case)


def compare(case, a, b, is_exact):
    """The sums and counts of two files."""
    max_rel, max_rms = LIMITS[is_exact]
    out, _ = run(BIN / "gguf-inspect", "diff", a, b, "--json", may_fail=True)
    report = json.loads(out)
    tensors = report["tensors"]
    missing = [t["name"] for t in tensors if t["data"] is None]
    counts = [t for t in tensors if t["name"].endswith(".counts")]
    sums = [t["data"] for t in tensors if t["data"] and t["name"].endswith(".in_sum2")]
    worst = max((data["max_rel"] for data in sums), default=0.0)
    rms = max((data["relative_rms"] for data in sums), default=0.0)
    keys = [k["key"] for k in report["keys"]]
    moved = sum(t["data"]["differing"] for t in counts if t["data"])
    is_good = not missing and not keys and moved == 0 and worst < max_rel and rms < max_rms
    text = f"sums differ by {worst:.1e} at most, {rms:.1e} rms; counts that differ: {moved}"
    if keys or missing:
        text += f"; keys {keys}; only in one {missing[:3]}"
    say(case, text, is_good)


def same_bytes(case, a, b):
    is_same = Path(a).read_bytes() == Path(b).read_bytes()
    say(case, "same bytes" if is_same else "other bytes", is_same)


def write_checkpoint(folder, config, tensors):
    """A checkpoint in BF16 with the bundled tokenizer; values as bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, (shape, raw) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)


def tiny_tensors():
    raw = (TINY / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + n])
    header.pop("__metadata__", None)
    part = lambda t: raw[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]]
    return {name: (t["shape"], part(t)) for name, t in header.items()}


def untied(folder):
    config = json.loads((TINY / "config.json").read_text())
    config["tie_word_embeddings"] = False
    tensors = tiny_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    write_checkpoint(folder, config, tensors)


def experts(folder):
    config = json.loads((TINY / "config.json").read_text())
    n, width, layers = 16, 128, 2
    config |= {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": width,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": layers,
        "num_experts": n, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "rms_norm_eps": 1e-6,
    }
    rng = random.Random(7)
    bf16 = lambda x: struct.pack("<f", x)[2:]
    matrix = lambda *shape: (list(shape), b"".join(bf16(rng.gauss(0, 2 / width**0.5)) for _ in range(shape[0] * shape[1])))
    ones = lambda size: ([size], bf16(1.0) * size)
    tensors = {"model.embed_tokens.weight": matrix(1024, width), "model.norm.weight": ones(width)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": ones(width), at + "post_attention_layernorm.weight": ones(width),
            at + "self_attn.q_proj.weight": matrix(128, width), at + "self_attn.k_proj.weight": matrix(64, width),
            at + "self_attn.v_proj.weight": matrix(64, width), at + "self_attn.o_proj.weight": matrix(width, 128),
            at + "self_attn.q_norm.weight": ones(32), at + "self_attn.k_norm.weight": ones(32),
            at + "mlp.gate.weight": matrix(n, width),
        }
        for expert in range(n):
            own = f"{at}mlp.experts.{expert}."
            tensors |= {
                own + "gate_proj.weight": matrix(64, width), own + "up_proj.weight": matrix(64, width),
                own + "down_proj.weight": matrix(width, 64),
            }
    write_checkpoint(folder, config, tensors)


def close(a, b, digits):
    return abs(a - b) <= 1.5 * 10**-digits + 2e-5 * abs(b)


def statistics(case, peer, file):
    """The peer's tables against `imatrix show`, to the digits that it prints."""
    # It may end before its log is printed.
    for _ in range(50):
        text = "".join(run(*peer, "--in-file", file, "--show-statistics"))
        if "CosSim" in text.partition("per layer")[2]:
            break
    shown = json.loads(run(BIN / "gguf-verify", "imatrix", "show", file, "--json")[0])
    own = {(str(t["layer"] if t["layer"] is not None else "-"), t["tensor"]): t for t in shown["tensors"]}
    layers = {layer["layer"]: layer for layer in shown["layers"]}
    columns = [("sum", 2, 1), ("min", 4, 1), ("max", 4, 1), ("mean", 2, 1), ("stddev", 2, 1), ("active", 2, 100),
               ("elements", 0, 1), ("entropy", 4, 1), ("entropy_norm", 2, 100), ("zd", 2, 100), ("cossim", 4, 1)]
    n_tensors = n_layers = 0
    wrong = []
    for line in text.splitlines():
        # A time and a letter stand before what is printed.
        line = re.sub(r"^[\d.]+ [A-Z] ", "", re.sub(r"\x1b\[[0-9;]*m", "", line))
        cells = [cell.strip().rstrip("%") for cell in line.split("\t")]
        if len(cells) == 13 and (cells[0], cells[1]) in own:
            n_tensors += 1
            tensor = own[cells[0], cells[1]]
            for (key, digits, scale), cell in zip(columns, cells[2:]):
                if not close((tensor[key] or 0) * scale, float(cell), digits):
                    wrong.append((cells[0], cells[1], key, tensor[key], cell))
        elif len(cells) == 4 and cells[0].isdigit():
            n_layers += 1
            layer = layers[int(cells[0])]
            values = zip((layer["sum"], layer["zd"] * 100, layer["cossim"]), cells[1:], (2, 4, 4))
            wrong += [(cells[0], a, b) for a, b, digits in values if not close(a, float(b), digits)]
    is_good = not wrong and n_tensors == len(own) and n_layers == len(layers) and n_tensors > 0
    say(case, f"{n_tensors} tensors x 11 figures, {n_layers} layers x 3: {len(wrong)} differ {wrong[:3] or ''}", is_good)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    peer = Path(sys.argv[1]).resolve() / "llama-imatrix"
    out = ROOT / "target" / "imatrix-peers"
    out.mkdir(parents=True, exist_ok=True)
    models = {"tiny": TINY, "untied": out / "untied-hf", "experts": out / "experts-hf"}
    untied(models["untied"])
    experts(models["experts"])
    for name, folder in models.items():
        run(BIN / "gguf-convert", "hf2gguf", folder, "-o", out / f"{name}.gguf", "--type", "f32", "--quiet")
    marked = out / "marked.txt"
    lines = TEXT.read_text().splitlines()[:600]
    marked.write_text("".join(line + ("</s><s>" if at % 9 == 0 else "\n") for at, line in enumerate(lines)))

    def both(case, model, text, name, own=(), is_exact=True):
        """Collects with both programs and compares; returns both files."""
        a, b = out / f"{name}-ours.gguf", out / f"{name}-peer.gguf"
        ours(out / f"{model}.gguf", "--prompts", text, "--ctx", CTX, "-o", a, *own)
        other = list(own) + (EXACT if is_exact else [])
        run(peer, "-m", out / f"{model}.gguf", "-f", text, "-c", CTX, "-o", b, *other)
        compare(case, b, a, is_exact)
        return a, b

    both("79 chunks", "tiny", TEXT, "plain")
    both("79 chunks, its cache in 16 bits", "tiny", TEXT, "cache", is_exact=False)
    _, first = both("--chunks 9", "tiny", TEXT, "first", ["--chunks", 9])
    _, later = both("--from-chunk 20 --chunks 10", "tiny", TEXT, "later", ["--from-chunk", 20, "--chunks", 10])
    both("--parse-special", "tiny", marked, "special", ["--parse-special"])
    both("the same text without it", "tiny", marked, "marked")
    both("--process-output", "untied", TEXT, "output", ["--process-output", "--chunks", 20])
    _, moe = both("16 experts, --chunks 20", "experts", TEXT, "experts", ["--chunks", 20])
    _, few = both("16 experts, --chunks 2", "experts", TEXT, "few", ["--chunks", 2])
    both("--in-file", "tiny", TEXT, "in", ["--in-file", first, "--from-chunk", 9, "--chunks", 5])

    # It wants a model also where it does not run one.
    combine = [peer, "-m", out / "tiny.gguf", "-c", CTX]
    old = out / "later-peer.dat"
    run(*combine, "--in-file", later, "--output-format", "dat", "-o", old)
    old_moe = out / "few-peer.dat"
    run(*combine, "--in-file", few, "--output-format", "dat", "-o", old_moe)
    for name, files, flags, form in [
        ("merge of two", [first, later], [], "gguf"),
        ("merge of three", [first, later, first], [], "gguf"),
        ("merge with an older file", [first, old], ["--ctx", CTX], "gguf"),
        ("merge of older files", [old, old], ["--ctx", CTX], "gguf"),
        ("merge with experts", [moe, few], [], "gguf"),
        ("merge with experts, older first", [old_moe, moe], [], "gguf"),
        ("merge to the older form", [first, later], ["--legacy"], "dat"),
        ("merge with experts to it", [moe, few], ["--legacy"], "dat"),
    ]:
        a, b = out / f"merged-ours.{form}", out / f"merged-peer.{form}"
        ours("merge", *files, "-o", a, *flags)
        run(*combine, *[arg for file in files for arg in ("--in-file", file)], "--output-format", form, "-o", b)
        same_bytes(name, a, b)

    statistics("show", combine, out / "plain-ours.gguf")
    statistics("show, with the head", combine, out / "output-ours.gguf")
    statistics("show, experts", combine, moe)
    statistics("show, older format", combine, old)
    if failed:
        sys.exit(f"{len(failed)} differ")


main()
