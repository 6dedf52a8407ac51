#!/usr/bin/env python3
"""Writes docs/dependencies.md: the crates that a Cargo.toml of ours names, each with its reason (those that are there stay),
and the names of all others of Cargo.lock. --all prints a table of every crate instead: version, place, whether it runs code
while it is built, the number of `unsafe` in its source without comments and strings (used or not, for all platforms), and
licence. Needs the crates' sources (`cargo fetch`), no other service.

Usage: scripts/dependencies.py [--check | --all]      (--check writes nothing and fails if the page would change)
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/dependencies.md"

HEAD = """# Dependencies

Written by `scripts/dependencies.py`; a test compares the names with `Cargo.lock`. `scripts/dependencies.py --all` prints each
crate with version, licence, build script and number of `unsafe`; `scripts/advisories.py DATABASE` compares `Cargo.lock` with a
clone of RustSec's database. Last done with the advisories until 2025-02-24, the newest copy at hand: 30 are about these crates,
none about these versions.
"""
USUAL = {"MIT OR Apache-2.0", "Apache-2.0 OR MIT", "MIT", "Apache-2.0"}
PLACES = {"programs": "In the programs, or run to build them", "other": "On other platforms, or in features that are off", "tests": "In tests, benchmarks and the Python package"}


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
    programs = tree("-p", "gguf-foundry", "-e", "normal,build", "--target", triple)
    anywhere = tree("-p", "gguf-foundry", "-e", "normal,build", "--target", "all", "--all-features")
    reasons = dict(re.findall(r"^\| `(.+?)` \| .*? \| (.*?) \|$", PAGE.read_text(), re.M))
    every, direct, others, licences = [], {}, {place: {} for place in PLACES}, {}
    n_crates = 0
    for package in sorted(metadata["packages"], key=lambda p: (p["name"], p["version"])):
        if package["id"] in own:
            continue
        n_crates += 1
        name, version = package["name"], package["version"]
        key = (name, "v" + version)
        place = "programs" if key in programs else "other" if key in anywhere else "tests"
        kinds = {kind for target in package["targets"] for kind in target["kind"]}
        build = [word for kind, word in [("custom-build", "script"), ("proc-macro", "macro")] if kind in kinds]
        licence = package["license"] or "file: " + (package["license_file"] or "none")
        licence = re.sub(r" ?/ ?", " OR ", licence) if not licence.startswith("file") else licence
        if licence not in USUAL:
            licences.setdefault(licence, set()).add(name)
        if "--all" in sys.argv:
            every.append(f"| `{name}` | {version} | {place} | {' '.join(build)} | {n_unsafe(package)} | {licence} |")
        if name in named:
            direct.setdefault(name, set()).add(place)
        else:
            marks = {"script": "¹", "macro": "²"}
            others[place].setdefault(name, set()).update(marks[word] for word in build)
    if "--all" in sys.argv:
        print("| crate | version | in | build | unsafe | licence |\n| --- | --- | --- | --- | --- | --- |")
        return print("\n".join(every))
    where = lambda places: min(places, key=list(PLACES).index)
    rows = [f"| `{name}` | {where(places)} | {reasons.get(name, 'TODO')} |" for name, places in direct.items()]
    text = f"{HEAD}\n{n_crates} crates. Those that a `Cargo.toml` here names:\n\n| crate | in | reason |\n| --- | --- | --- |\n" + "\n".join(rows)
    text += "\n\nThose that they bring (¹ has a build script, ² is a macro):\n"
    for place, title in PLACES.items():
        names = ", ".join(f"`{name}`{''.join(sorted(marks))}" for name, marks in others[place].items())
        text += f"\n- **{title}**: {names}"
    text += "\n\nLicences are MIT or Apache-2.0, except for:\n"
    for licence, names in sorted(licences.items()):
        text += f"\n- {licence}: {', '.join(f'`{name}`' for name in sorted(names))}"
    text += "\n"
    if "--check" in sys.argv:
        sys.exit(None if PAGE.read_text() == text else f"{PAGE} is not what the crates say: run scripts/dependencies.py")
    PAGE.write_text(text)
    print(f"{PAGE.relative_to(ROOT)}: {n_crates} crates")


main()
