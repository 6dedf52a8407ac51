#!/usr/bin/env python3
"""PyTorch checkpoints: whole GGUF files beside llama.cpp's converter, and the fixtures of the tests.

Usage: torch_files.py compare LLAMA_CPP_DIR OURS CHECKPOINT...   (needs torch, safetensors, transformers, gguf)
       torch_files.py fixtures LLAMA_CPP_DIR FIXTURES_DIR

`compare` saves each safetensors checkpoint (a directory) again with torch.save, its tensors in another order: in the
zip container, in the older one (which the peer cannot read: it gets the zip container of the same tensors), in two
shards with an index, with transposed weights that share a storage, and (where the head is tied) with `lm_head.weight` as
a second name of the embedding, as state dictionaries have it. It
converts each with the peer and with OURS (the program gguf-convert) and compares the files' checksums. The vocabulary
is left out on both sides.

`fixtures` writes FIXTURES_DIR/<case>/: a small random Llama, and a MANIFEST.toml with checksums of its files and of the
GGUF files that the peer makes of it.
"""
import contextlib
import io
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import converter
from timing import sha256

COMMAND = sys.argv[1]
converter.use(Path(sys.argv[2]))
logging.disable(logging.WARNING)


def peer(folder, outtype, out):
    """What the peer writes, without a vocabulary."""
    with contextlib.redirect_stderr(io.StringIO()):
        converter.convert(folder, outtype, out)
    return sha256(out)


def transposed(tensors):
    """The same values, matrices as transposed views, all tensors of a type in one storage."""
    result, by_type = {}, {}
    for name, tensor in tensors.items():
        by_type.setdefault(tensor.dtype, []).append(name)
    for names in by_type.values():
        flat = [tensors[n].t().contiguous().flatten() if tensors[n].dim() == 2 else tensors[n].flatten() for n in names]
        pool, at = torch.cat(flat), 0
        for name, part in zip(names, flat):
            shape = tensors[name].shape
            view = pool[at:at + part.numel()]
            at += part.numel()
            result[name] = view.view(shape[1], shape[0]).t() if len(shape) == 2 else view.view(shape)
    return {name: result[name] for name in tensors}


def save(tensors, folder, form):
    """Writes a state dict in one of the forms."""
    names = list(tensors)
    if form == "sharded":
        half, index = len(names) // 2, {}
        for i, part in enumerate([names[:half], names[half:]], 1):
            file = f"pytorch_model-{i:05}-of-00002.bin"
            torch.save({name: tensors[name].clone() for name in part}, folder / file)
            index |= dict.fromkeys(part, file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
        return
    if form == "views":
        tensors = transposed(tensors)
    if form == "tied":
        tensors = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=form != "legacy")


FORMS = ["zip", "legacy", "sharded", "views"]


def compare(ours, folders):
    import safetensors.torch

    equal = different = skipped = 0
    for folder in folders:
        files = sorted(folder.glob("model*.safetensors"))
        if not files:
            continue
        tensors = {}
        for file in files:
            tensors |= safetensors.torch.load_file(file)
        names = list(tensors)
        random.Random(7).shuffle(names)
        tensors = {name: tensors[name] for name in names}
        tied = "lm_head.weight" not in tensors and "model.embed_tokens.weight" in tensors
        for form in FORMS + ["tied"] * tied:
            with tempfile.TemporaryDirectory() as temp:
                hf = Path(temp) / "hf"
                shutil.copytree(folder, hf, ignore=shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json"))
                save(tensors, hf, form)
                for outtype in ["f32", "f16"] if form == "zip" else ["f16"]:
                    label = f"{folder.parent.name} {form} {outtype}"
                    try:
                        if form == "legacy":
                            save(tensors, hf, "zip")
                        want = peer(hf, outtype, Path(temp) / "peer.gguf")
                        save(tensors, hf, form)
                    except Exception as error:  # the peer's own limits are not the subject
                        print(f"{label}: the peer fails: {error}")
                        skipped += 1
                        continue
                    out = Path(temp) / "ours.gguf"
                    command = [ours, "--quiet", "--no-sync", "hf2gguf", hf, "--no-tokenizer", "--type", outtype, "-o", out]
                    run = subprocess.run(command, capture_output=True, text=True)
                    have = sha256(out) if run.returncode == 0 else run.stderr.strip()
                    if have == want:
                        equal += 1
                    else:
                        different += 1
                        print(f"{label}: differs: {have}")
    print(f"{equal} files are equal, {different} differ, {skipped} the peer could not make")
    sys.exit(different != 0)


def fixtures(target):
    hidden, ff, vocab = 32, 48, 40
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": ff,
              "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocab,
              "rms_norm_eps": 1e-05, "max_position_embeddings": 64, "tie_word_embeddings": False}
    layer = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 2, hidden),
             "self_attn.v_proj": (hidden // 2, hidden), "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (ff, hidden),
             "mlp.up_proj": (ff, hidden), "mlp.down_proj": (hidden, ff), "input_layernorm": (hidden,),
             "post_attention_layernorm": (hidden,)}
    shapes = {"lm_head": (vocab, hidden), **{f"model.layers.0.{name}": shape for name, shape in layer.items()},
              "model.norm": (hidden,), "model.embed_tokens": (vocab, hidden)}
    generator = torch.Generator().manual_seed(7)
    types = {"zip": torch.bfloat16, "legacy": torch.float16, "sharded": torch.float32, "views": torch.float16}
    for form in FORMS:
        tensors = {name + ".weight": (torch.randn(shape, generator=generator) * 0.05).to(types[form])
                   for name, shape in shapes.items()}
        folder = target / form
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save(tensors, folder, form)
        lines = [f'origin = "random weights (seed 7), written by torch.save of PyTorch {torch.__version__}"', 'licence = "CC0-1.0"',
                 'script = "lab/peers/torch_files.py fixtures"', "", "# Files of this directory.", "[files]"]
        lines += [f'"{file.name}" = "{sha256(file)}"' for file in sorted(folder.iterdir())]
        lines += ["", "# What llama.cpp's converter makes of them, without a vocabulary.", "[gguf]"]
        with tempfile.TemporaryDirectory() as temp:
            # The name of the directory becomes the name of the model.
            hf = Path(shutil.copytree(folder, Path(temp) / form))
            if form == "legacy":
                save(tensors, hf, "zip")
            lines += [f'{outtype} = "{peer(hf, outtype, Path(temp) / "out.gguf")}"' for outtype in ["f32", "f16", "q8_0"]]
        (folder / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


if COMMAND == "compare":
    compare(Path(sys.argv[3]).resolve(), [Path(folder) for folder in sys.argv[4:]])
else:
    fixtures(Path(sys.argv[3]))
