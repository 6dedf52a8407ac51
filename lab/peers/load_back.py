#!/usr/bin/env python3
"""Checkpoints that gguf2hf writes, loaded by transformers: the same logits as the checkpoint they came from.

Usage: load_back.py PROGRAMS CORPUS [CASE..]

PROGRAMS is the folder with gguf-convert; CORPUS the conformance corpus (its folder `arch`, cases with `hf/config.json`).
Every case goes to an f32 GGUF and back. Both checkpoints are loaded by the class that their config.json names; it is an
error if transformers misses a weight, meets one that it does not know (and did not in the original), or computes other
logits (hidden states, where the way back names another class or is the text part of a composite model) beyond 1e-5 of
the largest. Cases without such a class, or without a way back, are counted and named. Needs torch and transformers (accelerate for MXFP4).
"""

import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

LIMIT = 1e-5
# What a text model's GGUF does not hold: towers, and the pooler of encoders that llama.cpp pools otherwise.
NOT_IN_GGUF = re.compile(r"visual|vision|audio|multi_modal_projector|^(\w+\.)?pooler\.")
# Ids that come with the tokenizer, which is left out here.
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def run(*args):
    """The last line of what went wrong, or nothing."""
    process = subprocess.run([str(arg) for arg in args], capture_output=True, text=True)
    return None if process.returncode == 0 else (process.stderr.strip() or "no message").splitlines()[0]


def config_of(directory):
    return json.loads((directory / "config.json").read_text())


def class_of(directory):
    names = config_of(directory).get("architectures") or []
    return next((c for c in (getattr(transformers, name, None) for name in names) if c), None)


def load(directory, like=None):
    """The model and what was odd when it was loaded; of the text part alone, where a way back has no more of a composite
    model (`like`: the directory of the whole)."""
    options = {"dtype": torch.float32, "output_loading_info": True, "attn_implementation": "eager", "local_files_only": True}
    model_class, config = class_of(directory), config_of(directory)
    whole = config_of(like) if like else config
    if "text_config" in whole and "text_config" not in config and "text_config" in model_class.config_class.sub_configs:
        own = {key: value for key, value in config.items() if key != "model_type"}
        config = transformers.AutoConfig.for_model(whole["text_config"]["model_type"], **own)
        model_class, options["config"] = transformers.AutoModel._model_mapping[type(config)], config
    model, info = model_class.from_pretrained(directory, **options)
    return model.eval(), info


def outputs(model, is_trunk):
    """Logits behind a few tokens, or the last hidden states of the text part."""
    config = model.config.get_text_config()
    ids = torch.arange(3, 27)[None] * 5 % min(150, config.vocab_size - 4) + 3
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :7]
    elif is_trunk:
        model = model.get_decoder() if hasattr(model.config, "text_config") else model.base_model
    with torch.no_grad():
        result = model(**inputs)
    return result.logits if "logits" in result else result.last_hidden_state


def compare(original, back):
    """What differs, or nothing; and the largest difference."""
    (a, info_a), (b, info_b) = load(original), load(back, original)
    faults, is_other = [], type(a) is not type(b)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        new = set(map(str, info_b[what])) - set(map(str, info_a[what])) - ({"lm_head.weight"} if is_other else set())
        new = sorted(key for key in new if not NOT_IN_GGUF.search(key))
        if new:
            faults.append(f"{what}: {new[:3]}")
    x, y = outputs(a, is_other), outputs(b, is_other)
    if x.shape != y.shape:
        return faults + [f"shapes {list(x.shape)} and {list(y.shape)}"], None
    difference = ((x - y).abs().max() / x.abs().max().clamp(min=1e-30)).item()
    if not difference <= LIMIT:
        faults.append(f"relative difference {difference:.2e}")
    return faults, difference


def give_special_ids(original, back):
    """Puts ids of the original's configuration into the other."""
    source, target = config_of(original), config_of(back)
    source = source.get("text_config", source) | source
    for key in SPECIAL_IDS:
        if key in source:
            target.setdefault(key, source[key])
    (back / "config.json").write_text(json.dumps(target))


def judge(programs, original):
    """What kind of end a case has, and its words."""
    with tempfile.TemporaryDirectory() as folder:
        gguf, back = Path(folder, "f32.gguf"), Path(folder, "hf")
        error = run(programs / "gguf-convert", "hf2gguf", original, "-o", gguf, "--type", "f32", "--no-tokenizer",
                    "--annotate", "--quiet", "--no-sync")
        error = error or run(programs / "gguf-convert", "gguf2hf", gguf, "-o", back, "--no-tokenizer", "--quiet",
                             "--no-sync")
        if error:
            return "no way back", error
        try:
            outputs(load(original)[0], False)
        except Exception as problem:
            return "transformers does not load the original", f"{problem!r:.120}"
        give_special_ids(original, back)
        if class_of(back) is None:
            return "the way back has no class in transformers", ""
        try:
            faults, difference = compare(original, back)
        except Exception as problem:
            faults, difference = [f"{problem!r:.300}"], None
        return ("wrong", "; ".join(faults)) if faults else ("equal", f"{difference:.1e}")


def judge_apart(programs, original):
    """The same in a process of its own: some models of transformers end the interpreter."""
    here, there = multiprocessing.Pipe(duplex=False)

    def child():
        torch.set_num_threads(1)
        there.send(judge(programs, original))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    there.close()
    try:
        result = here.recv()
    except EOFError:
        result = ("wrong", "the interpreter ended")
    process.join()
    return result


def main():
    programs, corpus, wanted = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    ends = {}
    for case in sorted(path.name for path in (corpus / "arch").iterdir() if (path / "hf" / "config.json").exists()):
        if wanted and case not in wanted:
            continue
        original = corpus / "arch" / case / "hf"
        if class_of(original) is None:
            end, words = "no class in transformers", ""
        else:
            end, words = judge_apart(programs, original)
            print(f"{case}: {end} {words}", flush=True)
        ends.setdefault(end, []).append(case)
    for end, cases in ends.items():
        print(f"{end}, {len(cases)}" + ("" if end == "equal" else f": {', '.join(cases)}"))
    sys.exit(1 if "wrong" in ends or "equal" not in ends else 0)


if __name__ == "__main__":
    main()
