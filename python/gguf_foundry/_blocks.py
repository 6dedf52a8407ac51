"""Block quantizers on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native


@dataclass(frozen=True)
class BlockType:
    """A tensor type of GGUF."""

    name: str
    """As the format spells it: `Q4_K`."""
    id: int
    """Number in the format, `ggml_type`."""
    block_size: int
    """Elements of a block."""
    type_size: int
    """Bytes of a block."""
    can_quantize: bool
    """Whether `quantize` takes it."""
    needs_imatrix: bool
    """Whether it cannot be quantized to without an importance matrix."""

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.type_size / self.block_size


_TYPES = [BlockType(*row) for row in _native.types()]
_BY_NAME = {ty.name.lower(): ty for ty in _TYPES}
_BY_ID = {ty.id: ty for ty in _TYPES}


def types() -> list[BlockType]:
    """All types, in the order of their numbers."""
    return list(_TYPES)


def type_of(ty: Any) -> BlockType:
    """A type by name in any case, by number, or by a member of gguf-py's `GGMLQuantizationType`."""
    if isinstance(ty, BlockType):
        return ty
    found = _BY_NAME.get(ty.lower()) if isinstance(ty, str) else _BY_ID.get(int(ty))
    if found is None:
        names = ", ".join(ty.name for ty in _TYPES)
        raise ValueError(f"unknown type {ty!r}, expected a name or number of: {names}")
    return found


def quantize(
    array: ArrayLike,
    type: Any,
    *,
    imatrix: ArrayLike | None = None,
    threads: int | None = None,
    allow_nonfinite: bool = False,
) -> NDArray[np.uint8]:
    """Quantizes along the last axis; the bytes are those of llama.cpp's `ggml_quantize_chunk`.

    array: floats `[..., n_cols]`, taken as float32; n_cols is a multiple of the type's block size.
    imatrix: importance of each column, `[n_cols]`; for an array of several matrices also `[n_matrices, n_cols]`.
    threads: all processors without it; the bytes do not depend on it.

    Returns bytes `[..., n_cols / block_size * type_size]`, as `gguf.quants.quantize` does. Raises ValueError for a value
    that is no finite number (unless allowed), for values without a code, and for lengths that do not fit together.
    """
    ty = type_of(type)
    if np.ndim(array) == 0:
        raise ValueError("an array of at least one dimension expected")
    values = np.ascontiguousarray(array, dtype=np.float32)
    n_cols = values.shape[-1]
    if not allow_nonfinite:
        _check_finite(values)
    weights = None if imatrix is None else np.ascontiguousarray(imatrix, dtype=np.float32)
    n_threads = _threads(threads)
    if weights is None or weights.ndim == 1:
        blocks = _native.quantize(values.reshape(-1), ty.name, n_cols, weights, n_threads)
    else:
        n_matrices = values.shape[0] if values.ndim > 2 else 1
        if weights.shape != (n_matrices, n_cols):
            raise ValueError(f"imatrix: shape {(n_matrices, n_cols)} or {(n_cols,)} expected, found {weights.shape}")
        matrices = values.reshape(n_matrices, -1)
        parts = [_native.quantize(matrix, ty.name, n_cols, row, n_threads) for matrix, row in zip(matrices, weights)]
        blocks = np.concatenate(parts)
    return blocks.reshape(*values.shape[:-1], -1) if values.size else blocks.reshape(*values.shape[:-1], 0)


def dequantize(blocks: NDArray[np.uint8], type: Any, *, threads: int | None = None) -> NDArray[np.float32]:
    """Decodes blocks along the last axis, bit for bit as ggml does.

    blocks: bytes `[..., row_bytes]`. Returns float32 `[..., row_bytes / type_size * block_size]`.
    """
    ty = type_of(type)
    blocks = np.asarray(blocks)
    if blocks.dtype != np.uint8:
        # The bytes of 16- and 32-bit elements, as a file has them.
        blocks = np.ascontiguousarray(blocks).view(np.uint8)
    blocks = np.ascontiguousarray(blocks)
    if blocks.ndim == 0 or blocks.shape[-1] % ty.type_size:
        raise ValueError(f"{ty.name}: rows of whole blocks of {ty.type_size} bytes expected, found shape {blocks.shape}")
    floats = _native.dequantize(blocks.reshape(-1), ty.name, _threads(threads))
    return floats.reshape(*blocks.shape[:-1], blocks.shape[-1] // ty.type_size * ty.block_size)


def _threads(threads: int | None) -> int:
    if threads is None:
        return 0
    if threads < 1:
        raise ValueError(f"threads: a positive number expected, found {threads}")
    return threads


def _check_finite(values: NDArray[np.float32]) -> None:
    # A sum is finite only if all values are; the other way round it may overflow, so look then.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values)):
            return
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        index = tuple(int(i) for i in np.unravel_index(bad[0], values.shape))
        raise ValueError(f"value at {index} is {values[index]}; `allow_nonfinite=True` quantizes it all the same")
