#!/usr/bin/env python3
"""Writes fixtures/cards/<architecture>/<case>.json: a configuration, a list of tensors, and what llama.cpp's converter
makes of them.

Usage: card_fixtures.py LLAMA_CPP_DIR FIXTURES_DIR    (needs torch, transformers, numpy, gguf)

The weights are not stored: element i of the k-th tensor (by name) is ((i * 2654435761 + k * 40503 + 12345) mod 2^32
>> 16) mod 256 - 128, divided by 1024, which every float type holds exactly. The converter runs with its vocabulary
step replaced by its own `none` vocabulary.
"""
import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

LLAMA_CPP, FIXTURES = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
import gguf  # noqa: E402
import torch  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402

H, I, V = 64, 96, 96


def decoder(n=2, heads=4, kv=2, head_dim=None, prefix="model.", output=True, qkv_bias=False, norm_bias=False, norms=True,
            qk_norm=False, mlp=("gate_proj", "up_proj", "down_proj"), mlp_bias=False, o_bias=False, experts=0):
    """Names and shapes of a decoder in the usual naming."""
    d = head_dim or H // heads
    t = {f"{prefix}embed_tokens.weight": [V, H]}

    def linear(name, rows, cols, bias):
        t[name + ".weight"] = [rows, cols]
        if bias:
            t[name + ".bias"] = [rows]

    def norm(name, size=H):
        if norms:
            t[name + ".weight"] = [size]
            if norm_bias:
                t[name + ".bias"] = [size]

    for layer in range(n):
        b = f"{prefix}layers.{layer}."
        norm(b + "input_layernorm")
        norm(b + "post_attention_layernorm")
        linear(b + "self_attn.q_proj", heads * d, H, qkv_bias)
        linear(b + "self_attn.k_proj", kv * d, H, qkv_bias)
        linear(b + "self_attn.v_proj", kv * d, H, qkv_bias)
        linear(b + "self_attn.o_proj", H, heads * d, o_bias)
        if qk_norm:
            norm(b + "self_attn.q_norm", d)
            norm(b + "self_attn.k_norm", d)
        if experts:
            linear(b + "block_sparse_moe.gate", experts, H, False)
            for e in range(experts):
                for w, (rows, cols) in dict(w1=(I, H), w2=(H, I), w3=(I, H)).items():
                    linear(b + f"block_sparse_moe.experts.{e}.{w}", rows, cols, False)
        else:
            for name in mlp:
                is_down = name in ("down_proj", "c_proj")
                linear(b + "mlp." + name, H if is_down else I, I if is_down else H, mlp_bias)
    norm(f"{prefix}norm")
    if output:
        t["lm_head.weight"] = [V, H]
    return t


SIZES = dict(hidden_size=H, intermediate_size=I, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=V)


def config(cls, model_type, **more):
    return {"architectures": [cls], "model_type": model_type, **SIZES, **more}


def without(c, *keys):
    return {k: v for k, v in c.items() if k not in keys}


LLAMA3 = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
YARN = dict(type="yarn", factor=4.0, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1.0)
C = "ForCausalLM"
CASES = {
    "llama/plain": (config("Llama" + C, "llama", max_position_embeddings=512, rms_norm_eps=1e-5), decoder()),
    # Everything that has a default is left out.
    "llama/defaults": (without(config("Llama" + C, "llama"), "num_key_value_heads"), decoder(kv=4)),
    "llama/biases": (config("Llama" + C, "llama", head_dim=32, attention_bias=True, mlp_bias=True),
                     decoder(head_dim=32, qkv_bias=True, o_bias=True, mlp_bias=True)),
    "llama/base_model": (config("LlamaModel", "llama"), decoder(prefix="", output=False)),
    "llama/rope_llama3": (config("Llama" + C, "llama", rope_theta=500000.0, rope_scaling=LLAMA3), decoder()),
    "llama/rope_linear": (config("Llama" + C, "llama", rope_scaling=dict(type="linear", factor=2.0)), decoder()),
    "llama/rope_yarn": (config("Llama" + C, "llama", rope_scaling=YARN | dict(attention_factor=1.25)), decoder()),
    # No original_max_position_embeddings in the scaling, but beside it; the other spelling of the factor.
    "llama/rope_yarn_short": (config("Mistral" + C, "mistral", original_max_position_embeddings=2048,
                                     rope_scaling=dict(rope_type="yarn", factor=8, attn_factor=1.0,
                                                       extrapolation_factor=0.5)), decoder()),
    "llama/mistral_window": (config("Mistral" + C, "mistral", sliding_window=32, max_position_embeddings=128), decoder()),
    "llama/mistral_defaults": (without(config("Mistral" + C, "mistral", num_attention_heads=8), "num_key_value_heads"),
                               decoder(heads=8, kv=8)),
    "llama/mixtral": (config("Mixtral" + C, "mixtral", num_local_experts=12, sliding_window=None), decoder(experts=12)),
    "llama/internlm3": (config("InternLM3" + C, "internlm3", head_dim=16, bias=False, qkv_bias=False, rms_norm_eps=1e-5,
                               max_position_embeddings=32768, rope_theta=50000000,
                               rope_scaling=dict(factor=6.0, rope_type="dynamic")), decoder()),
    "qwen2/plain": (config("Qwen2" + C, "qwen2", rms_norm_eps=1e-6, use_sliding_window=False, sliding_window=131072,
                           max_window_layers=28), decoder(qkv_bias=True)),
    "qwen2/defaults": (without(config("Qwen2" + C, "qwen2", num_attention_heads=32), "num_key_value_heads"),
                       decoder(heads=32, kv=32, qkv_bias=True)),
    "qwen2/rope_yarn": (config("Qwen2" + C, "qwen2", rope_theta=1e6, rope_scaling=YARN), decoder(qkv_bias=True)),
    "qwen2/embedding": (config("Qwen2Model", "qwen2"), decoder(qkv_bias=True, prefix="", output=False)),
    "qwen3/plain": (config("Qwen3" + C, "qwen3", head_dim=32, tie_word_embeddings=True),
                    decoder(head_dim=32, qk_norm=True, output=False)),
    "qwen3/embedding": (config("Qwen3" + C, "qwen3", head_dim=16), decoder(qk_norm=True, prefix="", output=False)),
    "smollm3/plain": (config("SmolLM3" + C, "smollm3", num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0]),
                      decoder(n=4, output=False)),
    "xverse/plain": (without(config("Xverse" + C, "xverse", max_position_embeddings=512, rms_norm_eps=1e-6),
                             "num_key_value_heads"), decoder(kv=4)),
    "xverse/grouped": (config("Xverse" + C, "xverse", max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=5e5,
                              num_attention_heads=8, num_key_value_heads=2), decoder(heads=8)),
    "orion/plain": (config("Orion" + C, "orion", max_position_embeddings=512, max_sequence_length=256, rms_norm_eps=1e-5),
                    decoder(norm_bias=True)),
    "olmo/plain": (config("Olmo" + C, "olmo", clip_qkv=8.0), decoder(norms=False)),
    "granite/plain": (config("Granite" + C, "granite", attention_multiplier=0.125, embedding_multiplier=12.0,
                             residual_multiplier=0.22, logits_scaling=8.0, head_dim=16), decoder()),
    "granite/defaults": (config("Granite" + C, "granite"), decoder(output=False)),
    "starcoder2/plain": (config("Starcoder2" + C, "starcoder2", norm_epsilon=1e-5, sliding_window=4096),
                         decoder(qkv_bias=True, o_bias=True, norm_bias=True, mlp=("c_fc", "c_proj"), mlp_bias=True,
                                 output=False)),
}


def values(k, n):
    i = np.arange(n, dtype=np.uint64)
    x = (i * np.uint64(2654435761) + np.uint64(k * 40503 + 12345)) & np.uint64(0xFFFFFFFF)
    return (((x >> np.uint64(16)) & np.uint64(255)).astype(np.float32) - 128) / 1024


def write_checkpoint(folder, conf, tensors):
    (folder / "config.json").write_text(json.dumps(conf))
    header, data = {}, b""
    for k, name in enumerate(sorted(tensors)):
        shape = tensors[name]
        x = values(k, int(np.prod(shape)))
        raw = (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def key_row(field):
    names = {t: t.name.lower() for t in gguf.GGUFValueType}
    kind, value = field.types[0], field.contents()
    if kind == gguf.GGUFValueType.ARRAY:
        return [field.name, f"arr[{names[field.types[1]]}]", value]
    return [field.name, names[kind], value]


def convert(folder, outtype):
    out = folder / f"{outtype}.gguf"
    ftype = {"f16": gguf.LlamaFileType.MOSTLY_F16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[outtype]
    with torch.inference_mode():
        hparams = ModelBase.load_hparams(folder, False)
        cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT), mmproj=False)
        cls.set_vocab = lambda self: self._set_vocab_none()
        cls(folder, ftype, out).write()
    reader = gguf.GGUFReader(out)
    keys = [key_row(f) for f in reader.fields.values() if not f.name.startswith("GGUF.")]
    tensors = [[t.name, [int(d) for d in t.shape], t.tensor_type.name, hashlib.sha256(t.data.tobytes()).hexdigest()]
               for t in reader.tensors]
    return {"kv": keys, "tensors": tensors}


def dump(fixture):
    """JSON with one tensor or key a line."""
    lines = ["{", f' "config": {json.dumps(fixture["config"])},', ' "tensors": [']
    lines += [",\n".join("  " + json.dumps(row) for row in fixture["tensors"]), " ],", ' "expect": {']
    parts = []
    for outtype, expect in fixture["expect"].items():
        rows = [f'  "{outtype}": {{"kv": [', ",\n".join("   " + json.dumps(r) for r in expect["kv"]), '  ], "tensors": [',
                ",\n".join("   " + json.dumps(r) for r in expect["tensors"]), "  ]}"]
        parts.append("\n".join(rows))
    return "\n".join(lines + [",\n".join(parts), " }", "}"]) + "\n"


for case, (conf, tensors) in CASES.items():
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "hf"
        folder.mkdir()
        write_checkpoint(folder, conf, tensors)
        expect = {outtype: convert(folder, outtype) for outtype in ("f16", "q8_0")}
    rows = [[name, "BF16", tensors[name]] for name in sorted(tensors)]
    path = FIXTURES / (case + ".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump({"config": conf, "tensors": rows, "expect": expect}))
    print(case, len(rows))
