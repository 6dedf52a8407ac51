#!/usr/bin/env python3
"""Makes a Llama checkpoint of random bf16 weights in the shape of TinyLlama 1.1B, for measuring converters.

Usage: make_random_llama.py DIRECTORY [--layers 22] [--shards 1] [--experts 0]

22 layers are 1.1 billion parameters (2.2 GB); 72 layers are three times as many. With experts it is a Mixtral whose
experts are an eighth as wide as the dense model's feed-forward part: 64 experts and 15 layers are 8.6 GB. The tokenizer is a small
SentencePiece model trained on the text of fixtures/tiny-llama (llama.cpp knows tokenizer.json files by a hash of
released ones, but takes any tokenizer.model); converters fill it up to the 32000 rows of the embedding with unused
tokens. Needs numpy and sentencepiece. Memory stays at one tensor.
"""

import argparse
import functools
import json
import pathlib
import struct

import numpy as np
import sentencepiece

HIDDEN, FFN, HEADS, KV_HEADS, VOCAB = 2048, 5632, 32, 4, 32000
FIXTURE = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "tiny-llama"


def config(n_layers, n_experts=0):
    experts = {"num_local_experts": n_experts, "num_experts_per_tok": 2} if n_experts else {}
    return experts | {
        "architectures": ["MixtralForCausalLM" if n_experts else "LlamaForCausalLM"],
        "model_type": "mixtral" if n_experts else "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN // 8 if n_experts else FFN,
        "max_position_embeddings": 2048,
        "num_attention_heads": HEADS,
        "num_hidden_layers": n_layers,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    }


def feed_forward(i, n_experts):
    if not n_experts:
        return {
            f"model.layers.{i}.mlp.down_proj.weight": [HIDDEN, FFN],
            f"model.layers.{i}.mlp.gate_proj.weight": [FFN, HIDDEN],
            f"model.layers.{i}.mlp.up_proj.weight": [FFN, HIDDEN],
        }
    shapes = {f"model.layers.{i}.block_sparse_moe.gate.weight": [n_experts, HIDDEN]}
    for e in range(n_experts):
        expert = f"model.layers.{i}.block_sparse_moe.experts.{e}"
        shapes |= {f"{expert}.w1.weight": [FFN // 8, HIDDEN], f"{expert}.w2.weight": [HIDDEN, FFN // 8],
                   f"{expert}.w3.weight": [FFN // 8, HIDDEN]}
    return shapes


def layer(i, n_experts=0):
    head = HIDDEN // HEADS
    return feed_forward(i, n_experts) | {
        f"model.layers.{i}.input_layernorm.weight": [HIDDEN],
        f"model.layers.{i}.post_attention_layernorm.weight": [HIDDEN],
        f"model.layers.{i}.self_attn.k_proj.weight": [KV_HEADS * head, HIDDEN],
        f"model.layers.{i}.self_attn.o_proj.weight": [HIDDEN, HIDDEN],
        f"model.layers.{i}.self_attn.q_proj.weight": [HIDDEN, HIDDEN],
        f"model.layers.{i}.self_attn.v_proj.weight": [KV_HEADS * head, HIDDEN],
    }


def bf16(rng, shape):
    """Random weights: norms around 1, the rest as models are initialized; the upper halves of 32-bit floats."""
    if len(shape) == 1:
        floats = 1 + 0.1 * rng.standard_normal(shape, dtype=np.float32)
    else:
        floats = 0.02 * rng.standard_normal(shape, dtype=np.float32)
    return (floats.view(np.uint32) >> 16).astype("<u2")


def write_tokenizer(directory):
    with open(directory / "tokenizer.model", "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            input=str(FIXTURE / "corpus.txt"),
            model_writer=model,
            model_type="bpe",
            vocab_size=1024,
            byte_fallback=True,
            minloglevel=2,
        )


SIZES = {"F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4}


def write_safetensors(path, tensors):
    """A file of tensors: name, type, shape, and a function that makes the values, one tensor at a time."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, ty, shape, _ in tensors:
        n_bytes = SIZES[ty] * int(np.prod(shape))
        header[name] = {"dtype": ty, "shape": shape, "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, values in tensors:
            values().tofile(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--experts", type=int, default=0)
    args = parser.parse_args()

    args.directory.mkdir(parents=True, exist_ok=True)
    (args.directory / "config.json").write_text(json.dumps(config(args.layers, args.experts), indent=2) + "\n")
    write_tokenizer(args.directory)

    groups = [{"model.embed_tokens.weight": [VOCAB, HIDDEN]}]
    groups += [layer(i, args.experts) for i in range(args.layers)]
    groups += [{"model.norm.weight": [HIDDEN], "lm_head.weight": [VOCAB, HIDDEN]}]
    rng = np.random.default_rng(0)
    weight_map = {}
    for shard in range(args.shards):
        first, last = (len(groups) * i // args.shards for i in (shard, shard + 1))
        shapes = {name: shape for group in groups[first:last] for name, shape in group.items()}
        file = f"model-{shard + 1:05}-of-{args.shards:05}.safetensors" if args.shards > 1 else "model.safetensors"
        tensors = [(name, "BF16", shape, functools.partial(bf16, rng, shape)) for name, shape in shapes.items()]
        write_safetensors(args.directory / file, tensors)
        weight_map |= dict.fromkeys(shapes, file)
    if args.shards > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (args.directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    main()
