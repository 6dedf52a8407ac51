#!/usr/bin/env python3
"""gguf-convert endian, gguf-inspect dump, template and set --special beside the scripts of gguf-py that do the same.

Usage: python3 lab/peers/metadata_tools.py BIN GGUF_PY [MODEL..]
BIN is the folder of our programs, GGUF_PY the folder gguf-py of a llama.cpp source tree. Files are made here, of every type that
the scripts know; further models are dumped and edited, too. Needs numpy and tqdm; the project itself does not.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

if len(sys.argv) < 3:
    sys.exit(__doc__)
BIN, GGUF_PY = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(GGUF_PY))

import gguf  # noqa: E402
import numpy as np  # noqa: E402
from gguf import GGMLQuantizationType as T  # noqa: E402

# What gguf_convert_endian.py can turn round.
TURNED = [T.F32, T.F16, T.BF16, T.Q1_0, T.Q4_0, T.Q8_0, T.Q4_K, T.Q6_K, T.TQ2_0, T.MXFP4, T.NVFP4]
checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"FAILED: {what}")


def ours(program, *args, code=0):
    done = subprocess.run([BIN / program, *map(str, args), "--no-sync"], capture_output=True, text=True)
    check(done.returncode == code, f"{program} {args}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def theirs(script, *args, text=""):
    path = GGUF_PY / "gguf/scripts" / f"{script}.py"
    done = subprocess.run([sys.executable, path, *map(str, args)], capture_output=True, text=True, input=text)
    check(done.returncode == 0, f"{script} {args}: {done.stderr}")
    return done.stdout


def write(path, types):
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("näme `|` of\n two lines")
    writer.add_block_count(2)
    writer.add_float32("a.float", 0.1)
    writer.add_float64("a.double", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_uint64("a.big", 2**63 + 1)
    writer.add_int8("a.small", -3)
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 0.1])
    writer.add_array("a.bools", [True, False])
    writer.add_array("a.nested", [[1, 2], [3]])
    writer.add_token_list(["<s>", "</s>", "<|im_end|>", "ü", "a"])
    writer.add_chat_template("old")
    for at, ty in enumerate(types):
        elems, size = gguf.GGML_QUANT_SIZES[ty]
        name = f"blk.{at % 2}.{ty.name.lower()}.weight"
        if ty == T.F32:
            writer.add_tensor(name, rng.standard_normal((3, 64)).astype(np.float32))
        elif ty == T.F16:
            writer.add_tensor(name, rng.standard_normal((3, 64)).astype(np.float16))
        else:
            data = rng.integers(0, 256, (3, 2 * size), dtype=np.uint8)
            writer.add_tensor(name, data, raw_dtype=ty)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def endian(folder):
    """The same bytes for each type alone, in both directions."""
    for ty in TURNED:
        own, other, back = (folder / f"{ty.name}.{end}.gguf" for end in ("little", "peer", "back"))
        write(own, [ty])
        other.write_bytes(own.read_bytes())
        theirs("gguf_convert_endian", other, "big", text="YES\n")
        big = folder / f"{ty.name}.big.gguf"
        ours("gguf-convert", "endian", own, "-o", big, "--to", "big")
        check(big.read_bytes() == other.read_bytes(), f"{ty.name}: other bytes than gguf_convert_endian.py")
        ours("gguf-convert", "endian", other, "-o", back)
        check(back.read_bytes() == own.read_bytes(), f"{ty.name}: not the file itself after two turns")
        theirs("gguf_convert_endian", other, "little", text="YES\n")
        check(other.read_bytes() == own.read_bytes(), f"{ty.name}: the script itself")
    return len(TURNED)


def dump(models):
    for path in models:
        for options in ([], ["--json-array"], ["--no-tensors"]):
            want = json.loads(theirs("gguf_dump", path, "--json", *options))
            found = json.loads(ours("gguf-inspect", "dump", path, "--json", *options))
            check(found == want, f"{path} {options}: JSON differs")
            check(list(found["metadata"]) == list(want["metadata"]), f"{path}: order of keys")
            check(list(found["tensors"]) == list(want["tensors"]), f"{path}: order of tensors")
        for option in ("--data-offset", "--data-alignment"):
            want, found = theirs("gguf_dump", path, option), ours("gguf-inspect", "dump", path, option)
            check(found == want, f"{path} {option}: {found} for {want}")
        markdown = ours("gguf-inspect", "dump", path)
        for tensor in want_tensors(path):
            check(markdown.count(tensor) >= 1, f"{path}: {tensor} is not in the Markdown")


def want_tensors(path):
    for tensor in gguf.GGUFReader(path).tensors:
        yield f" {tensor.n_elements:,} | ".replace(",", " ")
        yield f" {tensor.data_offset} | {tensor.n_bytes} |"


def keys(path):
    reader = gguf.GGUFReader(path)
    # gguf_new_metadata.py makes one array of an array of arrays: its own is left out.
    fields = {
        name: (field.types, field.contents())
        for name, field in reader.fields.items()
        if name[:5] != "GGUF." and name != "a.nested"
    }
    return fields, [(tensor.name, tensor.data.tobytes()) for tensor in reader.tensors]


def edits(folder, models):
    plain, config = folder / "chat.jinja", folder / "tokenizer_config.json"
    plain.write_text("{% for m in messages %}{{ m.content }}é{% endfor %}\n")
    config.write_text(json.dumps({"chat_template": [
        {"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"},
    ]}))
    n = 0
    for path in models:
        tokens = gguf.GGUFReader(path).get_field("tokenizer.ggml.tokens")
        token = tokens.contents()[2] if tokens else None
        jobs = [
            (["--chat-template-file", plain], ["template", path, "--set", plain]),
            (["--chat-template-config", config], ["template", path, "--set", config]),
            (["--general-name", "New"], ["set", path, "general.name=New"]),
        ]
        if token:
            jobs += [
                (["--special-token", "eos", token], ["set", path, "--special", f"eos={token}"]),
                (["--special-token-by-id", "eot", "1"], ["set", path, "tokenizer.ggml.eot_token_id=1"]),
            ]
        for options, args in jobs:
            peer, own = folder / "peer.gguf", folder / "own.gguf"
            theirs("gguf_new_metadata", path, peer, *options, "--force")
            ours("gguf-inspect", *args, "-o", own)
            check(keys(own) == keys(peer), f"{path} {options}: other keys or tensors than gguf_new_metadata.py")
            n += 1
    return n


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        n_types = endian(folder)
        every = folder / "every.gguf"
        write(every, TURNED)
        big = folder / "every.big.gguf"
        ours("gguf-convert", "endian", every, "-o", big)
        models = [every, *map(Path, sys.argv[3:])]
        dump([*models, big])
        n_edits = edits(folder, models)
    print(f"{n_types} types turned round, {len(models) + 1} files dumped, {n_edits} edits, {checks} checks: equal")


main()
