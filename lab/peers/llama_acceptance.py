#!/usr/bin/env python3
"""Damages small GGUF files at random and compares which of them llama.cpp and we open.

Usage: python3 lab/peers/llama_acceptance.py GGUF_INSPECT LLAMA_GGUF_SPLIT [N]
Every file that llama-gguf-split opens must open here, but for two kinds: tensor data beyond the end of the file
(which llama.cpp refuses when it loads the model, and gguf-split does not look at), and names that are not UTF-8.
"""

import collections
import random
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

EXPECTED = ("data end beyond the file", "is not UTF-8")


def text(value):
    return struct.pack("<Q", len(value)) + value


def valid():
    """A small valid file and the length of its header."""
    out = b"GGUF" + struct.pack("<IQQ", 3, 3, 5)
    out += text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    out += text(b"general.alignment") + struct.pack("<II", 4, 32)
    out += text(b"k.bool") + struct.pack("<I", 7) + b"\1"
    out += text(b"k.strings") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc")
    out += text(b"k.numbers") + struct.pack("<IIQ", 9, 4, 3) + struct.pack("<III", 1, 2, 3)
    out += text(b"w1") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    out += text(b"w2") + struct.pack("<IQIQ", 1, 32, 8, 32)
    out += text(b"w3") + struct.pack("<IQIQ", 1, 5, 24, 96)
    return out + b"\0" * (-len(out) % 32) + bytes(128), len(out)


def damaged(rng):
    data, header = valid()
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(header)
        kind = rng.random()
        if kind < 0.4:
            data[at] = rng.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 16, 31, 32, 33, 64, 127, 128, 255])
        elif kind < 0.8:
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 0.9:
            data = data[: max(header, rng.randrange(len(data)))]
        else:
            struct.pack_into("<Q", data, min(at, len(data) - 8), rng.choice([0, 1, 2**63, 2**64 - 1, 64, 96]))
    return bytes(data)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    inspect, peer = (str(Path(path).resolve()) for path in sys.argv[1:3])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    rng = random.Random(7)
    seen = collections.Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.gguf"
        for index in range(count):
            path.write_bytes(damaged(rng))
            args = [peer, "--split", "--dry-run", "--split-max-tensors", "1", path, path.with_name("out")]
            theirs = subprocess.run(args, capture_output=True, check=False)
            ours = subprocess.run([inspect, path], capture_output=True, text=True, check=False)
            if ours.returncode not in (0, 3):
                wrong.append(f"file {index}: exit code {ours.returncode}: {ours.stderr}")
            pair = {0: "they open", -6: "they crash"}.get(theirs.returncode, "they refuse")
            pair += ", we open" if ours.returncode == 0 else ", we refuse"
            if theirs.returncode == 0 and ours.returncode != 0:
                reason = next((reason for reason in EXPECTED if reason in ours.stderr), None)
                if reason is None:
                    wrong.append(f"file {index}: {ours.stderr}")
                pair += f": {reason}"
            seen[pair] += 1
    for pair, n in sorted(seen.items()):
        print(f"{n:6} {pair}")
    if wrong:
        sys.exit("FAILED\n" + re.sub(r"/\S*/", "", "".join(wrong)))


if __name__ == "__main__":
    main()
