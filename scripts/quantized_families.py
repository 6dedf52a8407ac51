#!/usr/bin/env python3
"""One quantized checkpoint of each family: converted, and compared with its own source by gguf-verify.

Usage: quantized_families.py OUTPUT_DIRECTORY [--programs target/release] [--chunks 16] [FAMILY...]

The linear weights of the bundled model are rounded to the nearest code and laid out as the tool of each family saves
them (the mixtures of experts get random weights). Each checkpoint becomes a `native` and an f32 file; gguf-verify
compares both with the checkpoint as the baseline, and the checkpoint with the model of floats it was made from. Prints a
Markdown table; fails if a divergence between file and checkpoint is 1e-6 or more. Needs numpy.
"""

import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
FLOATS = ROOT / "fixtures" / "tiny-llama"
GROUP = 32
LIMIT = 1e-6
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate([FP4, -FP4])
NF4 = np.array([-1.0, -0.6961928, -0.5250731, -0.39491748, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803,
                0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0], np.float32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def e4m3_values():
    """Values of the 256 codes of E4M3; NaN for 0x7F and 0xFF."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


E4M3 = e4m3_values()


def nearest(values, x):
    """Index of the value next to each element of x; NaN is never next."""
    order = np.argsort(values, kind="stable")[: np.count_nonzero(~np.isnan(values))]
    middles = (values[order][1:] + values[order][:-1]) / 2
    return order[np.searchsorted(middles, x)].astype(np.uint8)


def bf16(x):
    """Rounded to nearest even; the bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


# ---- safetensors: a tensor is (type name, array whose bytes are written) ----

DTYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "int8": "I8", "uint8": "U8"}


def plain(array):
    return DTYPES[array.dtype.name], array


def as_f16(x):
    return x.astype(np.float16)


def as_bf16(x):
    return "BF16", bf16(x)


def as_e4m3(codes):
    return "F8_E4M3", codes


def read_safetensors(path):
    """All tensors of a file of BF16 and F32, as floats."""
    data = path.read_bytes()
    (n_header,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n_header])
    tensors = {}
    for name, meta in header.items():
        if name != "__metadata__":
            first, last = (8 + n_header + at for at in meta["data_offsets"])
            dtype = {"BF16": "<u2", "F32": "<f4"}[meta["dtype"]]
            array = np.frombuffer(data[first:last], dtype).reshape(meta["shape"])
            tensors[name] = from_bf16(array) if meta["dtype"] == "BF16" else array
    return tensors


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


# ---- codes ----


def grouped(w, group):
    return w.reshape(w.shape[0], w.shape[1] // group, group)


def symmetric(w, bits, group, narrow=as_f16):
    """Codes around 2^(bits-1) [rows, columns], scales [rows, groups] rounded as they are stored."""
    half = 2 ** (bits - 1)
    blocks = grouped(w, group)
    scale = narrow(np.abs(blocks).max(2) / (half - 0.5)).astype(np.float32)
    codes = np.clip(np.rint(blocks / np.maximum(scale, 1e-12)[:, :, None]) + half, 0, 2 * half - 1)
    return codes.reshape(w.shape).astype(np.int64), scale


def asymmetric(w, bits, group):
    """Codes, scales and zero points."""
    blocks, top = grouped(w, group), 2**bits - 1
    low, high = np.minimum(blocks.min(2), 0), np.maximum(blocks.max(2), 0)
    scale = as_f16((high - low) / top).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, top)
    codes = np.clip(np.rint(blocks / scale[:, :, None]) + zero[:, :, None], 0, top)
    return codes.reshape(w.shape).astype(np.int64), scale, zero.astype(np.int64)


def words(codes, bits):
    """Along the last axis, low bits first, into 32-bit words."""
    per_word = 32 // bits
    fields = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, per_word)
    shifts = np.arange(per_word, dtype=np.uint64) * np.uint64(bits)
    return (fields << shifts).sum(-1).astype(np.uint32).view(np.int32)


def nibble_pairs(codes):
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


# ---- families: (module, matrix) to the tensors that stand for it ----


def fp8_block(module, w):
    rows, cols = (-(-n // 128) for n in w.shape)
    padded = np.zeros((rows * 128, cols * 128), np.float32)
    padded[: w.shape[0], : w.shape[1]] = w
    blocks = padded.reshape(rows, 128, cols, 128)
    scale = np.abs(blocks).max((1, 3)) / np.float32(448)
    codes = nearest(E4M3, blocks / scale[:, None, :, None]).reshape(padded.shape)[: w.shape[0], : w.shape[1]]
    return {f"{module}.weight": as_e4m3(codes), f"{module}.weight_scale_inv": plain(scale)}


def fp8_rows(module, w):
    scale = np.abs(w).max(1, keepdims=True) / np.float32(448)
    bound = np.array([1200], np.float32)
    return {f"{module}.weight": as_e4m3(nearest(E4M3, w / scale)), f"{module}.weight_scale": plain(scale),
            f"{module}.input_scale_ub": plain(bound)}


def fp8_tensor(module, w):
    scale = (np.abs(w).max() / np.float32(448)).astype(np.float32)
    return {f"{module}.weight": as_e4m3(nearest(E4M3, w / scale)), f"{module}.weight_scale": plain(scale.reshape(())),
            f"{module}.input_scale": plain(np.ones((), np.float32))}


def gptq(module, w, bits=4, scattered=False):
    n_groups = w.shape[1] // GROUP
    g_idx = np.arange(w.shape[1]) // GROUP
    if scattered:
        g_idx = np.random.default_rng(w.shape[1]).permutation(g_idx)
    order = np.argsort(g_idx, kind="stable")
    codes, scale = symmetric(w[:, order], bits, GROUP)
    codes[:, order] = codes.copy()
    zero = np.full((n_groups, w.shape[0]), 2 ** (bits - 1) - 1)
    return {f"{module}.qweight": plain(words(codes, bits).T), f"{module}.qzeros": plain(words(zero, bits)),
            f"{module}.scales": plain(as_f16(scale.T)), f"{module}.g_idx": plain(g_idx.astype(np.int32))}


def awq(module, w):
    codes, scale, zero = asymmetric(w, 4, GROUP)

    def pack(matrix):
        ordered = matrix.reshape(matrix.shape[0], -1, 8)[:, :, AWQ_ORDER]
        return plain(words(ordered.reshape(matrix.shape), 4))

    return {f"{module}.qweight": pack(codes.T), f"{module}.qzeros": pack(zero.T),
            f"{module}.scales": plain(as_f16(scale.T))}


def ct_pack(module, w):
    codes, scale = symmetric(w, 4, GROUP, lambda x: from_bf16(bf16(x)))
    return {f"{module}.weight_packed": plain(words(codes, 4)), f"{module}.weight_scale": as_bf16(scale),
            f"{module}.weight_shape": plain(np.array(w.shape, np.int64))}


def ct_int8(module, w):
    codes, scale = symmetric(w, 8, w.shape[1], lambda x: from_bf16(bf16(x)))
    return {f"{module}.weight": plain((codes - 128).astype(np.int8)), f"{module}.weight_scale": as_bf16(scale)}


def nvfp4_codes(w):
    """Packed codes, codes of the scales, and the factor of the whole matrix."""
    blocks = grouped(w, 16)
    factor = np.float32(np.abs(w).max() / (448 * 6))
    scale = nearest(E4M3, np.abs(blocks).max(2) / 6 / factor)
    values = np.maximum(E4M3[scale] * factor, 1e-12)
    return nibble_pairs(nearest(FP4, blocks / values[:, :, None]).reshape(w.shape)), scale, factor


def ct_nvfp4(module, w):
    packed, scale, factor = nvfp4_codes(w)
    return {f"{module}.weight_packed": plain(packed), f"{module}.weight_scale": as_e4m3(scale),
            f"{module}.weight_global_scale": plain(np.array([1 / factor], np.float32)),
            f"{module}.input_global_scale": plain(np.array([100], np.float32))}


def modelopt_nvfp4(module, w):
    packed, scale, factor = nvfp4_codes(w)
    return {f"{module}.weight": plain(packed), f"{module}.weight_scale": as_e4m3(scale),
            f"{module}.weight_scale_2": plain(np.array(factor, np.float32)),
            f"{module}.input_scale": plain(np.array(0.01, np.float32))}


def mxfp4_codes(w):
    """Codes of the last axis in blocks of 32, and the exponents."""
    blocks = w.reshape(*w.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.maximum(np.abs(blocks).max(-1), 1e-30))) - 2
    codes = nearest(FP4, blocks / np.exp2(exponent)[..., None].astype(np.float32))
    return nibble_pairs(codes), (exponent + 127).astype(np.uint8)


def ct_mxfp4(module, w):
    packed, scale = mxfp4_codes(w)
    return {f"{module}.weight_packed": plain(packed.reshape(w.shape[0], -1)), f"{module}.weight_scale": plain(scale)}


def bnb_nf4(module, w):
    """Nested: the 8-bit absolute maxima have a map of their own, here an even one."""
    blocks = w.reshape(-1, 64)
    absmax = np.abs(blocks).max(1)
    offset = np.float32(absmax.mean())
    outer = (absmax - offset).reshape(-1, 256)
    nested_absmax = np.abs(outer).max(1)
    nested_map = np.linspace(-1, 1, 256).astype(np.float32)
    inner = nearest(nested_map, outer / nested_absmax[:, None])
    absmax = (nested_map[inner] * nested_absmax[:, None] + offset).reshape(-1, 1)
    codes = nearest(NF4, blocks / absmax).reshape(-1)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(w.shape),
             "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
    state = np.frombuffer(json.dumps(state).encode(), np.uint8)
    weight = f"{module}.weight"
    return {weight: plain((codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None]),
            f"{weight}.absmax": plain(inner.reshape(-1)), f"{weight}.quant_map": plain(NF4),
            f"{weight}.nested_absmax": plain(nested_absmax), f"{weight}.nested_quant_map": plain(nested_map),
            f"{weight}.quant_state.bitsandbytes__nf4": plain(state)}


def bnb_int8(module, w):
    absmax = np.abs(w).max(1)
    codes = np.rint(w / absmax[:, None] * 127).astype(np.int8)
    return {f"{module}.weight": plain(codes), f"{module}.SCB": plain(absmax),
            f"{module}.weight_format": plain(np.zeros((), np.uint8))}


def hqq(module, w):
    codes, scale, zero = asymmetric(w, 4, 64)
    codes = codes.reshape(-1, 64)
    half = len(codes) // 2
    number = {"nbits": 4, "group_size": 64, "axis": 1}
    flags = {"view_as_float": 0, "quant_scale": 0, "quant_zero": 0, "channel_wise": 1}
    parts = {"W_q": plain((codes[:half] << 4 | codes[half:]).astype(np.uint8)),
             "scale": plain(as_f16(scale.reshape(-1, 1))), "zero": plain(as_f16(zero.reshape(-1, 1))),
             "shape": plain(np.array(w.shape, np.int64)), "packing": plain(np.frombuffer(b"4bit_u8", np.uint8))}
    parts |= {key: plain(np.array(value, np.int32)) for key, value in number.items()}
    parts |= {key: plain(np.array(value, np.uint8)) for key, value in flags.items()}
    return {f"{module}.{key}": value for key, value in parts.items()}


def quanto(module, w):
    codes, scale = symmetric(w, 8, w.shape[1])
    one = plain(np.ones((), np.float16))
    return {f"{module}.weight._data": plain((codes - 128).astype(np.int8)),
            f"{module}.weight._scale": plain(as_f16(scale)), f"{module}.input_scale": one,
            f"{module}.output_scale": one}


def bitnet(module, w):
    """Ternary, the scale multiplied."""
    scale = from_bf16(bf16(np.abs(w).mean(keepdims=True)[0]))
    ternary = (np.clip(np.rint(w / scale), -1, 1) + 1).astype(np.uint8).reshape(4, -1, w.shape[1])
    packed = ternary[0] | ternary[1] << 2 | ternary[2] << 4 | ternary[3] << 6
    return {f"{module}.weight": plain(packed), f"{module}.weight_scale": as_bf16(scale)}


def ct(kind, weights):
    weights = {"dynamic": False, "symmetric": True} | weights
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", "format": kind,
            "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "format": kind}}}


def gptq_config(bits, desc_act):
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": True, "desc_act": desc_act,
            "checkpoint_format": "gptq"}


FAMILIES = {
    "FP8, blocks of 128 x 128": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8_block),
    "FP8, rows (fbgemm)": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, fp8_rows),
    "GPTQ 4 bit": (gptq_config(4, False), gptq),
    "GPTQ 4 bit, activation order": (gptq_config(4, True), lambda m, w: gptq(m, w, scattered=True)),
    "GPTQ 8 bit": (gptq_config(8, False), lambda m, w: gptq(m, w, bits=8)),
    "AWQ": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, awq),
    "AutoRound": ({"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": True,
                   "packing_format": "auto_round:auto_gptq"}, gptq),
    "compressed-tensors W4A16": (ct("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group",
                                                       "group_size": GROUP}), ct_pack),
    "compressed-tensors W8A8": (ct("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}), ct_int8),
    "compressed-tensors NVFP4": (ct("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "group_size": 16,
                                                             "strategy": "tensor_group"}), ct_nvfp4),
    "compressed-tensors MXFP4": (ct("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "group_size": 32,
                                                             "strategy": "group"}), ct_mxfp4),
    "bitsandbytes NF4, nested": ({"quant_method": "bitsandbytes", "load_in_4bit": True,
                                  "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, bnb_nf4),
    "bitsandbytes 8 bit": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_int8),
    "ModelOpt FP8": ({"quant_method": "modelopt", "quant_algo": "FP8", "producer": {"name": "modelopt"},
                      "ignore": ["lm_head"]}, fp8_tensor),
    "ModelOpt NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"},
                        "ignore": ["lm_head"]}, modelopt_nvfp4),
    "HQQ 4 bit": ({"quant_method": "hqq", "skip_modules": ["lm_head"],
                   "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1,
                                                            "view_as_float": False}}}, hqq),
    "quanto int8": ({"quant_method": "quanto", "weights": "int8", "activations": None}, quanto),
    "BitNet": ({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}, bitnet),
}


# ---- models ----


def bundled(folder, quantization, pack):
    """The bundled model with its linear weights packed."""
    tensors = {}
    for name, array in read_safetensors(FLOATS / "model.safetensors").items():
        module = name.removesuffix(".weight")
        packed = pack(module, array) if module.endswith("_proj") else {name: as_bf16(array)}
        tensors |= packed
    write(folder, json.loads((FLOATS / "config.json").read_text()) | {"quantization_config": quantization}, tensors)


EXPERTS, HIDDEN, FFN = 4, 128, 96


def attention(rng, layer, head, heads, kv_heads, bias=False):
    shapes = {"q_proj": (heads * head, HIDDEN), "k_proj": (kv_heads * head, HIDDEN),
              "v_proj": (kv_heads * head, HIDDEN), "o_proj": (HIDDEN, heads * head)}
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"{layer}.self_attn.{name}.weight"] = as_bf16(rng.normal(0, 0.08, shape))
        if bias:
            tensors[f"{layer}.self_attn.{name}.bias"] = as_bf16(rng.normal(0, 0.02, shape[0]))
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{layer}.{name}.weight"] = as_bf16(1 + rng.normal(0, 0.1, HIDDEN))
    return tensors


def mixture(model_type, name, **extra):
    return {"architectures": [name], "model_type": model_type, "hidden_size": HIDDEN, "num_hidden_layers": 2,
            "intermediate_size": FFN, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "num_experts_per_tok": 2, "vocab_size": 1024, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "torch_dtype": "bfloat16"} | extra


def outer(rng):
    return {"model.embed_tokens.weight": as_bf16(rng.normal(0, 1, (1024, HIDDEN))),
            "model.norm.weight": as_bf16(1 + rng.normal(0, 0.1, HIDDEN)),
            "lm_head.weight": as_bf16(rng.normal(0, 0.08, (1024, HIDDEN)))}


def gpt_oss(folder):
    rng = np.random.default_rng(1)
    tensors = outer(rng)
    for i in range(2):
        layer = f"model.layers.{i}"
        tensors |= attention(rng, layer, 32, 4, 2, bias=True)
        tensors[f"{layer}.self_attn.sinks"] = as_bf16(rng.normal(0, 1, 4))
        tensors[f"{layer}.mlp.router.weight"] = as_bf16(rng.normal(0, 0.08, (EXPERTS, HIDDEN)))
        tensors[f"{layer}.mlp.router.bias"] = as_bf16(rng.normal(0, 0.1, EXPERTS))
        for name, shape in {"gate_up_proj": (EXPERTS, 2 * FFN, HIDDEN), "down_proj": (EXPERTS, HIDDEN, FFN)}.items():
            blocks, scales = mxfp4_codes(rng.normal(0, 0.08, shape).astype(np.float32))
            tensors[f"{layer}.mlp.experts.{name}_blocks"] = plain(blocks)
            tensors[f"{layer}.mlp.experts.{name}_scales"] = plain(scales)
            tensors[f"{layer}.mlp.experts.{name}_bias"] = as_bf16(rng.normal(0, 0.02, shape[:2]))
    yarn = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 128}
    config = mixture("gpt_oss", "GptOssForCausalLM", num_local_experts=EXPERTS, sliding_window=64, attention_bias=True,
                     layer_types=["sliding_attention", "full_attention"], rope_scaling=yarn, rope_theta=150000,
                     swiglu_limit=7.0, tie_word_embeddings=False, quantization_config={"quant_method": "mxfp4"})
    write(folder, config, tensors)


def qwen3_moe(folder):
    rng = np.random.default_rng(2)
    tensors = outer(rng)
    for i in range(2):
        layer = f"model.layers.{i}"
        for name, (_, bits) in attention(rng, layer, 32, 4, 2).items():
            module = name.removesuffix(".weight")
            floats = from_bf16(bits)
            tensors |= fp8_block(module, floats) if floats.ndim == 2 else {name: as_bf16(floats)}
        for norm in ("q_norm", "k_norm"):
            tensors[f"{layer}.self_attn.{norm}.weight"] = as_bf16(1 + rng.normal(0, 0.1, 32))
        tensors[f"{layer}.mlp.gate.weight"] = as_bf16(rng.normal(0, 0.08, (EXPERTS, HIDDEN)))
        for expert in range(EXPERTS):
            shapes = {"gate_proj": (FFN, HIDDEN), "up_proj": (FFN, HIDDEN), "down_proj": (HIDDEN, FFN)}
            for name, shape in shapes.items():
                matrix = rng.normal(0, 0.08, shape).astype(np.float32)
                tensors |= fp8_block(f"{layer}.mlp.experts.{expert}.{name}", matrix)
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["mlp.gate"]}
    config = mixture("qwen3_moe", "Qwen3MoeForCausalLM", num_experts=EXPERTS, moe_intermediate_size=FFN,
                     norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rope_theta=10000.0,
                     tie_word_embeddings=False, quantization_config=quantization)
    write(folder, config, tensors)


def write(folder, config, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FLOATS / name, folder)
    write_safetensors(folder / "model.safetensors", tensors)


def makers():
    made = {name: lambda folder, f=family: bundled(folder, *f) for name, family in FAMILIES.items()}
    return made | {"gpt-oss, MXFP4 experts": gpt_oss, "Qwen 3 with experts, FP8 blocks": qwen3_moe}


# ---- the measurement ----


def run(program, *args):
    result = subprocess.run([str(program), *map(str, args), "--quiet", "--json"], capture_output=True, text=True)
    # 3 and 4: a verdict, on which the figures do not depend.
    if result.returncode not in (0, 3, 4):
        sys.exit(f"{program.name} {' '.join(map(str, args))}\n{result.stdout}{result.stderr}")
    return json.loads(result.stdout)


def verify(programs, model, baseline, chunks):
    report = run(programs / "gguf-verify", model, "--baseline", baseline, "--prompts", FLOATS / "corpus.txt",
                 "--ctx", 256, "--chunks", chunks)
    return report["kld"]


def types(programs, path):
    """Types of a file that matrices have, by their share of the bytes, the largest first."""
    listed = run(programs / "gguf-inspect", path)["types"]
    listed = sorted(listed, key=lambda row: -row["bytes"])
    return ", ".join(row["type"] for row in listed if row["bytes"] > 0.01 * sum(r["bytes"] for r in listed))


def measure(programs, name, source, chunks):
    """A row of the table, and the largest divergence from the checkpoint."""
    files, worst = {}, 0.0
    cells = [name, f"{(source / 'model.safetensors').stat().st_size / 2**20:.2f}"]
    for output in ("native", "f32"):
        files[output] = source / f"{output}.gguf"
        run(programs / "gguf-convert", "hf2gguf", source, "-o", files[output], "--type", output)
    cells += [f"{files['native'].stat().st_size / 2**20:.2f}", types(programs, files["native"])]
    for path in files.values():
        kld = verify(programs, path, source, chunks)
        worst = max(worst, kld["mean"])
        cells.append(f"{kld['mean']:.1e}")
    if json.loads((source / "config.json").read_text())["model_type"] == "llama":
        cells.append(f"{verify(programs, source, FLOATS, chunks)['mean']:.2g}")
    else:
        cells.append("")
    return cells, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("families", nargs="*", help="all by default")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--chunks", type=int, default=16)
    args = parser.parse_args()
    made = makers()
    unknown = set(args.families) - set(made)
    if unknown:
        parser.error(f"unknown families {sorted(unknown)}, known are {sorted(made)}")

    print("| checkpoint | MiB | `native`, MiB | types | from its source, `native` | f32 | source from the floats |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    failed = []
    for name in args.families or made:
        source = args.output / "".join(c if c.isalnum() else "-" for c in name.lower())
        made[name](source)
        cells, worst = measure(args.programs, name, source, args.chunks)
        print("| " + " | ".join(cells) + " |", flush=True)
        if not worst < LIMIT:
            failed.append(f"{name}: {worst:.1e}")
    if failed:
        sys.exit("divergence from the checkpoint of 1e-6 or more: " + "; ".join(failed))


if __name__ == "__main__":
    main()
