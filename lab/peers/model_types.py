#!/usr/bin/env python3
"""Writes crates/gguf-arch/src/registry/model_types.toml: the class that transformers takes for a `model_type`, if a card converts it.

Usage: python3 lab/peers/model_types.py TRANSFORMERS
TRANSFORMERS is the folder of the installed package. Its tables are read from the source, so torch is not needed.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADER = """\
# Class of each `model_type` in transformers {version}, for classes that cards convert; from lab/peers/model_types.py.

"""
# The first that has a class that we know.
ORDER = ["FOR_CAUSAL_LM", "FOR_IMAGE_TEXT_TO_TEXT", "FOR_SEQ_TO_SEQ_CAUSAL_LM", "", "FOR_MASKED_LM"]


def tables(source):
    found = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id.endswith("MAPPING_NAMES") and isinstance(node.value, ast.Call):
            try:
                found[target.id] = dict(ast.literal_eval(node.value.args[0]))
            except (ValueError, IndexError):
                continue
    return found


def version(package):
    release = re.search(r'^__version__ = "(\d+\.\d+)', (package / "__init__.py").read_text(), re.MULTILINE)
    return release[1]


def card_classes():
    found = set()
    for path in (ROOT / "converters").glob("*.toml"):
        card = tomllib.loads(path.read_text())
        for table in (card, *card.get("variant", {}).values()):
            found.update(table.get("classes", []))
    return found


def plain(name):
    return re.sub("[_-]", "", name).lower()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    package = Path(sys.argv[1])
    all_tables = tables((package / "models/auto/modeling_auto.py").read_text())
    known = card_classes()
    types = {}
    for part in ORDER:
        name = "_".join(word for word in ("MODEL", part, "MAPPING_NAMES") if word)
        for model_type, classes in all_tables[name].items():
            one = classes if isinstance(classes, str) else classes[0]
            # Some types share another's class, and may have cards of their own.
            if one in known and plain(one).startswith(plain(model_type.removesuffix("_text"))):
                types.setdefault(model_type, one)
    rows = [f'{model_type} = "{types[model_type]}"\n' for model_type in sorted(types)]
    (ROOT / "crates/gguf-arch/src/registry/model_types.toml").write_text(HEADER.format(version=version(package)) + "".join(rows))


if __name__ == "__main__":
    main()
