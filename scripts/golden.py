#!/usr/bin/env python3
"""Makes fixtures/golden: the part of the conformance corpus that every test run uses.

Usage: golden.py CORPUS          writes fixtures/golden anew
       golden.py CORPUS --check  says whether fixtures/golden is what the corpus gives

An archive is one folder of the corpus, its paths are those of the corpus. Cases are packed together because most of them
share their random weights: archives of one case each would be larger by a third. Only Python's own library is needed.
"""
import hashlib
import io
import lzma
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures/golden"
# Floats and codes lie at multiples of four bytes; the dictionary is larger than any archive's content.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 1, "lp": 2, "pb": 2, "dict_size": 1 << 24}]
HEADER = """\
# Written by scripts/golden.py; fixtures/README.md says what the archives are.
origin = "the conformance corpus: what llama.cpp, transformers, FastLLM, msModelSlim, PyTorch and the tools of quantized checkpoints wrote"
licence = "as the repository; tokenizers and chat templates in vocab: that of the model each belongs to"
script = "scripts/golden.py"
"""

# Patterns of paths below each folder of the corpus; `!` takes files out again.
SELECTION = {
    # The first cards' cases, and one case of each kind of mixer, mask and end that the engine runs. The files of the
    # converter are there as checksums.
    "arch": [
        "baichuan", "chatglm3", "glm", "glm4", "gpt_oss", "gpt_oss_mxfp4", "granite", "llama", "llama_*", "llava_llama",
        "mistral", "mixtral", "olmo", "orion", "qwen1", "qwen2", "qwen2_model", "qwen3", "qwen3_moe", "smollm3",
        "starcoder2", "xverse", "bert", "deepseek_v2", "gemma2", "kimi_linear", "lfm2", "mamba2",
        "minimax_text_01", "modernbert", "qwen3_next", "rwkv6", "t5", "!llama_embed_nemotron", "!*.gguf",
    ],
    # All adapters: they are small.
    "lora": ["*"],
    # All types, inputs and importance matrices, all recipes, the small models to every type. Not: activations of the
    # CPU backend, and what belongs to a real model.
    "quant": [
        "index.json", "blocks", "inputs", "bulk.json", "recipe_models.json", "recipes.compact.json", "meta", "meta.json",
        "tiny.json", "!blocks/*@cpu*",
    ],
    # All methods, layouts and errors. Not: large cases of a layout that is there in small.
    "prequant": [
        "*", "!*.md", "!awq-gemm-g128-noconv", "!ct-fp8-block", "!ct-naive-fp8", "!fp8-block128*",
        "!fp8-block-transformers",
    ],
    # All element types, writers and their years, tokenizers, adapters, edges, errors.
    "formats/flm": [
        "baichuan-float32", "cpp-*", "edge-*", "hostile", "int4-zeropoint", "llama-bf16-source", "llama-bytelevel",
        "llama-int4g", "llama-peft", "llama-sp-tokenizer", "old-chatglm1", "old-int4-2023-07-28",
        "old-llama-fast", "quant2023-chatglm2-16bit", "quant2023-llama-4bit", "qwen2-bytelevel-special", "qwen2-float16",
    ],
    # Each scheme of weights, the older layout, shards, other architectures, errors.
    "formats/msmodelslim": [
        "flatquant", "hostile", "kv-c8-v1", "mixed-types", "norm-bias-v1", "old-kv-c8-chatglm2", "old-metadata-pt",
        "old-sharded", "old-smooth-norm-mixed-fallback", "old-smooth-norm-module", "old-w4a8-two-stage-unpacked",
        "quarot-online", "svd-mxfp4", "w16a16s", "w4a16-packed-group", "w4a4-dynamic", "w4a4-mxfp4-dualscale",
        "w4a8-dynamic", "w4a8-mxfp", "w4a8-two-stage-packed", "w8a16-channel-asym", "w8a16-group32-sym", "w8a8-dynamic",
        "w8a8-dynamic-chatglm1", "w8a8-mxfp8", "wfp8afp8-dynamic",
    ],
    # All but further models of the same two layouts.
    "formats/pytorch": ["*", "!llama-s*", "!wrap-*"],
    # One tokenizer a mode, llama.cpp's test vectors by tokenizer model, chat templates.
    "vocab": [
        "gpt2", "llama2", "mistral_v1_spm", "t5_unigram_spm", "_vectors/ggml-vocab-bert-bge.*",
        "_vectors/ggml-vocab-deepseek-coder.*", "_vectors/ggml-vocab-llama-spm.*", "deepseek_v3/hf/tokenizer_config.json",
        "mistral_nemo/hf/tokenizer_config.json", "qwen2_5/hf/tokenizer_config.json",
    ],
    # Towers: one of each kind of operation, what the converter refuses, two of which are sound.
    "mmproj": [
        "gemma4_unified", "gemma4_vision", "lfm2_audio", "lfm2_vl", "llava_clip", "muse_glimmer", "pixtral",
        "qwen2_5_vl_bad_pattern", "qwen2_audio", "qwen2_vl_two_layers",
    ],
    # Names and keys, and perplexities of the bundled model.
    "meta": ["metadata.json"],
    "": ["e2e.json"],
}


def fits(path, patterns):
    """Whether a path, or a folder it lies in, fits one of the patterns."""
    parts = path.split("/")
    return any(fnmatch("/".join(parts[:n]), pattern) for n in range(1, len(parts) + 1) for pattern in patterns)


def chosen(corpus, folder, rows):
    """Paths of the files of an archive from the root of the corpus, sorted."""
    wanted = [row for row in rows if not row.startswith("!")]
    unwanted = [row[1:] for row in rows if row.startswith("!")]
    top = corpus / folder
    # Patterns begin with a name: only those folders are walked.
    heads = sorted({head for row in wanted for head in top.glob(row.split("/")[0])})
    files = [path for head in heads for path in ([head] if head.is_file() else sorted(head.rglob("*"))) if path.is_file()]
    local = [path.relative_to(top).as_posix() for path in files]
    for row in wanted:
        if not any(fits(path, [row]) for path in local):
            sys.exit(f"golden: nothing in {top} is named {row}")
    local = [path for path in local if fits(path, wanted) and not fits(path, unwanted)]
    return [f"{folder}/{path}".removeprefix("/") for path in local]


def tar(corpus, paths):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            content = (corpus / path).read_bytes()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def cases(folder, paths):
    """The entries of the folder that an archive holds."""
    depth = len(Path(folder).parts) + 1
    return sorted({"/".join(path.split("/")[:depth]) for path in paths})


def main():
    corpus, is_check = Path(sys.argv[1]), sys.argv[2:] == ["--check"]
    manifest, wrong = [HEADER], []
    found = {path.relative_to(GOLDEN).as_posix(): path for path in GOLDEN.rglob("*.tar.xz")}
    for folder, rows in SELECTION.items():
        paths = chosen(corpus, folder, rows)
        data = tar(corpus, paths)
        name = f"{folder or 'figures'}.tar.xz"
        path = found.pop(name, GOLDEN / name)
        # Another version of liblzma may pack the same files into other bytes: an archive of equal content is kept.
        if not path.is_file() or lzma.decompress(path.read_bytes()) != data:
            wrong.append(name)
            if not is_check:
                path.parent.mkdir(parents=True, exist_ok=True)
                packed = lzma.compress(data, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=FILTERS)
                path.write_bytes(packed)
        content = path.read_bytes() if path.is_file() else b""
        print(f"{len(content):9,} bytes  {name}: {len(paths)} files, {len(data):,} bytes")
        manifest.append(f'\n[archives."{name}"]\nsha256 = "{hashlib.sha256(content).hexdigest()}"\ncases = [')
        manifest += [f'    "{case}",' for case in cases(folder, paths)]
        manifest.append("]")
    text = "\n".join(manifest) + "\n"
    if is_check:
        if wrong or found or (GOLDEN / "MANIFEST.toml").read_text() != text:
            sys.exit(f"golden: not what the corpus gives: {', '.join([*wrong, *found]) or 'MANIFEST.toml'}")
        return
    for path in found.values():
        path.unlink()
    (GOLDEN / "MANIFEST.toml").write_text(text)


main()
