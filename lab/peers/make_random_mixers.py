#!/usr/bin/env python3
"""Makes a checkpoint of about a billion random bf16 weights whose layers are those of a family, for measuring engines.

Usage: make_random_mixers.py DIRECTORY KIND [--layers N]

KIND: gemma (Gemma 3 1B: windows of 512, 4 heads on 1), deepseek (DeepSeek V2: latent attention, 6 of 64 experts and 2
shared), qwen3next (gated delta nets, every fourth layer attention, 8 of 64 experts and a shared one), mamba2 (Mamba2 1.3B
with fewer layers). Gemma gets the small SentencePiece model of make_random_llama.py, the others a byte-level BPE of
a few merges that is split as Qwen 2's. Needs numpy and, for Gemma, sentencepiece. Memory stays at one tensor.
"""

import argparse
import functools
import json
import pathlib

import numpy as np
from make_random_llama import bf16, write_safetensors, write_tokenizer

VOCAB = 32000
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
COMMON = {"attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "max_position_embeddings": 8192,
          "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "vocab_size": VOCAB,
          "tie_word_embeddings": False}


def fill(low, high):
    """Values spread evenly between two."""
    def values(rng, shape):
        floats = rng.uniform(low, high, shape).astype(np.float32)
        return (floats.view(np.uint32) >> 16).astype("<u2")
    return values


def gated(prefix, width, hidden):
    return {f"{prefix}.gate_proj.weight": [width, hidden], f"{prefix}.up_proj.weight": [width, hidden],
            f"{prefix}.down_proj.weight": [hidden, width]}


def gemma(n_layers):
    hidden, heads, dim, ffn, vocab = 1152, 4, 256, 6912, 262144
    config = COMMON | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": dim, "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": heads, "num_hidden_layers": n_layers, "num_key_value_heads": 1,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": dim, "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": vocab,
        "tie_word_embeddings": True,
    }
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for i in range(n_layers):
        at = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            shapes[f"{at}.{norm}.weight"] = [hidden]
        shapes |= gated(f"{at}.mlp", ffn, hidden) | {
            f"{at}.self_attn.q_norm.weight": [dim], f"{at}.self_attn.k_norm.weight": [dim],
            f"{at}.self_attn.q_proj.weight": [heads * dim, hidden], f"{at}.self_attn.k_proj.weight": [dim, hidden],
            f"{at}.self_attn.v_proj.weight": [dim, hidden], f"{at}.self_attn.o_proj.weight": [hidden, heads * dim],
        }
    # These norms multiply with 1 + w.
    return config, shapes, {"norm": fill(-0.1, 0.1)}


def deepseek(n_layers):
    # llama.cpp takes a model without a rank of the queries for a Lite one, by its 27 layers.
    hidden, heads, nope, rope, rank, q_rank, experts, width = 1024, 16, 128, 64, 512, 512, 64, 352
    config = COMMON | {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "first_k_dense_replace": 1,
        "hidden_size": hidden, "intermediate_size": 2816, "kv_lora_rank": rank, "moe_intermediate_size": width,
        "n_group": 1, "n_routed_experts": experts, "n_shared_experts": 2, "norm_topk_prob": False,
        "num_attention_heads": heads, "num_experts_per_tok": 6, "num_hidden_layers": n_layers, "num_key_value_heads": heads,
        "q_lora_rank": q_rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "rope_scaling": None,
        "routed_scaling_factor": 1.0, "topk_group": 1, "topk_method": "greedy", "v_head_dim": nope, "moe_layer_freq": 1,
        "scoring_func": "softmax",
    }
    shapes = {"model.embed_tokens.weight": [VOCAB, hidden], "model.norm.weight": [hidden], "lm_head.weight": [VOCAB, hidden]}
    for i in range(n_layers):
        at = f"model.layers.{i}"
        shapes |= {
            f"{at}.input_layernorm.weight": [hidden], f"{at}.post_attention_layernorm.weight": [hidden],
            f"{at}.self_attn.q_a_proj.weight": [q_rank, hidden], f"{at}.self_attn.q_a_layernorm.weight": [q_rank],
            f"{at}.self_attn.q_b_proj.weight": [heads * (nope + rope), q_rank],
            f"{at}.self_attn.kv_a_proj_with_mqa.weight": [rank + rope, hidden],
            f"{at}.self_attn.kv_a_layernorm.weight": [rank],
            f"{at}.self_attn.kv_b_proj.weight": [heads * 2 * nope, rank],
            f"{at}.self_attn.o_proj.weight": [hidden, heads * nope],
        }
        if i == 0:
            shapes |= gated(f"{at}.mlp", 2816, hidden)
            continue
        shapes[f"{at}.mlp.gate.weight"] = [experts, hidden]
        shapes |= gated(f"{at}.mlp.shared_experts", 2 * width, hidden)
        for e in range(experts):
            shapes |= gated(f"{at}.mlp.experts.{e}", width, hidden)
    return config, shapes, {}


def qwen3next(n_layers):
    hidden, n_keys, n_values, dim, experts, width, heads, head = 1024, 8, 16, 128, 64, 256, 8, 128
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(n_layers)]
    config = COMMON | {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "decoder_sparse_step": 1,
        "full_attention_interval": 4, "head_dim": head, "hidden_size": hidden, "intermediate_size": 2816,
        "layer_types": kinds, "linear_conv_kernel_dim": 4, "linear_key_head_dim": dim, "linear_num_key_heads": n_keys,
        "linear_num_value_heads": n_values, "linear_value_head_dim": dim, "mlp_only_layers": [],
        "moe_intermediate_size": width, "norm_topk_prob": True, "num_attention_heads": heads, "num_experts": experts,
        "num_experts_per_tok": 8, "num_hidden_layers": n_layers, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
        "rope_scaling": None, "shared_expert_intermediate_size": width,
    }
    shapes = {"model.embed_tokens.weight": [VOCAB, hidden], "model.norm.weight": [hidden], "lm_head.weight": [VOCAB, hidden]}
    for i, kind in enumerate(kinds):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.input_layernorm.weight": [hidden], f"{at}.post_attention_layernorm.weight": [hidden]}
        if kind == "linear_attention":
            key, value = n_keys * dim, n_values * dim
            shapes |= {
                f"{at}.linear_attn.A_log": [n_values], f"{at}.linear_attn.dt_bias": [n_values],
                f"{at}.linear_attn.conv1d.weight": [2 * key + value, 1, 4],
                f"{at}.linear_attn.in_proj_ba.weight": [2 * n_values, hidden],
                f"{at}.linear_attn.in_proj_qkvz.weight": [2 * key + 2 * value, hidden],
                f"{at}.linear_attn.norm.weight": [dim], f"{at}.linear_attn.out_proj.weight": [hidden, value],
            }
        else:
            shapes |= {
                f"{at}.self_attn.q_norm.weight": [head], f"{at}.self_attn.k_norm.weight": [head],
                f"{at}.self_attn.q_proj.weight": [2 * heads * head, hidden],
                f"{at}.self_attn.k_proj.weight": [2 * head, hidden], f"{at}.self_attn.v_proj.weight": [2 * head, hidden],
                f"{at}.self_attn.o_proj.weight": [hidden, heads * head],
            }
        shapes |= {f"{at}.mlp.gate.weight": [experts, hidden], f"{at}.mlp.shared_expert_gate.weight": [1, hidden]}
        shapes |= gated(f"{at}.mlp.shared_expert", width, hidden)
        for e in range(experts):
            shapes |= gated(f"{at}.mlp.experts.{e}", width, hidden)
    # Norms but that behind the delta net multiply with 1 + w.
    return config, shapes, {"linear_attn.norm": fill(0.9, 1.1), "norm": fill(-0.1, 0.1)}


def mamba2(n_layers):
    hidden, inner, heads, states = 2048, 4096, 64, 128
    width = inner + 2 * states
    config = COMMON | {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "chunk_size": 256, "conv_kernel": 4, "expand": 2,
        "head_dim": inner // heads, "hidden_size": hidden, "layer_norm_epsilon": 1e-5, "n_groups": 1, "num_heads": heads,
        "num_hidden_layers": n_layers, "rms_norm": True, "state_size": states, "use_bias": False, "use_conv_bias": True,
    }
    shapes = {"backbone.embeddings.weight": [VOCAB, hidden], "backbone.norm_f.weight": [hidden],
              "lm_head.weight": [VOCAB, hidden]}
    for i in range(n_layers):
        at = f"backbone.layers.{i}"
        shapes |= {
            f"{at}.norm.weight": [hidden], f"{at}.mixer.A_log": [heads], f"{at}.mixer.D": [heads],
            f"{at}.mixer.dt_bias": [heads], f"{at}.mixer.conv1d.weight": [width, 1, 4], f"{at}.mixer.conv1d.bias": [width],
            f"{at}.mixer.in_proj.weight": [inner + width + heads, hidden], f"{at}.mixer.norm.weight": [inner],
            f"{at}.mixer.out_proj.weight": [hidden, inner],
        }
    return config, shapes, {}


KINDS = {"gemma": (gemma, 26), "deepseek": (deepseek, 12), "qwen3next": (qwen3next, 16), "mamba2": (mamba2, 36)}
# Beside the weights, as models are initialized: rates from 1 to 16, steps from 0.001 to 0.1.
SPECIAL = {"A_log": fill(0.0, 2.77), "dt_bias": fill(-6.9, -2.25), "conv1d.weight": fill(-0.5, 0.5),
           "conv1d.bias": fill(-0.1, 0.1)}


# llama.cpp refuses a vocabulary without any.
MERGES = [("h", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("o", "n"), ("t", "h"), ("\u0120", "a"), ("\u0120", "th")]


def byte_tokens():
    """The characters of byte-level BPE, byte by byte (GPT-2)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + at) for at in range(len(hidden))]


def write_bytes_tokenizer(directory):
    specials = ["<|endoftext|>", "<|begin|>", "<|end|>"]
    tokens = byte_tokens() + ["".join(merge) for merge in MERGES]
    vocabulary = {token: at + len(specials) for at, token in enumerate(tokens)}
    added = [{"id": at, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for at, token in enumerate(specials)]
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_of]},
        "post_processor": bytes_of, "decoder": bytes_of,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: at for at, token in enumerate(specials)} | vocabulary,
                  "merges": [" ".join(merge) for merge in MERGES]},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    about = {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "eos_token": "<|end|>", "bos_token": "<|begin|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(about))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()

    make, n_layers = KINDS[args.kind]
    config, shapes, own = make(args.layers or n_layers)
    args.directory.mkdir(parents=True, exist_ok=True)
    (args.directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if args.kind == "gemma":
        write_tokenizer(args.directory)
    else:
        write_bytes_tokenizer(args.directory)
    rng = np.random.default_rng(0)

    def values(name, shape):
        special = next((value for part, value in (SPECIAL | own).items() if part in name), None)
        return special(rng, shape) if special else bf16(rng, shape)

    tensors = [(name, "BF16", shape, functools.partial(values, name, shape)) for name, shape in shapes.items()]
    write_safetensors(args.directory / "model.safetensors", tensors)
    print(f"{args.kind}: {sum(int(np.prod(shape)) for shape in shapes.values()) / 1e9:.2f} billion parameters")


if __name__ == "__main__":
    main()
