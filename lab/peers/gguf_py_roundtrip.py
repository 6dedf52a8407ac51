#!/usr/bin/env python3
"""gguf-py reads what we write, and we read what gguf-py writes, value by value and byte by byte.

Usage: python3 lab/peers/gguf_py_roundtrip.py target/debug/gguf-inspect
Needs the Python packages gguf and numpy; the project itself does not.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFEndian, GGUFReader, GGUFValueType, GGUFWriter

SCALARS = {
    "uint8": 200, "int8": -3, "uint16": 60000, "int16": -300, "uint32": 4_000_000_000, "int32": -70000,
    "float32": 0.1, "uint64": 2**64 - 1, "int64": -(2**63), "float64": 0.1, "bool": True,
}
SHORT = {
    "uint8": "u8", "int8": "i8", "uint16": "u16", "int16": "i16", "uint32": "u32", "int32": "i32",
    "float32": "f32", "uint64": "u64", "int64": "i64", "float64": "f64", "bool": "bool",
}
ARRAYS = {
    "array.int": [1, -2, 3], "array.float": [0.5, -1.25], "array.bool": [True, False],
    "array.str": ["", "é", "three"], "array.nested": [[1, 2], [3]],
}
checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"FAILED: {what}")


def inspect(*args, code=0):
    done = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True)
    check(done.returncode == code, f"gguf-inspect {args}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def tensors(big):
    rng = np.random.default_rng(1)
    yield "f32", rng.standard_normal((3, 5)).astype(np.float32), None
    yield "f16", rng.standard_normal((2, 3, 4)).astype(np.float16), None
    yield "f64", rng.standard_normal(7), None
    for name in ("int8", "int16", "int32", "int64"):
        yield name, rng.integers(-100, 100, (2, 2), dtype=name), None
    if not big:  # gguf-py does not reverse the fields of blocks
        for ty in (T.Q4_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q6_K, T.IQ2_XXS, T.IQ4_XS, T.TQ1_0, T.MXFP4):
            elems, size = gguf.GGML_QUANT_SIZES[ty]
            yield ty.name, rng.integers(0, 256, (3, 2 * size), dtype=np.uint8), ty


def write_with_peer(path, big, alignment):
    writer = GGUFWriter(path, "llama", endianess=GGUFEndian.BIG if big else GGUFEndian.LITTLE)
    if alignment:
        writer.add_custom_alignment(alignment)
    for name, value in SCALARS.items():
        writer.add_key_value(f"scalar.{name}", value, GGUFValueType[name.upper()])
    writer.add_string("scalar.string", "text with \n and ü")
    for name, value in ARRAYS.items():
        if name != "array.nested":
            writer.add_array(name, value)
    hashes = {}
    for name, data, ty in tensors(big):
        little = data if ty is not None else data.astype(data.dtype.newbyteorder("<"))
        hashes[name] = hashlib.sha256(little.tobytes()).hexdigest()
        writer.add_tensor(name, data, raw_dtype=ty)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hashes


def peer_to_us(folder, big, alignment):
    path = folder / f"peer-{'big' if big else 'little'}-{alignment}.gguf"
    hashes = write_with_peer(path, big, alignment)
    ours = json.loads(inspect(path, "--json", "--full"))
    check(ours["endian"] == ("big" if big else "little"), "byte order")
    check(ours["alignment"] == (alignment or 32), "alignment")
    found = {entry["key"]: entry["value"] for entry in ours["metadata"]}
    for name, value in SCALARS.items():
        check(found[f"scalar.{name}"] == value, f"{path.name}: {name} {found[f'scalar.{name}']}")
    for name, value in ARRAYS.items():
        if name in found:
            check(found[name] == value, f"{path.name}: {name} {found[name]}")
    listed = [(tensor["name"], tensor["shape"]) for tensor in ours["tensors"]]
    expected = []
    for name, data, ty in tensors(big):
        shape = list(data.shape)
        if ty is not None:
            elems, size = gguf.GGML_QUANT_SIZES[ty]
            shape[-1] = shape[-1] // size * elems
        expected.append((name, shape))
    check(listed == expected, f"{path.name}: tensors {listed}")
    for entry in json.loads(inspect("hash", path, "--json"))["tensors"]:
        check(entry["sha256"] == hashes[entry["name"]], f"{path.name}: data of {entry['name']}")
    # Written again unchanged, and through both byte layouts of metadata, the bytes are the peer's.
    edited = folder / "edited.gguf"
    inspect("set", path, "extra.key=u8:1", "-o", edited)
    inspect("remove", edited, "extra.key")
    check(edited.read_bytes() == path.read_bytes(), f"{path.name}: bytes after set and remove")
    inspect("diff", path, edited)


def us_to_peer(folder):
    path = folder / "peer-little-None.gguf"
    ours = folder / "ours.gguf"
    assignments = [f"ours.{SHORT[name]}={SHORT[name]}:{str(value).lower()}" for name, value in SCALARS.items()]
    assignments += ["ours.str=str:ü = x", "ours.arr=arr:[1, -2]", 'ours.strings=arr[str]:["a", ""]']
    assignments += ["ours.u64s=arr[u64]:[18446744073709551615]", "ours.f32s=arr[f32]:[0.1, 2]"]
    inspect("set", path, *assignments, "-o", ours)
    reader = GGUFReader(ours)
    for name, value in SCALARS.items():
        read = reader.fields[f"ours.{SHORT[name]}"].contents()
        expected = float(np.float32(value)) if name == "float32" else value
        check(read == expected, f"ours.{SHORT[name]}: gguf-py reads {read}")
        check(reader.fields[f"ours.{SHORT[name]}"].types == [GGUFValueType[name.upper()]], f"type of {name}")
    check(reader.fields["ours.str"].contents() == "ü = x", "string")
    check(reader.fields["ours.arr"].contents() == [1, -2], "array of i32")
    check(reader.fields["ours.strings"].contents() == ["a", ""], "array of strings")
    check(reader.fields["ours.u64s"].contents() == [2**64 - 1], "array of u64")
    check(reader.fields["ours.f32s"].contents() == [float(np.float32(0.1)), 2.0], "array of f32")
    for tensor, (name, data, ty) in zip(reader.tensors, tensors(False), strict=True):
        check(tensor.name == name and tensor.data.tobytes() == data.tobytes(), f"tensor {name}")
    report = json.loads(inspect("split", ours, "-o", folder / "part", "--split-max-tensors", 5, "--json"))
    names = [t.name for part in report["files"] for t in GGUFReader(part).tensors]
    check(names == [t.name for t in reader.tensors], "tensors of all parts")
    inspect("merge", report["files"][-1], "-o", folder / "merged.gguf")
    check((folder / "merged.gguf").read_bytes() == ours.read_bytes(), "merged file")


def nested(folder):
    """gguf-py writes arrays of arrays although llama.cpp does not read them."""
    path = folder / "nested.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_array("array.nested", ARRAYS["array.nested"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    ours = json.loads(inspect(path, "--json", "--full"))
    check(ours["metadata"][1]["value"] == ARRAYS["array.nested"], "nested array")
    edited = folder / "nested-edited.gguf"
    inspect("set", path, "extra.key=u8:1", "-o", edited)
    inspect("remove", edited, "extra.key")
    check(edited.read_bytes() == path.read_bytes(), "nested array, bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    BINARY = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        for big in (False, True):
            for alignment in (None, 8, 256):
                peer_to_us(folder, big, alignment)
        us_to_peer(folder)
        nested(folder)
    print(f"gguf-py and we agree: {checks} checks")
