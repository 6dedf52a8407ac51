#!/usr/bin/env python3
"""Writes docs/dependencies.md: every crate of Cargo.lock with its version, its licence, whether it runs code while it is
built (build script, macro), the number of `unsafe` in its source as cargo unpacked it, and what of it is in the
programs. Needs the crates' sources (`cargo fetch`), no other service.

Usage: scripts/dependencies.py [--check]      (--check writes nothing and fails if the page would change)
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/dependencies.md"

HEAD = """# Dependencies

Every crate of `Cargo.lock`, written by `scripts/dependencies.py`; a test checks that the list is complete. Advisories
are not on the package registry: `scripts/advisories.py DATABASE` compares `Cargo.lock` with a clone of RustSec's database,
as `cargo audit` and `cargo deny check advisories` do where they are installed. Last done with the advisories until
2025-02-24, the newest copy at hand: 30 are about these crates, none about these versions.

- **in**: `programs`: linked into the four programs on x86-64 Linux, or run to build them (`*`: named in a `Cargo.toml` of ours). `other`: other
  platforms, and features that are off. `tests`: tests, benchmarks and packing only.
- **build**: `script`: a program of the crate runs while it is compiled; `macro`: it runs inside the compiler.
- **unsafe**: number of occurrences of the word in its source, without comments and strings: blocks, functions, impls and
  traits, for all platforms, used or not. It shows where to look, not what is wrong.
"""


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def bare(source):
    """A source without comments, strings and characters."""
    pattern = r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\''
    return re.sub(pattern, " ", source, flags=re.S)


def n_unsafe(package):
    root = Path(package["manifest_path"]).parent
    files = [path for path in root.rglob("*.rs") if not {"tests", "benches", "examples"} & set(path.relative_to(root).parts)]
    texts = (path.read_text(errors="replace") for path in files)
    return sum(len(re.findall(r"\bunsafe\b", bare(text))) for text in texts)


def tree(*arguments):
    """Names and versions that a tree of dependencies has."""
    rows = run("cargo", "tree", "--offline", "--locked", "--prefix", "none", "--format", "{p}", *arguments)
    return {tuple(row.replace("(*)", "").split()[:2]) for row in rows.splitlines() if row.strip()}


def main():
    metadata = json.loads(run("cargo", "metadata", "--format-version", "1", "--locked", "--offline"))
    own = set(metadata["workspace_members"])
    named = {d["name"] for p in metadata["packages"] if p["id"] in own for d in p["dependencies"]}
    triple = re.search(r"host: (\S+)", run("rustc", "-vV"))[1]
    programs = tree("-e", "normal,build", "--target", triple)
    anywhere = tree("-e", "normal,build", "--target", "all", "--all-features")
    rows, counts = [], {"programs": 0, "script": 0, "macro": 0, "unsafe": 0}
    for package in sorted(metadata["packages"], key=lambda p: (p["name"], p["version"])):
        if package["id"] in own:
            continue
        key = (package["name"], "v" + package["version"])
        place = "programs" if key in programs else "other" if key in anywhere else "tests"
        kinds = {kind for target in package["targets"] for kind in target["kind"]}
        build = [word for kind, word in [("custom-build", "script"), ("proc-macro", "macro")] if kind in kinds]
        unsafe = n_unsafe(package)
        if place == "programs":
            counts["programs"] += 1
            counts["unsafe"] += unsafe > 0
            for word in build:
                counts[word] += 1
        mark = "*" if package["name"] in named else ""
        licence = package["license"] or "file: " + (package["license_file"] or "none")
        licence = re.sub(r" ?/ ?", " OR ", licence) if not licence.startswith("file") else licence
        rows.append(f"| `{package['name']}` | {package['version']} | {place}{mark} | {' '.join(build)} | {unsafe} | {licence} |")
    text = f"""{HEAD}
{len(rows)} crates, {counts['programs']} of them in the programs; of these {counts['script']} have build scripts, {counts['macro']} are macros, and {counts['unsafe']} have `unsafe`
in their source.

| crate | version | in | build | unsafe | licence |
| --- | --- | --- | --- | --- | --- |
""" + "\n".join(rows) + "\n"
    if "--check" in sys.argv:
        sys.exit(None if PAGE.read_text() == text else f"{PAGE} is not what the crates say: run scripts/dependencies.py")
    PAGE.write_text(text)
    print(f"{PAGE.relative_to(ROOT)}: {len(rows)} crates")


main()
