#!/usr/bin/env python3
"""Writes fixtures/cards/<architecture>/<case>.json: a configuration, a list of tensors, and what llama.cpp's converter
makes of them.

Usage (needs torch, transformers, numpy, gguf):
  card_fixtures.py LLAMA_CPP_DIR FIXTURES_DIR                  the cases of this file
  card_fixtures.py LLAMA_CPP_DIR --refresh FILE...             fixtures written by hand: `config`, `tensors`, and perhaps
                                                               `files` (JSON by path; the target of a draft model is
                                                               `target/config.json`), `weights` (tensors of further
                                                               files by path) and `options`; adds `expect`
  card_fixtures.py LLAMA_CPP_DIR FIXTURES_DIR --from CORPUS [--cases CASE...]
                                                               names and shapes of the corpus's arch/CASE/hf

The weights are not stored: element i of the k-th tensor (by name) is ((i * 2654435761 + k * 40503 + 12345) mod 2^32
>> 16) mod 256 - 128, divided by 1024, which every float type holds exactly; of a tensor of integers it is i / 2, of one of
bytes those eight bits (FP8 without NaN, powers of two about one); a
tensor with a fourth member in its row is all zero (0), or has the integers listed there. The converter runs with its vocabulary step replaced by its own
`none` vocabulary, in a process of its own for each case: some of its classes change tables that all share. What the
converter has no architecture for is expected by hand (`OURS`). Of the SHA-256 of a tensor's bytes 16 digits are kept.
"""
import argparse
import hashlib
import json
import multiprocessing
import os
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

import converter

arguments = argparse.ArgumentParser()
arguments.add_argument("llama_cpp", type=Path)
arguments.add_argument("fixtures", type=Path, nargs="?")
arguments.add_argument("--cases", nargs="+")
arguments.add_argument("--from", dest="corpus", type=Path)
arguments.add_argument("--refresh", type=Path, nargs="+", default=[])
ARGUMENTS = arguments.parse_args()
# Torch's exponential function differs from processor to processor; this is the one that all have.
os.environ["MKL_CBWR"] = "COMPATIBLE"
LLAMA_CPP, FIXTURES = ARGUMENTS.llama_cpp, ARGUMENTS.fixtures
converter.use(LLAMA_CPP)
import gguf  # noqa: E402
import torch  # noqa: E402
from conversion.base import TextModel  # noqa: E402

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


def fused(n=2, kv=2, root="transformer."):
    """ChatGLM 2 and 3 under the names of their own code."""
    t = {f"{root}embedding.word_embeddings.weight": [V, H], f"{root}encoder.final_layernorm.weight": [H],
         f"{root}output_layer.weight": [V, H]}
    if root:  # without it the converter does not know the buffer for one
        t[f"{root}rotary_pos_emb.inv_freq"] = [4]
    for layer in range(n):
        b = f"{root}encoder.layers.{layer}."
        t |= {b + "input_layernorm.weight": [H], b + "post_attention_layernorm.weight": [H],
              b + "self_attention.query_key_value.weight": [H + 2 * kv * 16, H],
              b + "self_attention.query_key_value.bias": [H + 2 * kv * 16], b + "self_attention.dense.weight": [H, H],
              b + "mlp.dense_h_to_4h.weight": [2 * I, H], b + "mlp.dense_4h_to_h.weight": [H, I]}
    return t


def first_chatglm(root="transformer."):
    """ChatGLM-6B: source name, shape, target without its ending."""
    rows = [("word_embeddings.weight", [V, H], "token_embd"), ("final_layernorm.weight", [H], "output_norm"),
            ("final_layernorm.bias", [H], "output_norm")]
    for layer in range(2):
        b, blk = f"layers.{layer}.", f"blk.{layer}."
        rows.append((b + "attention.rotary_emb.inv_freq", [8], None))
        for name, target, shape in (("input_layernorm", "attn_norm", [H]), ("post_attention_layernorm", "ffn_norm", [H]),
                                    ("attention.query_key_value", "attn_qkv", [3 * H, H]),
                                    ("attention.dense", "attn_output", [H, H]),
                                    ("mlp.dense_h_to_4h", "ffn_up", [I, H]), ("mlp.dense_4h_to_h", "ffn_down", [H, I])):
            rows += [(f"{b}{name}.weight", shape, blk + target), (f"{b}{name}.bias", shape[:1], blk + target)]
    return [(root + name, shape, target) for name, shape, target in rows] + [("lm_head.weight", [V, H], "output")]


def qwen(n=2):
    t = {"transformer.wte.weight": [V, H], "transformer.ln_f.weight": [H], "lm_head.weight": [V, H]}
    for layer in range(n):
        b = f"transformer.h.{layer}."
        t |= {b + "ln_1.weight": [H], b + "ln_2.weight": [H], b + "attn.c_attn.weight": [3 * H, H],
              b + "attn.c_attn.bias": [3 * H], b + "attn.c_proj.weight": [H, H], b + "mlp.w1.weight": [I, H],
              b + "mlp.w2.weight": [I, H], b + "mlp.c_proj.weight": [H, I]}
    return t


def replaced(tensors, *pairs):
    """Tensors under other names: the end of a name, and what comes in its place with which shape (None: nothing)."""
    t = {}
    for name, shape in tensors.items():
        for end, new, new_shape in pairs:
            if name.endswith(end):
                if new:
                    t[name[:-len(end)] + new] = new_shape
                break
        else:
            t[name] = shape
    return t


def routed(tensors, n=4, width=32):
    """Every dense feed-forward part becomes a router and experts."""
    t = {name: shape for name, shape in tensors.items() if ".mlp." not in name}
    for layer in sorted({name.split(".layers.")[1].split(".")[0] for name in tensors if ".layers." in name}):
        b = f"model.layers.{layer}.mlp."
        t[b + "gate.weight"] = [n, H]
        for e in range(n):
            for name, shape in dict(gate_proj=[width, H], up_proj=[width, H], down_proj=[H, width]).items():
                t[f"{b}experts.{e}.{name}.weight"] = shape
    return t


def routed_at_once(tensors, n=4, width=32, heads=4):
    """As `routed`, with all experts in one tensor, biases everywhere, and sinks."""
    t = {name: shape for name, shape in tensors.items() if ".mlp." not in name}
    for layer in sorted({name.split(".layers.")[1].split(".")[0] for name in tensors if ".layers." in name}):
        b = f"model.layers.{layer}."
        e = b + "mlp.experts."
        t |= {b + "self_attn.sinks": [heads], b + "mlp.router.weight": [n, H], b + "mlp.router.bias": [n],
              e + "gate_up_proj": [n, H, 2 * width], e + "gate_up_proj_bias": [n, 2 * width],
              e + "down_proj": [n, width, H], e + "down_proj_bias": [n, H]}
    return t


def packed(tensors):
    return replaced(tensors, ("q_proj.weight", "W_pack.weight", [3 * H, H]), ("k_proj.weight", None, None),
                    ("v_proj.weight", None, None))


def gate_up(tensors):
    return replaced(tensors, ("gate_proj.weight", "gate_up_proj.weight", [2 * I, H]), ("up_proj.weight", None, None))


def sandwich(tensors):
    norms = {name.replace("input_layernorm", more): shape for name, shape in tensors.items() if "input_layernorm" in name
             for more in ("post_self_attn_layernorm", "post_mlp_layernorm")}
    return gate_up(tensors) | norms


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
    "qwen3moe/plain": (config("Qwen3Moe" + C, "qwen3_moe", head_dim=32, num_experts=12, num_experts_per_tok=3,
                              moe_intermediate_size=32, norm_topk_prob=True, rms_norm_eps=1e-6, rope_theta=1e6),
                       routed(decoder(head_dim=32, qk_norm=True), n=12)),
    # The width of gate and up together is that of the model: only their names tell rows from columns.
    "gpt-oss/plain": (config("GptOss" + C, "gpt_oss", head_dim=32, num_local_experts=4, num_experts_per_tok=2,
                             sliding_window=32, max_position_embeddings=512, rms_norm_eps=1e-5,
                             rope_scaling=YARN | dict(rope_type="yarn", truncate=False)) | dict(intermediate_size=32),
                      routed_at_once(decoder(head_dim=32, qkv_bias=True, o_bias=True))),
    "gpt-oss/defaults": (without(config("GptOss" + C, "gpt_oss", head_dim=None) | dict(num_attention_heads=8),
                                 "intermediate_size"),
                         routed_at_once(decoder(heads=8, qkv_bias=True, o_bias=True), heads=8)),
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
    "chatglm/own_names": (without(config("ChatGLMModel", "chatglm", padded_vocab_size=V, seq_length=512, num_layers=2,
                                         ffn_hidden_size=I, multi_query_attention=True, multi_query_group_num=2,
                                         kv_channels=16, layernorm_epsilon=1.5625e-7, rope_ratio=50),
                                  "num_hidden_layers", "num_key_value_heads", "intermediate_size"), fused()),
    # Everything that has a default is left out, and `transformer.` too.
    "chatglm/defaults": (dict(architectures=["ChatGLMForConditionalGeneration"], model_type="chatglm", hidden_size=H,
                              num_attention_heads=4, num_layers=2, ffn_hidden_size=I, vocab_size=V),
                         fused(kv=4, root="")),
    "chatglm/transformers": (config("Glm" + C, "glm", partial_rotary_factor=0.5, rms_norm_eps=1.5625e-7, head_dim=16,
                                    rope_theta=10000.0), gate_up(decoder(qkv_bias=True))),
    "glm4/plain": (config("Glm4" + C, "glm4", head_dim=16, partial_rotary_factor=0.25, rms_norm_eps=1e-5),
                   sandwich(decoder())),
    "glm4/defaults": (without(config("Glm4" + C, "glm4", head_dim=32), "num_key_value_heads"),
                      sandwich(decoder(head_dim=32, qkv_bias=True))),
    "baichuan/plain": (without(config("Baichuan" + C, "baichuan", max_position_embeddings=512, rms_norm_eps=1e-6),
                               "num_key_value_heads"), packed(decoder(kv=4))),
    "baichuan/alibi": (without(config("BaiChuan" + C, "baichuan", model_max_length=512, rms_norm_eps=1e-6,
                                      num_attention_heads=8), "num_key_value_heads"), packed(decoder(heads=8, kv=8))),
    "qwen/plain": (without(config("QWenLMHeadModel", "qwen", seq_length=512, max_position_embeddings=1024,
                                  layer_norm_epsilon=1e-6, rotary_emb_base=10000, rotary_pct=1.0, kv_channels=16)
                           | dict(intermediate_size=2 * I), "num_key_value_heads"), qwen()),
}

# Architectures that llama.cpp lacks: the configuration, rows of source, shape and target, and the keys by hand.
OURS = {
    "chatglm1/plain": (
        dict(architectures=["ChatGLMModel"], model_type="chatglm", hidden_size=H, inner_hidden_size=I, num_layers=2,
             num_attention_heads=4, vocab_size=V, max_sequence_length=512, layernorm_epsilon=1e-5,
             position_encoding_2d=True, bos_token_id=84, eos_token_id=85, gmask_token_id=81, mask_token_id=80,
             pad_token_id=3),
        first_chatglm(),
        [["block_count", "uint32", 2], ["context_length", "uint32", 512], ["embedding_length", "uint32", H],
         ["feed_forward_length", "uint32", I], ["attention.head_count", "uint32", 4],
         ["attention.layer_norm_epsilon", "float32", float(np.float32(1e-5))], ["rope.dimension_count", "uint32", 8],
         ["rope.freq_base", "float32", 10000.0], ["general.file_type", "uint32", None],
         ["tokenizer.ggml.bos_token_id", "uint32", 84], ["tokenizer.ggml.eos_token_id", "uint32", 85],
         ["tokenizer.ggml.padding_token_id", "uint32", 3], ["tokenizer.ggml.mask_token_id", "uint32", 80],
         ["gmask_token_id", "uint32", 81]]),
    # As old exports are: without `transformer.` and what has a default.
    "chatglm1/defaults": (
        dict(architectures=["ChatGLMForConditionalGeneration"], model_type="chatglm", hidden_size=H, num_layers=2,
             num_attention_heads=4, vocab_size=V, max_sequence_length=512, inner_hidden_size=I),
        first_chatglm(root=""),
        [["block_count", "uint32", 2], ["context_length", "uint32", 512], ["embedding_length", "uint32", H],
         ["feed_forward_length", "uint32", I], ["attention.head_count", "uint32", 4],
         ["attention.layer_norm_epsilon", "float32", float(np.float32(1e-5))], ["rope.dimension_count", "uint32", 8],
         ["rope.freq_base", "float32", 10000.0], ["general.file_type", "uint32", None]]),
}


def bits(k, n):
    i = np.arange(n, dtype=np.uint64)
    x = i * np.uint64(2654435761) + np.uint64(k * 40503 + 12345)
    return ((x >> np.uint64(16)) & np.uint64(255)).astype(np.uint8)


def values(k, n):
    return (bits(k, n).astype(np.float32) - 128) / 1024


BYTES = {"I8": lambda x: x, "U8": lambda x: x % 255, "F8_E4M3": lambda x: x & 0xF7, "F8_E8M0": lambda x: 120 + (x & 7)}


def stored(k, dtype, shape, zero):
    """The bytes of tensor k."""
    n = int(np.prod(shape))
    if dtype == "BOOL":
        return (np.arange(n) % 2).astype(np.uint8).tobytes()
    if dtype in ("I64", "I32"):
        return (np.array(zero) if isinstance(zero, list) else np.arange(n) // 2).astype({"I64": np.int64, "I32": np.int32}[dtype]).tobytes()
    if dtype in BYTES:
        return BYTES[dtype](bits(k, n)).tobytes()
    x = np.zeros(n, np.float32) if zero else values(k, n)
    if dtype == "BF16":
        return (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return x.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def write_checkpoint(folder, fixture):
    options = fixture.get("options", {})
    (folder / ("params.json" if options.get("mistral_format") else "config.json")).write_text(json.dumps(fixture["config"]))
    for name, content in fixture.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    name = "consolidated.safetensors" if options.get("mistral_format") else "model.safetensors"
    for path, rows in {name: fixture["tensors"], **fixture.get("weights", {})}.items():
        write_safetensors(folder / path, rows)


def write_safetensors(path, rows):
    header, parts, at = {}, [], 0
    for k, (name, dtype, shape, *zero) in enumerate(sorted(rows)):
        raw = stored(k, dtype, shape, zero[0] or True if zero else False)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        parts.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def repair_baichuan():
    """The converter's method calls itself without end for every tensor but the packed one."""
    from conversion.baichuan import BaichuanModel
    packed_only, rest = BaichuanModel.modify_tensors, TextModel.modify_tensors

    def modify_tensors(self, data, name, bid):
        yield from (packed_only if "W_pack" in name else rest)(self, data, name, bid)
    BaichuanModel.modify_tensors = modify_tensors


def digits(raw):
    return hashlib.sha256(raw).hexdigest()[:16]


def descendants(cls):
    return {cls}.union(*(descendants(child) for child in cls.__subclasses__()))


def convert(folder, outtype, options):
    """What the converter writes. Options are spelled as its own attributes."""
    out = folder / f"{outtype}.gguf"
    with torch.inference_mode():
        if options.get("mmproj"):
            cls = converter.tower_class(folder)
        elif options.get("mistral_format"):
            from conversion.mistral import MistralModel, MistralMoeModel
            cls = MistralMoeModel if TextModel.load_hparams(folder, True).get("moe") else MistralModel
        else:
            cls = converter.text_class(folder)
        if options.get("no_mtp"):
            cls.no_mtp = True
        if options.get("mtp"):
            cls.mtp_only = True
        for each_cls in descendants(TextModel):  # a class may build another one and ask that
            converter.without_vocabulary(each_cls)
        names = ("fuse_gate_up_exps", "fuse_qkv", "sentence_transformers_dense_modules")
        more = {name: options[name] for name in names if name in options}
        if (folder / "target").is_dir():
            more["target_model_dir"] = folder / "target"
        cls(folder, converter.file_type(outtype), out, hparams=None, **more).write()
    reader = gguf.GGUFReader(out)
    # Some classes bring a chat template along, which is the vocabulary's.
    left_out = ("GGUF.", "tokenizer.chat_template")
    keys = [converter.key_row(f) for f in reader.fields.values() if not f.name.startswith(left_out)]
    tensors = [[t.name, [int(d) for d in t.shape], t.tensor_type.name, digits(t.data.tobytes())]
               for t in reader.tensors]
    return {"kv": keys, "tensors": tensors}


def ours(arch, rows, keys, outtype):
    """Renamed tensors: vectors in F32, matrices in the file's type."""
    number = {"f16": 1, "q8_0": 7}[outtype]
    kv = [[key if key.startswith(("general.", "tokenizer.")) else f"{arch}.{key}", kind, number if value is None else value]
          for key, kind, value in keys]
    tensors = []
    for k, (name, shape, target) in enumerate(sorted(rows)):
        if target is None:
            continue
        ty = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else gguf.GGMLQuantizationType[outtype.upper()]
        x = values(k, int(np.prod(shape))).reshape(shape)
        if target.endswith("attn_qkv"):  # 4 heads of queries, keys and values each: all queries first, and so on
            x = np.swapaxes(x.reshape(4, 3, shape[0] // 12, *shape[1:]), 0, 1).reshape(shape)
        raw = np.ascontiguousarray(gguf.quants.quantize(x, ty)).tobytes()
        tensors.append([target + name[name.rindex("."):], shape[::-1], ty.name, digits(raw)])
    return {"kv": kv, "tensors": tensors}


def dump(fixture):
    """JSON with one tensor or key a line."""
    lines = ["{"]
    for key in ("config", "files", "options"):
        if fixture.get(key):
            lines.append(f' "{key}": {json.dumps(fixture[key])},')
    for path, rows in fixture.get("weights", {}).items():
        lines += [' "weights": {' + json.dumps(path) + ': [', ",\n".join("  " + json.dumps(row) for row in rows), " ]},"]
    lines += [' "tensors": [', ",\n".join("  " + json.dumps(row) for row in fixture["tensors"]), " ],", ' "expect": {']
    parts = []
    for outtype, expect in fixture["expect"].items():
        rows = [f'  "{outtype}": {{"kv": [', ",\n".join("   " + json.dumps(r) for r in expect["kv"]), '  ], "tensors": [',
                ",\n".join("   " + json.dumps(r) for r in expect["tensors"]), "  ]}"]
        parts.append("\n".join(rows))
    return "\n".join(lines + [",\n".join(parts), " }", "}"]) + "\n"


def expected(fixture):
    """What the converter makes of a fixture's configuration and tensors."""
    options = fixture.get("options", {})
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "hf"
        folder.mkdir()
        write_checkpoint(folder, fixture)
        # Classes keep tensors between conversions: a process for each.
        found = {}
        # Ternary types are for weights that are ternary.
        is_ternary = (fixture["config"].get("architectures") or [""])[0].lower().startswith("bitnet")
        for outtype in ("f16", "q8_0", *(("tq1_0", "tq2_0") if is_ternary else ())):
            with multiprocessing.get_context("fork").Pool(1) as pool:
                found[outtype] = pool.apply(convert, (folder, outtype, options))
        return found


def store(path, fixture):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump(fixture))
    print(path.parent.name, path.stem, len(fixture["tensors"]), flush=True)


def of_shapes(conf, shapes):
    return {"config": conf, "tensors": [[name, "BF16", shapes[name]] for name in sorted(shapes)]}


def of_checkpoint(folder, options):
    """A fixture with the names, shapes and types of a checkpoint; None where it holds codes."""
    rows, files = [], {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors":
            with open(path, "rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            rows += [[name, row["dtype"], row["shape"]] for name, row in header.items() if name != "__metadata__"]
        elif path.suffix == ".json" and path.stat().st_size < 20_000:
            files[str(path.relative_to(folder))] = json.loads(path.read_text())
    if not rows or {row[1] for row in rows} - {"BF16", "F16", "F32", "I64", "I32", *BYTES}:
        return None
    conf = files.pop("params.json" if options.get("mistral_format") else "config.json")
    if "quantization_config" in conf:
        return None
    if "model.safetensors.index.json" in files:
        files["model.safetensors.index.json"] = {"weight_map": {row[0]: "model.safetensors" for row in sorted(rows)}}
    return {"config": conf, "files": files, "options": options, "tensors": sorted(rows)}


def from_corpus(name):
    case = json.loads((ARGUMENTS.corpus / "arch" / name / "case.json").read_text())
    options = case.get("converter_options") or {}
    fixture = of_checkpoint(ARGUMENTS.corpus / "arch" / name / "hf", options)
    if fixture is None or "ok" not in case["converter"].values() or "split_max_tensors" in options:
        return print(name, "left out", flush=True)
    store(FIXTURES / case["gguf_arch"] / (name + ".json"), fixture | {"expect": expected(fixture)})


def refresh(path):
    fixture = json.loads(path.read_text())
    store(path, fixture | {"expect": expected(fixture)})


def case_of_this_file(case):
    fixture = of_shapes(*CASES[case])
    store(FIXTURES / (case + ".json"), fixture | {"expect": expected(fixture)})


def each(job, items):
    """Every item in a process of its own; the number that failed."""
    failed = 0
    for item in items:
        process = multiprocessing.get_context("fork").Process(target=job, args=(item,))
        process.start()
        process.join()
        if process.exitcode:
            failed += 1
            print(item, "FAILED", flush=True)
    return failed


torch.set_num_threads(1)
repair_baichuan()
if ARGUMENTS.refresh:
    sys.exit(each(refresh, ARGUMENTS.refresh) > 0)
if ARGUMENTS.corpus:
    names = ARGUMENTS.cases or sorted(os.listdir(ARGUMENTS.corpus / "arch"))
    sys.exit(each(from_corpus, [name for name in names if (ARGUMENTS.corpus / "arch" / name / "case.json").is_file()]) > 0)
FAILED = each(case_of_this_file, CASES)
for case, (conf, rows, keys) in OURS.items():
    arch = case.split("/")[0]
    fixture = of_shapes(conf, {name: shape for name, shape, _ in rows})
    store(FIXTURES / (case + ".json"), fixture | {"expect": {outtype: ours(arch, rows, keys, outtype)
                                                             for outtype in ("f16", "q8_0")}})
sys.exit(FAILED > 0)
