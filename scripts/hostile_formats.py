"""Small good files, and the pieces that they are made of: for hostile_fixtures.py, which breaks them."""

import json
import random
import struct
import zlib

# --- GGUF ---------------------------------------------------------------------------------------------------------

TYPES = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
         "f32": (6, "<f"), "bool": (7, "<B"), "str": (8, None), "arr": (9, None), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}


def s(text):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text


def value(ty, v):
    if ty == "str":
        return s(v)
    if ty == "arr":
        of, items = v
        return struct.pack("<IQ", TYPES[of][0], len(items)) + b"".join(value(of, item) for item in items)
    return struct.pack(TYPES[ty][1], v)


def kv(key, ty, v):
    return s(key) + struct.pack("<I", TYPES[ty][0]) + value(ty, v)


def info(name, dims, ty, offset):
    return s(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", ty, offset)


def gguf(keys=(), infos=(), data=b"", version=3, magic=b"GGUF", n_keys=None, n_tensors=None, alignment=32):
    keys, infos = list(keys), list(infos)
    head = magic + struct.pack("<IQQ", version, len(infos) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(infos)
    if infos:
        head += bytes(-len(head) % alignment)
    return head + data


def floats(rng, n, scale=0.05):
    return struct.pack(f"<{n}f", *[rng.uniform(-scale, scale) for _ in range(n)])


def byte_chars():
    keep = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table, n = {}, 0
    for b in range(256):
        table[b] = chr(b) if b in keep else chr(256 + n)
        n += b not in keep
    return table


N_EMBD, N_FF, N_HEAD = 32, 32, 2
VOCAB = [byte_chars()[b] for b in range(256)] + ["<|end|>", "th", "he", "the"]


def weights():
    rng = random.Random(1)
    e, f, v = N_EMBD, N_FF, len(VOCAB)
    names = [("token_embd", "model.embed_tokens", [v, e]), ("blk.0.attn_norm", "model.layers.0.input_layernorm", [e]),
             ("blk.0.attn_q", "model.layers.0.self_attn.q_proj", [e, e]), ("blk.0.attn_k", "model.layers.0.self_attn.k_proj", [e, e]),
             ("blk.0.attn_v", "model.layers.0.self_attn.v_proj", [e, e]), ("blk.0.attn_output", "model.layers.0.self_attn.o_proj", [e, e]),
             ("blk.0.ffn_norm", "model.layers.0.post_attention_layernorm", [e]), ("blk.0.ffn_gate", "model.layers.0.mlp.gate_proj", [f, e]),
             ("blk.0.ffn_up", "model.layers.0.mlp.up_proj", [f, e]), ("blk.0.ffn_down", "model.layers.0.mlp.down_proj", [e, f]),
             ("output_norm", "model.norm", [e])]
    out = []
    for ours, theirs, shape in names:
        n = 1
        for d in shape:
            n *= d
        data = struct.pack(f"<{n}f", *[1.0] * n) if len(shape) == 1 else floats(rng, n)
        out.append((ours + ".weight", theirs + ".weight", shape, data))
    return out


def base_keys():
    return [kv("general.architecture", "str", "llama"), kv("general.name", "str", "Base"),
            kv("llama.block_count", "u32", 1), kv("llama.context_length", "u32", 256), kv("llama.embedding_length", "u32", N_EMBD),
            kv("llama.feed_forward_length", "u32", N_FF), kv("llama.attention.head_count", "u32", N_HEAD),
            kv("llama.attention.head_count_kv", "u32", N_HEAD), kv("llama.rope.freq_base", "f32", 10000.0),
            kv("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5), kv("llama.rope.dimension_count", "u32", N_EMBD // N_HEAD),
            kv("llama.vocab_size", "u32", len(VOCAB)), kv("general.file_type", "u32", 0),
            kv("tokenizer.ggml.model", "str", "gpt2"), kv("tokenizer.ggml.pre", "str", "gpt-2"),
            kv("tokenizer.ggml.tokens", "arr", ("str", VOCAB)), kv("tokenizer.ggml.token_type", "arr", ("i32", [1] * 256 + [3, 1, 1, 1])),
            kv("tokenizer.ggml.merges", "arr", ("str", ["t h", "h e", "th e"])), kv("tokenizer.ggml.eos_token_id", "u32", 256)]


def base():
    infos, data = [], b""
    for name, _, shape, bytes_ in weights():
        infos.append(info(name, shape[::-1], 0, len(data)))
        data += bytes_ + bytes(-len(bytes_) % 32)
    return gguf(base_keys(), infos, data)


# --- checkpoints --------------------------------------------------------------------------------------------------

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": N_EMBD, "intermediate_size": N_FF, "num_attention_heads": N_HEAD,
          "num_key_value_heads": N_HEAD, "num_hidden_layers": 1, "vocab_size": len(VOCAB), "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 256, "eos_token_id": 256, "torch_dtype": "float32"}


def safetensors(entries, data, pad=b""):
    text = json.dumps(entries) if not isinstance(entries, (str, bytes)) else entries
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text) + len(pad)) + text + pad + data


def checkpoint():
    entries, data = {}, b""
    for _, name, shape, bytes_ in weights():
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    return entries, data


def tokenizer():
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": 256, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
            "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "vocab": {t: i for i, t in enumerate(VOCAB)}, "merges": ["t h", "h e", "th e"]}}


def zip_of(records):
    out, central = b"", b""
    for name, data in records:
        name = name.encode()
        fields = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 33, zlib.crc32(data), len(data), len(data), len(name), 0)
        central += b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(out)) + name
        out += b"PK\3\4" + fields + name + data
    return out + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, len(records), len(records), len(central), len(out), 0)
