#!/usr/bin/env python3
"""Writes crates/gguf-arch/src/attributes.json: what transformers' configuration classes know, with the defaults, by `model_type`.

Usage (needs transformers, no torch):
  config_attributes.py CONVERTERS_DIR OUTPUT

Only types whose model classes a card converts, and only attributes that the modeling code or the configuration class
itself reads. Of each type:
  attributes   name: default. A list by layer that repeats is {"period": [...]}; {"derived": true} is a default that other
               attributes decide
  filled       attributes of which a null counts as absent
  nullable     attributes of which a null stays one; the class refuses any other null
  kinds        whether an attribute whose default does not say it is an "int", a "float" or a "bool"
  aliases      other name: name
  outranked    those of which the name itself is taken where both are given with different values
  text         the type of `text_config` where it names none
Members of `rope_parameters` have points in their names.
"""
import argparse
import ast
import json
import logging
import re
import tomllib
import warnings
from importlib import import_module
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import transformers  # noqa: E402
from transformers import CONFIG_MAPPING  # noqa: E402

ROOT = Path(transformers.__file__).parent
# Sizes that are changed to see which defaults follow them.
N_LAYERS = (24, 25)
READ = [
    re.compile(r"""\bconfig\.([A-Za-z_]\w*)"""),
    re.compile(r"""getattr\(\s*(?:self\.)?config\s*,\s*["'](\w+)["']"""),
    re.compile(r"""\bself\.([A-Za-z_]\w*)"""),
]
# Attributes of all classes, and files of transformers that read attributes for all.
BASE = set(transformers.PretrainedConfig().to_dict())
SHARED = ("modeling_rope_utils.py", "masking_utils.py", "modeling_layers.py")


def card_classes(converters):
    classes, types = set(), set()
    for path in sorted(converters.glob("*.toml")):
        text = path.read_text()
        # Of several text models of one class.
        types.update(re.findall(r"""model_type\??\s*==\s*'(\w+)'""", text))
        card = tomllib.loads(text)
        for table in [card, *card.get("variant", {}).values()]:
            classes.update(table.get("classes", []))
            types.update(table.get("model_types", []))
    return classes, types


def types_of(classes, types):
    """From the source of the tables, which torch alone could import."""
    source = (ROOT / "models/auto/modeling_auto.py").read_text()
    types = set(types)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Tuple) or len(node.elts) != 2:
            continue
        try:
            model_type, found = ast.literal_eval(node)
        except ValueError:
            continue
        found = (found,) if isinstance(found, str) else found
        if isinstance(model_type, str) and any(one in classes for one in found):
            types.add(model_type)
    return types


def made(config_class, **changes):
    try:
        return config_class(**changes)
    except Exception:  # a value that the class refuses
        return None


def annotations(config_class):
    kinds = {}
    for parent in reversed(config_class.__mro__):
        kinds |= parent.__dict__.get("__annotations__", {})
    return kinds


def kind(annotation):
    """The one kind of number or switch that an annotation allows beside None, or None."""
    words = set(re.findall(r"\w+", re.sub(r"<class '(\w+)'>", r"\1", str(annotation)))) - {"None", "NoneType"}
    if words == {"int", "float"}:
        return "float"
    return words.pop() if len(words) == 1 and words <= {"int", "float", "bool"} else None


def plain(config):
    """The attributes; a whole number that may be any other is 1.0, not 1."""
    kinds = annotations(type(config))
    may_break = {key for key, kind in kinds.items() if re.search(r"\bfloat\b", str(kind))}
    own = {key: value for key, value in config.to_dict().items() if key not in BASE}
    return {key: float(value) if key in may_break and type(value) is int else value for key, value in own.items()}


def words(path):
    text = path.read_text()
    return {name for pattern in READ for name in pattern.findall(text)}


def attributes_read(config_class):
    module = Path(import_module(config_class.__module__).__file__)
    files = [module, *sorted(module.parent.glob("modeling_*.py"))]
    files += [ROOT / name for name in SHARED]
    return set().union(*(words(path) for path in files if path.exists()))


def n_layers_key(config_class):
    return config_class.attribute_map.get("num_hidden_layers", "num_hidden_layers")


def period(config_class, key):
    """The shortest beginning whose repetition is the default for models of two depths."""
    lists = []
    for n in N_LAYERS:
        config = made(config_class, **{n_layers_key(config_class): n})
        value = plain(config).get(key) if config else None
        if not isinstance(value, list) or len(value) != n:
            return None
        lists.append(value)
    for length in range(1, 9):
        if all(value[i] == value[i % length] for value in lists for i in range(len(value))):
            return lists[0][:length]
    return None


def followers(config_class, defaults):
    """Attributes whose defaults change as another one does."""
    found = set()
    for key, value in defaults.items():
        if isinstance(value, bool):
            changed = not value
        elif isinstance(value, int) and value > 0:
            changed = value * 2
        else:
            continue
        config = made(config_class, **{key: changed})
        if config is None and not isinstance(value, bool):
            config = made(config_class, **{key: value * 3})
        if config is not None:
            other = plain(config)
            found |= {name for name in defaults if name != key and other.get(name) != defaults[name]}
    return found


def flat(key, value):
    if key != "rope_parameters" or not isinstance(value, dict):
        return {key: value}
    rows = {}
    for name, member in value.items():
        if isinstance(member, dict):
            rows |= {f"{key}.{name}.{inner}": one for inner, one in member.items()}
        else:
            rows[f"{key}.{name}"] = member
    return rows


def storable(value):
    """As `save_pretrained` stores it: JSON has no infinity."""
    if isinstance(value, list):
        return [storable(one) for one in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"__float__": "Infinity" if value > 0 else "-Infinity"}
    return value


def is_plain(value):
    if isinstance(value, list):
        return all(not isinstance(one, (dict, list)) for one in value)
    return value is None or isinstance(value, (bool, int, float, str))


def outranks(config_class, config, alias, name):
    """Whether the value of an alias is taken where the attribute's own name has another."""
    own = getattr(config, name, None)
    other = not own if isinstance(own, bool) else own[::-1] if isinstance(own, list) else (own or 2) * 2
    given = {name: own if own is not None else 2, alias: other}
    try:
        return getattr(config_class.from_dict(given), name) != given[name]
    except Exception:
        return False


def describe(config_class):
    config = made(config_class)
    if config is None:
        return None
    defaults = plain(config)
    read = attributes_read(config_class)
    aliases = dict(config_class.attribute_map)
    read |= {aliases[name] for name in read if name in aliases}
    follow, annotated = followers(config_class, defaults), annotations(config_class)
    rows, filled, nullable, kinds = {}, [], [], {}
    for key, value in defaults.items():
        # A part's configuration is judged by its own type.
        if key not in read or (isinstance(value, dict) and key != "rope_parameters"):
            continue
        repeated = period(config_class, key) if isinstance(value, list) else None
        if repeated is not None:
            rows[key] = {"period": repeated}
        elif key in follow and key != "rope_parameters":
            rows[key] = {"derived": True}
        else:
            rows |= {name: storable(one) for name, one in flat(key, value).items() if is_plain(one)}
        if (value is None or rows.get(key) == {"derived": True}) and kind(annotated.get(key)):
            kinds[key] = kind(annotated[key])
        if value is not None or rows.get(key) == {"derived": True}:
            try:
                is_filled = plain(config_class(**{key: None})).get(key) is not None
                (filled if is_filled else nullable).append(key)
            except Exception as error:
                # Another error is one of a rule over several attributes.
                if "FieldValidation" not in type(error).__name__:
                    nullable.append(key)
    row = {"attributes": dict(sorted(rows.items()))}
    if filled:
        row["filled"] = sorted(filled)
    if nullable:
        row["nullable"] = sorted(nullable)
    if kinds:
        row["kinds"] = dict(sorted(kinds.items()))
    if aliases:
        row["aliases"] = dict(sorted(aliases.items()))
        outranked = [name for name in sorted(aliases) if not outranks(config_class, config, name, aliases[name])]
        if outranked:
            row["outranked"] = outranked
    text = getattr(config_class, "sub_configs", {}).get("text_config")
    if text is not None:
        text_type = getattr(getattr(config, "text_config", None), "model_type", None)
        if text_type:
            row["text"] = text_type
    return row


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("converters", type=Path)
    arguments.add_argument("output", type=Path)
    options = arguments.parse_args()
    todo = sorted(types_of(*card_classes(options.converters)))
    rows = {}
    while todo:
        model_type = todo.pop()
        if model_type in rows or model_type not in CONFIG_MAPPING:
            continue
        row = describe(CONFIG_MAPPING[model_type])
        if row is None:
            print(f"{model_type}: its class makes no configuration of its own")
            continue
        rows[model_type] = row
        if "text" in row:
            todo.append(row["text"])
    source = f"lab/peers/config_attributes.py, transformers {transformers.__version__}"
    lines = [f" {json.dumps('about')}: {json.dumps(source)}"]
    compact = {name: json.dumps(row, separators=(",", ":"), allow_nan=False) for name, row in rows.items()}
    lines += [f" {json.dumps(name)}: {compact[name]}" for name in sorted(rows)]
    options.output.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(rows)} types, {options.output.stat().st_size} bytes")


main()
