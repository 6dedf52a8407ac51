#!/usr/bin/env python3
"""Writes fixtures/transformers5.json: what changes in the configurations of fixtures/cards when transformers saves them anew.

Usage: python3 lab/peers/resaved_fixtures.py
Run it with a Python that has transformers 5.24; torch is not needed. Configurations of classes that transformers does not have,
or does not load, are left out.
"""

import json
from pathlib import Path

from resaved_configs import resaved

ROOT = Path(__file__).parents[2]


def main():
    changes = {}
    for path in sorted((ROOT / "fixtures/cards").glob("*/*.json")):
        config = json.loads(path.read_text())["config"]
        try:
            again = resaved(config)
        except Exception as error:
            print(f"{path.parent.name}/{path.name}: not loaded: {str(error).splitlines()[0]}")
            continue
        if again is None:
            continue
        without = [key for key in config if key not in again]
        changed = {key: value for key, value in again.items() if key != "transformers_version" and (key not in config or config[key] != value)}
        changes[f"{path.parent.name}/{path.name}"] = {"without": without, "with": changed}
    rows = [f"{json.dumps(name)}: {json.dumps(change)}" for name, change in changes.items()]
    (ROOT / "fixtures/transformers5.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
