#!/usr/bin/env python3
"""Line coverage of the parsers by the fuzz corpus: see scripts/coverage.sh."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "target/fuzz-coverage"

# What reads foreign bytes, by group. Errors and the tables of names are not parsers.
GROUPS = {
    "GGUF": ["crates/gguf-format/src/header.rs", "crates/gguf-format/src/reader.rs", "crates/gguf-format/src/split.rs", "crates/gguf-format/src/imatrix/read.rs",
             "crates/gguf-format/src/imatrix/merge.rs", "crates/gguf-core/src/bytes.rs"],
    "containers": ["crates/gguf-checkpoint/src/**/*.rs"],
    "quantized checkpoints": ["crates/gguf-dequant/src/**/*.rs"],
    "tokenizers": ["crates/gguf-tokenizer/src/**/*.rs"],
    "texts": ["crates/gguf-conversion/src/model_card.rs", "crates/gguf-conversion/src/metadata.rs", "crates/gguf-format/src/assign.rs", "crates/gguf-verification/src/prompts/read.rs",
              "crates/gguf-verification/src/tasks/hellaswag.rs", "crates/gguf-verification/src/tasks/winogrande.rs", "crates/gguf-verification/src/tasks/multiple_choice.rs",
              "crates/gguf-verification/src/logit_file/read.rs", "crates/gguf-verification/src/chat.rs", "crates/gguf-quantization/src/options.rs"],
    "cards": ["crates/gguf-arch/src/registry.rs", "crates/gguf-arch/src/language/expr.rs", "crates/gguf-arch/src/language/names.rs",
              "crates/gguf-arch/src/read/*.rs", "crates/gguf-arch/src/read.rs", "crates/gguf-arch/src/graph/*.rs", "crates/gguf-arch/src/graph.rs"],
}
# Not parsers: errors, what writes, and the `tokenizers` library's own reader, which runs in a process of its own.
NOT = re.compile(r"error\.rs$|safetensors_writer|/rebuild|tokenizer/reference")


def run(*command, **more):
    return subprocess.run(command, cwd=ROOT, check=True, **more)


def measured(corpora):
    """The text of `cov show` for a replay of these corpora."""
    triple = re.search(r"host: (\S+)", run("rustc", "-vV", capture_output=True, text=True).stdout)[1]
    environment = dict(os.environ, FUZZ_COVERAGE="1", RUSTC_WRAPPER=str(ROOT / "fuzz/rustc.sh"),
                       CARGO_PROFILE_DEV_DEBUG="0", CARGO_PROFILE_DEV_OPT_LEVEL="1")
    run("cargo", "build", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--bin", "replay", "--target", triple,
        "--target-dir", str(TARGET), env=environment)
    program = TARGET / triple / "debug/replay"
    show = shutil.which("cov") or str(Path.home() / ".cargo/bin/cov")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        profile = Path(folder) / "fuzz.profraw"
        run(str(program), *corpora, env=dict(os.environ, LLVM_PROFILE_FILE=str(profile), TMPDIR=folder),
            stdout=sys.stderr, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (20 << 30, 20 << 30)))
        command = [show, "show", "--instr-profile", str(profile), "--object", str(program)]
        return run(*command, capture_output=True, text=True).stdout


def repository_inputs(folder):
    """What the repository holds: seeds, bad files, the peers' files (tests/it/fuzz writes them), and what was found."""
    environment = dict(os.environ, GGUF_FUZZ_CORPUS=f"{folder}/inputs")
    run("cargo", "test", "--quiet", "--test", "it", "--", "fuzz::seeds_reach", "fuzz::files_of_the_repository",
        env=environment, stdout=subprocess.DEVNULL)
    return [f"{folder}/inputs", str(ROOT / "fuzz/regressions")]


def lines_of(text):
    """By file: the lines that could run, and whether they did."""
    files, current = {}, None
    for row in text.splitlines():
        if match := re.match(r"^ *(\d+)\| *(\d*)\|", row):
            if match[2] and current is not None:
                current[int(match[1])] = int(match[2]) > 0
        elif row.strip().rstrip(":").endswith(".rs"):
            path = Path(row.strip().rstrip(":"))
            path = path.relative_to(ROOT) if path.is_absolute() and path.is_relative_to(ROOT) else path
            current = files.setdefault(str(path), {})
    return files


def main():
    words = [word for word in sys.argv[1:] if word != "--missing"]
    with tempfile.TemporaryDirectory() as folder:
        corpora = [str(Path(word).resolve()) for word in words] or repository_inputs(folder)
        files = lines_of(measured(corpora))
    if not any(files.values()):
        sys.exit("no lines were read: is `cov` (cargo install llvm_profparser) made for this compiler's profiles?")
    print("| parser | lines | reached | |\n| --- | --- | --- | --- |")
    all_lines, all_reached = 0, 0
    for group, patterns in GROUPS.items():
        paths = sorted({str(p.relative_to(ROOT)) for pattern in patterns for p in ROOT.glob(pattern)})
        paths = [path for path in paths if not NOT.search(path) and files.get(path)]
        n = sum(len(files[path]) for path in paths)
        reached = sum(sum(files[path].values()) for path in paths)
        all_lines, all_reached = all_lines + n, all_reached + reached
        print(f"| **{group}** | {n} | {reached} | **{100 * reached / max(n, 1):.1f} %** |")
        for path in paths:
            lines = files[path]
            n, reached = len(lines), sum(lines.values())
            print(f"| `{path}` | {n} | {reached} | {100 * reached / n:.1f} % |")
            if "--missing" in sys.argv and reached < n:
                print("    not reached:", " ".join(str(line) for line, was in sorted(lines.items()) if not was))
    print(f"| **all** | {all_lines} | {all_reached} | **{100 * all_reached / max(all_lines, 1):.1f} %** |")


main()
