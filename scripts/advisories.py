#!/usr/bin/env python3
"""Compares Cargo.lock with the advisories of RustSec, for where `cargo audit` and `cargo deny` are not installed: which
crates have an advisory that neither the patched nor the unaffected versions answer.

Usage: scripts/advisories.py DATABASE [LOCK]     (a clone of github.com/RustSec/advisory-db, bare or not)
Ends with 1 if a crate has an advisory that is no mere note (unmaintained, unsound without a patch: shown as notes).
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def number(version):
    """A version as what sorts like it: a pre-release comes before its release."""
    core, _, pre = version.split("+")[0].partition("-")
    parts = [int(part) for part in core.split(".")]
    rest = tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in pre.split(".")) if pre else ()
    return tuple((parts + [0, 0])[:3]), not pre, rest


def caret_end(parts):
    """The first version that `^` leaves out."""
    for at, part in enumerate(parts):
        if part or at == len(parts) - 1:
            return parts[:at] + [part + 1]
    return parts


def matches(version, requirement):
    """Whether a version meets a requirement as Cargo writes it: `>= 1.2, < 2`, `^0.3`, `~1.2`, `= 1.0.0`."""
    found = number(version)
    for condition in requirement.split(","):
        sign, text = re.fullmatch(r"\s*([<>=^~]*)\s*(\S+)\s*", condition).groups()
        if text == "*":
            continue
        wanted = number(text)
        parts = [int(part) for part in text.split("-")[0].split(".")]
        if sign in ("^", ""):
            end = caret_end(parts)
            good = wanted <= found < number(".".join(map(str, end)))
        elif sign == "~":
            end = parts[:2] if len(parts) > 1 else parts[:1]
            good = wanted <= found < number(".".join(map(str, end[:-1] + [end[-1] + 1])))
        else:
            good = {">=": found >= wanted, ">": found > wanted, "<": found < wanted, "<=": found <= wanted,
                    "=": found == wanted}[sign]
        if not good:
            return False
    return True


def git(database, *words):
    return subprocess.run(["git", "-C", database, *words], check=True, capture_output=True, text=True).stdout


def advisories(database, names):
    """The advisories of these crates."""
    files = git(database, "ls-tree", "-r", "--name-only", "HEAD", "crates").split()
    for path in files:
        if path.split("/")[1] in names and path.endswith(".md"):
            text = git(database, "show", f"HEAD:{path}")
            yield tomllib.loads(re.search(r"```toml\n(.*?)```", text, re.S)[1])


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    database = sys.argv[1]
    lock = tomllib.loads(Path(sys.argv[2] if len(sys.argv) == 3 else ROOT / "Cargo.lock").read_text())
    packages = [(row["name"], row["version"]) for row in lock["package"] if "source" in row]
    print(f"advisories until {git(database, 'log', '-1', '--format=%cs').strip()}, {len(packages)} crates")
    n_read = n_bad = 0
    for entry in advisories(database, {name for name, _ in packages}):
        facts, versions = entry["advisory"], entry.get("versions", {})
        n_read += 1
        if "withdrawn" in facts:
            continue
        good = versions.get("patched", []) + versions.get("unaffected", [])
        for name, version in packages:
            if name != facts["package"] or any(matches(version, requirement) for requirement in good):
                continue
            note = facts.get("informational")
            n_bad += note is None
            print(f"{facts['id']}: {name} {version}{f' ({note})' if note else ''}")
    print(f"{n_read} advisories of these crates, {n_bad} that apply")
    sys.exit(1 if n_bad else 0)


if __name__ == "__main__":
    main()
