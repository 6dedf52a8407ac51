"""GGUF files, read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._blocks import BlockType, type_of


class Tensor:
    """A tensor of a file: where it is, and its content when asked for."""

    def __init__(self, file: _native.File, index: int, row: tuple[str, list[int], str, int, int, int]) -> None:
        self._file, self._index = file, index
        name, shape, ty, self.part, self.offset, self.nbytes = row
        self.name: str = name
        """Name in the file."""
        self.shape: tuple[int, ...] = tuple(shape)
        """Outermost first, as NumPy has it; the file and `gguf-py` have it the other way round."""
        self.type: BlockType = type_of(ty)
        """Type of its blocks."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def n_rows(self) -> int:
        """Number of rows: the product of all dimensions but the last."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    def blocks(self, rows: slice | None = None) -> NDArray[np.uint8]:
        """The bytes as the file has them (little-endian in any case): `[..., row_bytes]`; for `rows`: `[n, row_bytes]`."""
        first, n = self._range(rows)
        blocks = self._file.blocks(self._index, first, n)
        row_bytes = self.shape[-1] // self.type.block_size * self.type.type_size
        return blocks.reshape(*(self.shape[:-1] if rows is None else (n,)), row_bytes)

    def dequantize(self, rows: slice | None = None, *, threads: int | None = None) -> NDArray[np.float32]:
        """The values in float32: the tensor's shape, or `[n, n_cols]` for `rows`, which index all dimensions but the last.

        Only what is asked for is read: `tensor.dequantize(slice(0, 10))`.
        """
        first, n = self._range(rows)
        floats = self._file.floats(self._index, first, n, threads or 0)
        return floats.reshape(self.shape if rows is None else (n, self.shape[-1]))

    def _range(self, rows: slice | None) -> tuple[int, int]:
        start, stop, step = (rows or slice(None)).indices(self.n_rows)
        if step != 1:
            raise ValueError(f"rows in a step of 1 expected, found {step}")
        return start, max(0, stop - start)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.type.name} {list(self.shape)}>"


class Model:
    """An open GGUF model: a mapping of names to tensors."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = _native.File(os.fspath(path))
        self.version, self.endian, self.alignment, self.file_bytes = self._file.layout()
        self.paths: list[os.PathLike[str]] = self._file.paths()
        """The file, or all parts of a split model."""
        self.metadata: dict[str, Any] = self._file.metadata()
        """Keys and values in file order; a text that is not UTF-8 is bytes."""
        self.metadata_types: dict[str, str] = self._file.metadata_types()
        """The type of each value: `u32`, `arr[str]`."""
        rows = self._file.tensors()
        self.tensors: dict[str, Tensor] = {row[0]: Tensor(self._file, i, row) for i, row in enumerate(rows)}
        """By name, in file order."""

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        arch = self.metadata.get("general.architecture", "?")
        return f"<Model {self.paths[0]}: {arch}, {len(self)} tensors, {len(self.metadata)} keys>"


def read(path: str | os.PathLike[str]) -> Model:
    """Opens a GGUF file, with all parts if it is one of a split model. Raises OSError, and ValueError for a broken file."""
    return Model(path)
