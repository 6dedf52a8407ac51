#!/usr/bin/env python3
"""Five kinds of text from packages that anyone can install, each in two parts that share nothing: DIR/KIND.calibrate.* and
DIR/KIND.evaluate.*.

    texts.py DIR

prose      Debian handbook, English (Debian package debian-handbook)
languages  the same book's other chapters in German, French, Spanish, Polish, Chinese (debian-handbook)
quotations fortunes (Debian package)
code       the standard library of this Python
chat       conversations of chatterbot-corpus (PyPI), with roles, for the model's chat template

Needs apt-get and pip (nothing is installed: packages are unpacked in DIR/packages) and PyYAML.
"""

import glob
import html
import json
import os
import re
import subprocess
import sys
import zipfile

import yaml

# Bytes of each part.
CALIBRATE, EVALUATE = 96_000, 12_000


def fetch(folder):
    """Unpacks what is needed; returns the root of the Debian packages and the wheel."""
    os.makedirs(folder, exist_ok=True)
    for package in ("debian-handbook", "fortunes"):
        if not glob.glob(f"{folder}/{package}_*.deb"):
            subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "-x", glob.glob(f"{folder}/{package}_*.deb")[0], f"{folder}/root"], check=True)
    if not glob.glob(f"{folder}/chatterbot_corpus*.whl"):
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "-q", "chatterbot-corpus"], cwd=folder, check=True)
    return f"{folder}/root/usr/share", glob.glob(f"{folder}/chatterbot_corpus*.whl")[0]


def book(share, language, chapters):
    """Paragraphs of a language's chapters."""
    found = []
    for chapter in chapters:
        with open(f"{share}/doc/debian-handbook/html/{language}/{chapter}.html", encoding="utf-8") as file:
            page = file.read()
        for paragraph in re.findall(r'<div class="para">(.*?)</div>', page, re.S):
            text = html.unescape(re.sub(r"<[^>]+>", "", paragraph))
            text = re.sub(r"\s+", " ", text).strip()
            if len(text) > 80:
                found.append(text)
    return found


def spread(items, n_bytes, skip=0, step=1):
    """Every `step`-th of the items until there is enough."""
    taken, size = [], 0
    for item in items[skip::step]:
        if size >= n_bytes:
            break
        taken.append(item)
        size += len(item.encode()) + 1
    return taken


def write(folder, kind, pieces, ending="txt", between="\n\n"):
    """The first seven of each eight pieces to calibrate, the eighth to evaluate."""
    if len(pieces) < 16:
        raise SystemExit(f"{kind}: only {len(pieces)} pieces of text found")
    own = [piece for at, piece in enumerate(pieces) if at % 8 != 7]
    other = [piece for piece in pieces[7::8] if piece not in set(own)]
    for part, items, size in (("calibrate", own, CALIBRATE), ("evaluate", other, EVALUATE)):
        path = os.path.join(folder, f"{kind}.{part}.{ending}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(between.join(spread(items, size)) + "\n")
        print(f"{path}: {os.path.getsize(path)} bytes")


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder = sys.argv[1]
    share, wheel = fetch(os.path.join(folder, "packages"))
    write(folder, "prose", book(share, "en-US", ("basic-configuration", "advanced-administration", "case-study", "apt",
                                                 "conclusion", "debian-packaging", "derivative-distributions",
                                                 "existing-setup")))
    tongues = [book(share, tongue, ("network-infrastructure", "network-services", "installation", "security"))
               for tongue in ("de-DE", "fr-FR", "es-ES", "pl-PL", "zh-CN")]
    write(folder, "languages", [text for group in zip(*tongues) for text in group])
    quotations = []
    for topic in ("science", "wisdom", "work", "politics", "love", "law"):
        with open(f"{share}/games/fortunes/{topic}", encoding="utf-8") as file:
            quotations.append([text.strip() for text in file.read().split("\n%\n") if len(text) > 60])
    write(folder, "quotations", [text for group in zip(*quotations) for text in group])
    library = os.path.dirname(json.__file__) + "/.."
    code = []
    for name in ("argparse", "dataclasses", "heapq", "textwrap", "fractions", "statistics", "csv", "shlex"):
        with open(f"{library}/{name}.py", encoding="utf-8") as file:
            code += [part for part in re.split(r"\n(?=def |class |    def )", file.read()) if len(part) > 120]
    write(folder, "code", code, "py", "\n")
    chats = []
    with zipfile.ZipFile(wheel) as archive:
        for topic in ("conversations", "emotion", "trivia", "psychology", "humor", "literature", "science", "ai", "gossip",
                      "movies", "politics", "sports", "history", "computers", "food", "money", "coding"):
            talk = yaml.safe_load(archive.read(f"chatterbot_corpus/data/english/{topic}.yml"))["conversations"]
            for lines in talk:
                roles = ("user", "assistant")
                messages = [{"role": roles[at % 2], "content": str(line)} for at, line in enumerate(lines[:8])]
                chats.append(json.dumps({"messages": messages}, ensure_ascii=False))
    write(folder, "chat", list(dict.fromkeys(chats)), "jsonl", "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
