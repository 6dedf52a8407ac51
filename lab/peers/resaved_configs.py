#!/usr/bin/env python3
"""A configuration that transformers saves anew converts to the same keys and tensors.

Usage: python3 lab/peers/resaved_configs.py CORPUS BIN [FILTER...]
CORPUS is a folder with arch/*/hf and mmproj/*/hf, BIN the folder with gguf-convert and gguf-inspect. Run it with a Python that
has transformers; torch is not needed. Each config.json is loaded by transformers (AutoConfig) and saved; the checkpoint is
converted with the one and the other, and the plans are compared: keys, values, names, shapes, types.

Besides each configuration as it is, some values are changed before it is saved, so that a default does not hide a key that is
not read: rope base, rotated part.
"""

import copy
import json
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

warnings.filterwarnings("ignore")

# Cases whose configuration transformers reads as another model than it means, and saves so.
REASONS = {
    "arch/gemma3_text_model": "a window of two sides is halved when it is loaded and doubled when it is saved: odd ones become even",
    "arch/mimo_v2_flash": "rope_theta, swa_rope_theta and partial_rotary_factor of the released files are not read",
    "arch/nomic_bert": "the released files have n_embd and n_layer, and the class reads other keys",
}

# Values that are no default of any class, by the key whose value they replace.
CHANGES = {
    "as it is": {},
    "other rope base": {"rope_theta": 12345.0, "rotary_emb_base": 12345.0, "rope_local_base_freq": 777.0, "local_rope_theta": 777.0,
                        "global_rope_theta": 54321.0},
    "other rotated part": {"partial_rotary_factor": 0.5, "rotary_pct": 0.5, "rope_pct": 0.5},
}


def resaved(config):
    """The configuration as transformers saves it; None where it has no class for it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        return None
    # A copy: classes change what they are given.
    loaded = CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(config))
    with tempfile.TemporaryDirectory() as folder:
        loaded.save_pretrained(folder)
        return json.loads((Path(folder) / "config.json").read_text())


def changed(config, values):
    """The configuration with other values for the keys that it has, in its parts too; None if it has none of them."""
    found = False

    def visit(node):
        nonlocal found
        for key, value in node.items():
            if key in values and isinstance(value, (int, float)) and not isinstance(value, bool) and value != values[key]:
                node[key], found = values[key], True
            elif isinstance(value, dict):
                visit(value)

    config = copy.deepcopy(config)
    visit(config)
    return config if found or not values else None


def plan(programs, folder, config, options):
    """What a checkpoint becomes with this configuration: keys and tensors, or the error."""
    with tempfile.TemporaryDirectory() as place:
        checkpoint = Path(place) / "hf"
        checkpoint.mkdir()
        for file in folder.iterdir():
            if file.name != "config.json":
                (checkpoint / file.name).symlink_to(file.resolve())
        (checkpoint / "config.json").write_text(json.dumps(config))
        out = Path(place) / "out.gguf"
        command = [programs / "gguf-convert", "hf2gguf", checkpoint, "-o", out, "--type", "f32", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return {"error": done.stderr.replace(place, "")}
        command = [programs / "gguf-inspect", "dump", "--json", "--json-array", out]
        shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        # Where a row lies follows from the others.
        facts = {f"{part} {name}": {key: value for key, value in row.items() if key not in ("index", "offset")}
                 for part in ("metadata", "tensors") for name, row in shown[part].items() if is_told(name, row)}
        said = [line for line in done.stderr.replace(place, "").splitlines() if line.startswith("warning")]
        return {**facts, **{line: True for line in said}}


def is_told(name, row):
    """Not what a file has for its format; a count of no draft heads is as good as none."""
    return not name.startswith("GGUF.") and not (name.endswith(".nextn_predict_layers") and row["value"] == 0)


def compare(programs, case, options, name, change):
    folder = case / "hf"
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        return name, "no config.json", []
    config = changed(config, change)
    if config is None:
        return name, "nothing to change", []
    try:
        again = resaved(config)
    except Exception as error:
        return name, "not loaded", [f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"]
    if again is None:
        return name, "no class", []
    old, new = plan(programs, folder, config, options), plan(programs, folder, again, options)
    if old == new:
        return name, "same", []
    if any(name.startswith(case) for case in REASONS):
        return name, "other with a reason", []
    if "error" in old:
        return name, "not converted", [] if "error" in new else [f"{old['error']} -> converted"]
    if "error" in new:
        return name, "other", [f"{old.get('error', 'converted')} -> {new.get('error', 'converted')}"]
    lines = [f"- {key}: {old[key]}" for key in old if key not in new]
    lines += [f"+ {key}: {new[key]}" for key in new if key not in old]
    lines += [f"* {key}: {old[key]} -> {new[key]}" for key in old if key in new and old[key] != new[key]]
    return name, "other", lines


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    resaved({})  # imported before there are threads
    corpus, programs, filters = Path(sys.argv[1]), Path(sys.argv[2]).resolve(), sys.argv[3:]
    jobs = []
    for part in ("arch", "mmproj"):
        for case in sorted((corpus / part).iterdir()):
            if not (case / "case.json").exists() or (filters and not any(word in case.name for word in filters)):
                continue
            asked = json.loads((case / "case.json").read_text()).get("converter_options") or {}
            options = [f"--{key.replace('_', '-')}" for key in ("no_mtp", "mmproj") if asked.get(key)]
            options += [] if part == "mmproj" else ["--no-tokenizer"]
            jobs += [(programs, case, options, f"{part}/{case.name}: {what}", change) for what, change in CHANGES.items()]
    counts = {}
    with ThreadPoolExecutor(2) as pool:
        for name, outcome, lines in pool.map(lambda job: compare(*job), jobs):
            counts[outcome] = counts.get(outcome, 0) + 1
            if lines:
                print(f"{name}: {outcome}")
                print("\n".join(f"    {line[:300]}" for line in lines[:12]), flush=True)
    print(", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())))
    sys.exit(1 if counts.get("other") else 0)


if __name__ == "__main__":
    main()
