"""Progress of a program: a bar in notebooks where tqdm is installed, else its own lines on standard error."""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Any


def _bar() -> Any | None:
    """A bar of a notebook; None elsewhere, and where there is no tqdm."""
    if "ipykernel" not in sys.modules:
        return None
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return None
    return tqdm(total=100, unit="%", bar_format="{desc} {bar} {n:.0f} %")


class Progress:
    """Shows a program's lines of progress."""

    def __enter__(self) -> Progress:
        self._bar = _bar()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, line: str) -> None:
        """Shows a line; the share in it, if it has one, moves the bar."""
        if self._bar is None:
            print(line, file=sys.stderr)
            return
        share = re.search(r"(\d+(?:\.\d+)?) %", line)
        self._bar.set_description_str(line if share is None else line[: share.start()].rstrip(" ,;"))
        if share is not None:
            self._bar.n = float(share.group(1))
        self._bar.refresh()
