"""The four programs, run from Python: a process of their own, so that a model never takes the interpreter down."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from ._progress import Progress

Path = str | os.PathLike[str]


class ProgramError(RuntimeError):
    """A program failed."""

    def __init__(self, message: str, hints: list[str], exit_code: int) -> None:
        super().__init__("\n".join([message, *(f"hint: {hint}" for hint in hints)]))
        self.message, self.hints, self.exit_code = message, hints, exit_code
        """What is wrong; what to try; 1 failed, 2 wrong arguments, 3 the file is broken."""


class GgufWarning(UserWarning):
    """A warning of a program, as `warnings.catch_warnings` and its like take it."""


class Verification(dict):  # type: ignore[type-arg]
    """The report of `gguf-verify --json` as a dictionary."""

    exit_code: int
    """0 pass, 3 a limit is missed or the file is broken, 4 a partial verdict."""

    @property
    def verdict(self) -> str:
        """`pass`, `partial` or `fail`; of several files the worst."""
        return str(self["verdict"])

    @property
    def models(self) -> list[Verification]:
        """The reports of the files, in their order."""
        return [Verification(model) for model in self["models"]]


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
    """Runs a program with `--json`. Progress is shown, as a bar in notebooks; warnings become those of Python."""
    # Standard output goes to a file: a document of any size, while standard error is read line by line.
    with tempfile.TemporaryFile() as output:
        command = [program(name), *words, "--json"]
        with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace") as running:
            told = _listen(running)
        output.seek(0)
        printed, code = output.read(), running.returncode
    for text in told:
        warnings.warn(text, GgufWarning, stacklevel=3)
    try:
        document = json.loads(printed) if printed.strip() else {}
    except ValueError:
        raise ProgramError(f"{name}: no JSON: {printed[:200]!r}", [], code) from None
    if code == 130:
        raise KeyboardInterrupt
    error = document.get("error") if isinstance(document, dict) else None
    if error is not None or code not in good:
        failed = error or {"message": f"{name} ended with {code}", "hints": []}
        raise ProgramError(failed["message"], failed["hints"], code)
    return document, code


def _listen(running: subprocess.Popen[str]) -> list[str]:
    """Shows a program's progress until it ends; returns its warnings. What failed is in its document."""
    told: list[str] = []
    assert running.stderr is not None
    with Progress() as progress:
        for line in running.stderr:
            text = line.rstrip()
            if text.startswith("warning: "):
                told.append(text.removeprefix("warning: "))
            elif text and not text.startswith(("error: ", "hint: ")):
                progress.show(text)
    return told


def convert(
    source: Path,
    output: Path | None = None,
    *,
    type: str | None = None,
    form: str = "hf2gguf",
    **options: Any,
) -> dict[str, Any]:
    """Converts a checkpoint to GGUF, to any type in one pass, and returns what `gguf-convert --json` says.

    type: of the file; as the program chooses where it is not said. form: `hf2gguf`, `msmodelslim2gguf`, `flm2gguf`, or `gguf2hf` for the
    way back.
    options: those of the program, `chat_template="t.jinja"`, `dry_run=True`, `calibrate=["a.txt", "b.txt"]`.
    """
    target = [] if output is None else ["-o", os.fspath(output)]
    types = [] if type is None else ["--type", type]
    words = [form, os.fspath(source), *target, *types, *_arguments(options)]
    return _run("gguf-convert", words)[0]


def quantize_file(source: Path, output: Path, type: str | None = None, **options: Any) -> dict[str, Any]:
    """Quantizes a GGUF file or a checkpoint's folder, the same bytes as llama-quantize; `imatrix="imatrix.gguf"`.

    type: of the file; without one, an option chooses the types: `like="other.gguf"`, `target_size="3.9G"`.
    """
    types = [] if type is None else ["--type", type]
    words = [os.fspath(source), os.fspath(output), *types, *_arguments(options)]
    return _run("gguf-quantize", words)[0]


def ladder(
    source: Path,
    output: Path,
    *,
    types: str | Iterable[str] | None = None,
    preset: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Writes many types of a model from one reading of it into the folder `output`, and returns the content of its `ladder.json`.

    source: a GGUF file, a checkpoint's folder, or a checkpoint on a server. types: names, `["q8_0", "q4_k_m"]`, in place of a preset:
    `small`, `standard` or `full`.
    options: those of the program, `imatrix="imatrix.gguf"`, `verify="text.txt"`, `dry_run=True`. With `part="2/8"` the files of one of
    eight machines are written, and their record is returned.
    """
    if types is not None and not isinstance(types, str):
        types = ",".join(types)
    words = ["ladder", os.fspath(source), "-o", os.fspath(output), *_arguments({"types": types, "preset": preset} | options)]
    return _run("gguf-quantize", words)[0]


def recipe(file: Path, source: Path, output: Path | None = None, **options: Any) -> dict[str, Any]:
    """Finds out how a quantized GGUF file was made of `source`, and returns the report, whether the source explains all of it or not.

    output: the recipe to write, from which `rebuild` makes the file again.
    options: those of the program, `imatrix="imatrix.gguf"`.
    """
    target = [] if output is None else ["-o", os.fspath(output)]
    words = ["recipe", os.fspath(file), "--source", os.fspath(source), *target, *_arguments(options)]
    return _run("gguf-quantize", words, good=(0, 1))[0]


def rebuild(recipe: Path, source: Path, output: Path, **options: Any) -> dict[str, Any]:
    """Makes the file of a recipe again, byte for byte, from the source that it was made of; `imatrix="imatrix.gguf"`."""
    words = ["rebuild", os.fspath(recipe), "--source", os.fspath(source), "-o", os.fspath(output), *_arguments(options)]
    return _run("gguf-quantize", words)[0]


def verify(
    model: Path | Iterable[Path],
    *,
    prompts: Path | Iterable[Path] | None = None,
    baseline: Path | None = None,
    **options: Any,
) -> Verification:
    """Judges a model file, or several beside one baseline, and returns the report, whatever the verdict is.

    prompts: text or prompts to score. baseline: a GGUF of higher precision, or the checkpoint itself.
    options: those of the program, `structure_only=True`, `max_kld=0.05`.
    """
    if prompts is not None and not isinstance(prompts, (str, os.PathLike)):
        prompts = list(prompts)
    models = [model] if isinstance(model, (str, os.PathLike)) else list(model)
    # Options with several values would take the model for one more: it goes first.
    words = [*(os.fspath(one) for one in models), *_arguments({"prompts": prompts, "baseline": baseline} | options)]
    document, code = _run("gguf-verify", words, good=(0, 3, 4))
    verification = Verification(document)
    verification.exit_code = code
    return verification


def inspect(*arguments: Path, **options: Any) -> dict[str, Any]:
    """Runs `gguf-inspect`: `inspect("model.gguf")`, `inspect("diff", a, b)` (whose exit code 1 is not an error)."""
    words = [os.fspath(argument) for argument in arguments]
    good = (0, 1) if words[:1] == ["diff"] else (0,)
    return _run("gguf-inspect", [*words, *_arguments(options)], good)[0]


def set_metadata(file: Path, keys: Mapping[str, Any], output: Path | None = None, **options: Any) -> dict[str, Any]:
    """Sets metadata keys of a GGUF file, and removes those whose value is None; the file itself, or a copy at `output`.

    Numbers keep the type that the key has; a new key takes the one that is known for it. `KEY=TYPE:VALUE` of `gguf-inspect set` says more:
    `gf.inspect("set", file, "a.b=u64:7")`.
    """
    target = [] if output is None else ["-o", os.fspath(output)]
    given = {key: value for key, value in keys.items() if value is not None}
    gone = [key for key, value in keys.items() if value is None]
    report: dict[str, Any] = {}
    if given:
        words = [f"{key}={_assigned(value)}" for key, value in given.items()]
        report = _run("gguf-inspect", ["set", os.fspath(file), *words, *target, *_arguments(options)])[0]
    if gone:
        # What was written is edited further.
        edited, rest = (output, []) if given and output is not None else (file, target)
        report = _run("gguf-inspect", ["remove", os.fspath(edited), *gone, *rest, *_arguments(options)])[0]
    return report


def _assigned(value: Any) -> str:
    """A value as `gguf-inspect set` takes it."""
    if isinstance(value, str):
        # A sign of a file in front is written twice.
        return "str:" + ("@" + value if value.startswith("@") else value)
    return json.dumps(value)


def set_template(file: Path, template: str, output: Path | None = None, **options: Any) -> dict[str, Any]:
    """Puts a chat template, a text in Jinja, in the place of those of a GGUF file; the file itself, or a copy at `output`."""
    target = [] if output is None else ["-o", os.fspath(output)]
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "chat.jinja")
        with open(source, "w", encoding="utf-8", newline="") as text:
            text.write(template)
        words = ["template", os.fspath(file), "--set", source, *target, *_arguments(options)]
        return _run("gguf-inspect", words)[0]
