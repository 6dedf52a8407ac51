#!/usr/bin/env python3
"""Writes crates/gguf-arch/src/invert/biases.json: modules of transformers' causal models that have a bias by a switch, or never.

Usage (needs torch and transformers 5.24): class_biases.py CONVERTERS OUTPUT
Builds each class that a card names on the meta device, with all switches off and with each of them on.
"""
import collections
import json
import re
import sys
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

SIZES = {"num_hidden_layers": 8, "n_layer": 8, "n_layers": 8, "vocab_size": 512}
SIZES |= {"num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8}


def modules(model_class, config_class, settings):
    """Returns the weights and biases by their names inside of a block."""
    try:
        config = config_class(**settings)
    except Exception:
        config = config_class(**{key: value for key, value in settings.items() if isinstance(value, bool)})
    with torch.device("meta"):
        names = model_class(config).state_dict()
    return {re.sub(r"^.*\.\d+\.", "", name) for name in names}


def switches(name, model_type):
    model_class = getattr(transformers, name)
    config_class = type(transformers.AutoConfig.for_model(model_type))
    defaults = config_class().to_dict()
    small = {key: min(defaults[key], size) for key, size in SIZES.items() if isinstance(defaults.get(key), int)}
    known = [key for key, value in defaults.items() if "bias" in key and (value is None or isinstance(value, bool))]
    settings = small | {"pad_token_id": None} | dict.fromkeys(known, False)
    off = modules(model_class, config_class, settings)
    on = {}
    for key in known:
        try:
            on[key] = modules(model_class, config_class, settings | {key: True})
        except Exception:
            on[key] = set()
    rows = collections.defaultdict(list)
    for module in sorted(name.removesuffix(".weight") for name in off if name.endswith(".weight")):
        if module + ".bias" not in off:
            rows[next((key for key in known if module + ".bias" in on[key]), "none")].append(module)
    return {key: " ".join(rows[key]) for key in sorted(rows)}


converters, output = Path(sys.argv[1]), Path(sys.argv[2])
named = set(re.findall(r"\b[A-Z]\w+\b", "".join(path.read_text() for path in converters.glob("*.toml"))))
table = {}
for model_type, classes in CLASSES.items():
    for name in [classes] if isinstance(classes, str) else classes:
        try:
            found = switches(name, model_type) if name in named else {}
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if found:
            table[name] = found
rows = [f" {json.dumps(name)}: {json.dumps(table[name], separators=(',', ':'))}" for name in sorted(table)]
output.write_text("{\n" + ",\n".join(rows) + "\n}\n")
