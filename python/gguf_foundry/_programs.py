"""The four programs, run from Python: a process of their own, so that a model never takes the interpreter down."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from typing import Any

Path = str | os.PathLike[str]


class ProgramError(RuntimeError):
    """A program failed."""

    def __init__(self, message: str, hints: list[str], exit_code: int) -> None:
        super().__init__("\n".join([message, *(f"hint: {hint}" for hint in hints)]))
        self.message, self.hints, self.exit_code = message, hints, exit_code
        """What is wrong; what to try; 1 failed, 2 wrong arguments, 3 the file is broken."""


class Verification(dict):  # type: ignore[type-arg]
    """The report of `gguf-verify --json` as a dictionary."""

    exit_code: int
    """0 pass, 3 a limit is missed or the file is broken, 4 a partial verdict."""

    @property
    def verdict(self) -> str:
        """`pass`, `partial` or `fail`."""
        return str(self["verdict"])


def program(name: str) -> str:
    """Where one of the programs of this package is: `program("gguf-convert")`."""
    file = name + (".exe" if sys.platform == "win32" else "")
    schemes = ["", "posix_user" if os.name == "posix" else f"{os.name}_user"]
    folders = [sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts") for scheme in schemes]
    # With `pip install --target` the scripts lie beside the package.
    folders.append(str(pathlib.Path(__file__).parent.parent / "bin"))
    for folder in folders:
        path = os.path.join(folder, file)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(file)
    if found is None:
        raise FileNotFoundError(f"{name} is not in {', '.join(folders)}, nor on the PATH: install gguf-foundry again")
    return found


def _arguments(options: dict[str, Any]) -> list[str]:
    """`allow_rounding=True` is `--allow-rounding`, `set=["a=1", "b=2"]` is `--set a=1 --set b=2`; None and False are left out."""
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.strip("_").replace("_", "-")
        if value is True:
            words.append(option)
        elif value is None or value is False:
            continue
        elif isinstance(value, (list, tuple)):
            for one in value:
                words += [option, _word(one)]
        else:
            words += [option, _word(value)]
    return words


def _word(value: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _run(name: str, words: Iterable[str], good: tuple[int, ...] = (0,)) -> tuple[dict[str, Any], int]:
    """Runs a program with `--json`. Progress and warnings go to standard error as ever."""
    done = subprocess.run([program(name), *words, "--json"], stdout=subprocess.PIPE, check=False)
    try:
        document = json.loads(done.stdout) if done.stdout.strip() else {}
    except ValueError:
        raise ProgramError(f"{name}: no JSON: {done.stdout[:200]!r}", [], done.returncode) from None
    if done.returncode == 130:
        raise KeyboardInterrupt
    error = document.get("error") if isinstance(document, dict) else None
    if error is not None or done.returncode not in good:
        told = error or {"message": f"{name} ended with {done.returncode}", "hints": []}
        raise ProgramError(told["message"], told["hints"], done.returncode)
    return document, done.returncode


def convert(
    source: Path,
    output: Path | None = None,
    *,
    type: str = "auto",
    form: str = "hf2gguf",
    **options: Any,
) -> dict[str, Any]:
    """Converts a checkpoint to GGUF, to any type in one pass, and returns what `gguf-convert --json` says.

    form: `hf2gguf`, `msmodelslim2gguf`, `flm2gguf`, or `gguf2hf` for the way back.
    options: those of the program, `chat_template="t.jinja"`, `dry_run=True`, `calibrate=["a.txt", "b.txt"]`.
    """
    target = [] if output is None else ["-o", os.fspath(output)]
    words = [form, os.fspath(source), *target, "--type", type, *_arguments(options)]
    return _run("gguf-convert", words)[0]


def quantize_file(source: Path, output: Path, type: str, **options: Any) -> dict[str, Any]:
    """Quantizes a GGUF file or a checkpoint's folder, the same bytes as llama-quantize; `imatrix="imatrix.gguf"`."""
    words = [os.fspath(source), os.fspath(output), "--type", type, *_arguments(options)]
    return _run("gguf-quantize", words)[0]


def verify(
    model: Path,
    *,
    prompts: Path | Iterable[Path] | None = None,
    baseline: Path | None = None,
    **options: Any,
) -> Verification:
    """Judges a model file and returns the report, whatever the verdict is.

    prompts: text or prompts to score. baseline: a GGUF of higher precision, or the checkpoint itself.
    options: those of the program, `structure_only=True`, `max_kld=0.05`.
    """
    if prompts is not None and not isinstance(prompts, (str, os.PathLike)):
        prompts = list(prompts)
    # Options with several values would take the model for one more: it goes first.
    words = [os.fspath(model), *_arguments({"prompts": prompts, "baseline": baseline} | options)]
    document, code = _run("gguf-verify", words, good=(0, 3, 4))
    verification = Verification(document)
    verification.exit_code = code
    return verification


def inspect(*arguments: Path, **options: Any) -> dict[str, Any]:
    """Runs `gguf-inspect`: `inspect("model.gguf")`, `inspect("diff", a, b)` (whose exit code 1 is not an error)."""
    words = [os.fspath(argument) for argument in arguments]
    good = (0, 1) if words[:1] == ["diff"] else (0,)
    return _run("gguf-inspect", [*words, *_arguments(options)], good)[0]
