"""Lists what mlx-lm changes in weights as it loads them, and so in what it saves.

usage: mlx_sanitize.py MLX_LM_DIR      (the unpacked package; never needed to build, test or use anything)

Prints, for each file of `models/` with a function `sanitize`, the lines that change values, axes or names. The facts are in
`crates/gguf-conversion/src/mlx.toml`; the list `checked` there is printed last.
"""
import ast
import re
import sys
from pathlib import Path

CHANGES = re.compile(r"swapaxes|reshape|split\(|concatenate|linalg|\.T\b|transpose|exp\(|squeeze|\+ 1|\*=|replace\(|moveaxis|stack\(")
names = []
for path in sorted(Path(sys.argv[1], "models").glob("*.py")):
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == "sanitize":
            lines = ast.get_source_segment(source, node).splitlines()
            for line in (line.strip() for line in lines if CHANGES.search(line)):
                print(f"{path.stem}: {line}")
    if "class ModelArgs" in source:
        names.append(path.stem)
print(", ".join(f'"{name}"' for name in names))
