"""K-quant tensors of a GGUF file as scales and integer codes, and back: what a solver in a laboratory needs of the format.

`read(path)` gives keys, floats and Blocks; `write(path, source, tensors)` the same file with other codes, scales and floats.
"""

import gguf
import numpy as np

K = 256


def bits(block, at, size, shifts, mask):
    """The integers of `size` bytes from `at`, one run of all bytes for each shift."""
    raw = block[:, at:at + size]
    return np.concatenate([(raw >> shift) & mask for shift in shifts], axis=1)


def by_halves(block, at, shifts, mask):
    """The same for 32 bytes of each half of a super-block in turn."""
    return np.concatenate([bits(block, at + half, 32, shifts, mask) for half in (0, 32)], axis=1)


def six_bits(block, at):
    """The 8 scales and 8 minima of Q4_K and Q5_K."""
    raw = block[:, at:at + 12]
    scales, minima, high = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    return (np.concatenate([scales & 63, (high & 15) | (scales >> 6) << 4], axis=1),
            np.concatenate([minima & 63, (high >> 4) | (minima >> 6) << 4], axis=1))


def put(block, at, codes, shifts, size):
    """The inverse of `bits`."""
    raw = np.zeros((len(block), size), np.uint8)
    for run, shift in enumerate(shifts):
        raw |= codes[:, run * size:(run + 1) * size].astype(np.uint8) << shift
    block[:, at:at + size] = raw


class Blocks:
    """A tensor in a K type: weight = d · scale · code − dmin · minimum."""

    # Bytes of a block; where d and dmin are; columns that share a scale; smallest and largest code.
    LAYOUTS = {"Q2_K": (84, 80, 82, 16, 0, 3), "Q3_K": (110, 108, None, 16, -4, 3), "Q4_K": (144, 0, 2, 32, 0, 15),
               "Q5_K": (176, 0, 2, 32, 0, 31), "Q6_K": (210, 208, None, 16, -32, 31)}

    def __init__(self, kind, raw):
        self.kind, self.shape_of_bytes = kind, raw.shape
        size, d, dmin, self.group, self.low, self.high = self.LAYOUTS[kind]
        self.raw = raw.reshape(-1, size).copy()
        self.rows = raw.shape[0]
        self.d = self.raw[:, d:d + 2].copy().view(np.float16)[:, 0].astype(np.float32)
        self.dmin = None if dmin is None else self.raw[:, dmin:dmin + 2].copy().view(np.float16)[:, 0].astype(np.float32)
        scales, minima, codes = getattr(self, "_" + kind.lower())(self.raw)
        self.scales = scales.astype(np.float32)
        self.minima = None if minima is None else minima.astype(np.float32)
        self.codes = codes.astype(np.int16)

    @staticmethod
    def _q2_k(raw):
        return raw[:, :16] & 15, raw[:, :16] >> 4, by_halves(raw, 16, (0, 2, 4, 6), 3)

    @staticmethod
    def _q3_k(raw):
        low = np.concatenate([raw[:, 96:104] & 15, raw[:, 96:104] >> 4], axis=1)
        high = bits(raw, 104, 4, (0, 2, 4, 6), 3)
        codes = by_halves(raw, 32, (0, 2, 4, 6), 3) | bits(raw, 0, 32, range(8), 1) << 2
        return (low | high << 4).astype(np.int16) - 32, None, codes.astype(np.int16) - 4

    @staticmethod
    def _q4_k(raw):
        codes = [bits(raw, 16 + 32 * part, 32, (0, 4), 15) for part in range(4)]
        return *six_bits(raw, 4), np.concatenate(codes, axis=1)

    @staticmethod
    def _q5_k(raw):
        codes = [bits(raw, 48 + 32 * part, 32, (0, 4), 15) for part in range(4)]
        return *six_bits(raw, 4), np.concatenate(codes, axis=1) | bits(raw, 16, 32, range(8), 1) << 4

    @staticmethod
    def _q6_k(raw):
        low = [bits(raw, 64 * half, 64, (0, 4), 15) for half in (0, 1)]
        codes = np.concatenate(low, axis=1) | by_halves(raw, 128, (0, 2, 4, 6), 3) << 4
        return raw[:, 192:208].view(np.int8), None, codes.astype(np.int16) - 32

    def bytes(self):
        """The tensor with the present codes, d and dmin; sub-scales and minima are those that were read."""
        _, d, dmin, *_ = self.LAYOUTS[self.kind]
        raw = self.raw.copy()
        for at, values in ((d, self.d), (dmin, self.dmin)):
            if at is not None:
                raw[:, at:at + 2] = values.astype(np.float16)[:, None].view(np.uint8)
        codes = (self.codes - self.low).astype(np.uint8)
        if self.kind in ("Q4_K", "Q5_K"):
            for part in range(4):
                put(raw, (16 if self.kind == "Q4_K" else 48) + 32 * part, codes[:, 64 * part:64 * part + 64] & 15, (0, 4), 32)
            if self.kind == "Q5_K":
                put(raw, 16, codes >> 4, range(8), 32)
            return raw.reshape(self.shape_of_bytes)
        for half in (0, 1):
            part = codes[:, 128 * half:128 * half + 128]
            if self.kind == "Q6_K":
                put(raw, 64 * half, part & 15, (0, 4), 64)
                put(raw, 128 + 32 * half, part >> 4, (0, 2, 4, 6), 32)
            else:
                put(raw, (16 if self.kind == "Q2_K" else 32) + 32 * half, part & 3, (0, 2, 4, 6), 32)
        if self.kind == "Q3_K":
            put(raw, 0, codes >> 2, range(8), 32)
        return raw.reshape(self.shape_of_bytes)

    def weights(self):
        found = np.repeat(self.d[:, None] * self.scales, self.group, axis=1) * self.codes
        if self.minima is not None:
            found -= np.repeat(self.dmin[:, None] * self.minima, self.group, axis=1)
        return found.reshape(self.rows, -1)


def read(path):
    """Tensors by name: arrays of floats, and Blocks."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        kind = tensor.tensor_type.name
        if kind in Blocks.LAYOUTS:
            found[tensor.name] = Blocks(kind, tensor.data)
            difference = np.abs(found[tensor.name].weights() - gguf.dequantize(tensor.data, tensor.tensor_type)).max()
            assert difference < 1e-6, (tensor.name, difference)
            assert (found[tensor.name].bytes() == tensor.data).all(), tensor.name
        else:
            found[tensor.name] = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    return found


def write(path, source, tensors):
    """`source` with the tensors' data, in place: the header stays."""
    with open(source, "rb") as file:
        whole = bytearray(file.read())
    for tensor in gguf.GGUFReader(source).tensors:
        value = tensors[tensor.name]
        if isinstance(value, Blocks):
            data = value.bytes().tobytes()
        elif tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            data = np.ascontiguousarray(value, np.float32).tobytes()
        else:
            continue
        assert len(data) == tensor.n_bytes, tensor.name
        whole[tensor.data_offset:tensor.data_offset + len(data)] = data
    with open(path, "wb") as file:
        file.write(whole)
