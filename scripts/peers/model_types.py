#!/usr/bin/env python3
"""The table of src/arch/model_types.rs: which of our classes transformers takes for a `model_type`.

Usage: python3 scripts/peers/model_types.py TRANSFORMERS
TRANSFORMERS is the folder of the installed package. Its tables are read from the source, so torch is not needed.
"""

import ast
import re
import sys
from pathlib import Path

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


def plain(name):
    return re.sub("[_-]", "", name).lower()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    all_tables = tables((Path(sys.argv[1]) / "models/auto/modeling_auto.py").read_text())
    known = {line.split("\t")[0] for line in (Path(__file__).parents[2] / "fixtures/classes.tsv").read_text().splitlines()}
    types = {}
    for part in ORDER:
        name = "_".join(word for word in ("MODEL", part, "MAPPING_NAMES") if word)
        for model_type, classes in all_tables[name].items():
            one = classes if isinstance(classes, str) else classes[0]
            # Some types share another's class, and may have cards of their own.
            if one in known and plain(one).startswith(plain(model_type.removesuffix("_text"))):
                types.setdefault(model_type, one)
    for model_type in sorted(types):
        print(f'    ("{model_type}", "{types[model_type]}"),')


if __name__ == "__main__":
    main()
