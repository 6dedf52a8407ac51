#!/usr/bin/env python3
"""Writes fixtures/native: small quantized checkpoints and what llama.cpp's converter makes of them, and its results for
checkpoints of the conformance corpus.

Usage: native_fixtures.py LLAMA_CPP_DIR FIXTURES_DIR [CORPUS_DIR]    (needs torch, transformers, safetensors, gguf)

The converter runs with its vocabulary step replaced by its own `none` vocabulary. NVFP4 is compared with
`--outtype bf16`, which is what `--type native` gives where everything else is BF16; FP8 with `--fp8-as-q8`.
"""
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import converter
from timing import sha256

LLAMA_CPP, FIXTURES = Path(sys.argv[1]), Path(sys.argv[2])
CORPUS = Path(sys.argv[3]) if len(sys.argv) > 3 else None
converter.use(LLAMA_CPP)
import gguf  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

H, V, HEADS, KV, HEAD = 64, 32, 4, 2, 16
G = torch.Generator()


def random(*shape):
    return torch.randn(*shape, generator=G)


def linear(t, name, rows, cols):
    t[name + ".weight"] = (random(rows, cols) * 0.1).bfloat16()


def nvfp4(t, name, rows, cols, factor=None, activations=True):
    """ModelOpt's form: codes, scales of 16 columns, a factor for the matrix, and one for its input."""
    t[name + ".weight"] = torch.randint(0, 256, (rows, cols // 2), generator=G, dtype=torch.uint8)
    t[name + ".weight_scale"] = (random(rows, cols // 16).abs() + 0.1).to(torch.float8_e4m3fn)
    t[name + ".weight_scale_2"] = (random(1).abs()[0] * 0.01 + 0.001) if factor is None else torch.tensor(factor)
    if activations:
        t[name + ".input_scale"] = random(1).abs()[0] * 0.1 + 0.01


def fp8(t, name, rows, cols, scale=None, block=None):
    t[name + ".weight"] = random(rows, cols).to(torch.float8_e4m3fn)
    if block:
        t[name + ".weight_scale_inv"] = random(-(-rows // block), -(-cols // block)).abs() * 0.1 + 0.01
    else:
        t[name + ".weight_scale"] = torch.tensor(scale)
        t[name + ".input_scale"] = torch.tensor(0.5)


def decoder(put, n=1, mlp=64, qk_norm=False, experts=0, head=None):
    t = {"model.embed_tokens.weight": (random(V, H) * 0.1).bfloat16(), "model.norm.weight": torch.ones(H).bfloat16()}
    for layer in range(n):
        b = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            t[b + norm + ".weight"] = (1 + random(H) * 0.1).bfloat16()
        if qk_norm:
            for norm in ("q_norm", "k_norm"):
                t[b + f"self_attn.{norm}.weight"] = (1 + random(HEAD) * 0.1).bfloat16()
        for name, rows, cols in (("q", HEADS * HEAD, H), ("k", KV * HEAD, H), ("v", KV * HEAD, H), ("o", H, HEADS * HEAD)):
            put(t, b + f"self_attn.{name}_proj", rows, cols)
        if experts:
            linear(t, b + "mlp.gate", experts, H)
        for e in [f"experts.{e}." for e in range(experts)] or [""]:
            for name, rows, cols in (("gate", mlp, H), ("up", mlp, H), ("down", H, mlp)):
                put(t, b + f"mlp.{e}{name}_proj", rows, cols)
    if head:
        head(t, "lm_head", V, H)
    return t


def config(model_type, arch, **more):
    return {"architectures": [arch], "model_type": model_type, "hidden_size": H, "intermediate_size": 64,
            "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD, "vocab_size": V,
            "num_hidden_layers": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "torch_dtype": "bfloat16", "tie_word_embeddings": True, **more}


def mixed(t, name, rows, cols):
    """FP8 with a power of two for a scale, which BF16 holds, in one module; a factor of 1 in another."""
    if name.endswith("up_proj"):
        fp8(t, name, rows, cols, scale=0.125)
    elif name.endswith("k_proj"):
        nvfp4(t, name, rows, cols, factor=1.0)
    else:
        nvfp4(t, name, rows, cols)


def modelopt(algorithm, **more):
    return {"quant_method": "modelopt", "quant_algo": algorithm, "producer": {"name": "modelopt"}, **more}


def cases():
    llama = dict(model_type="llama", arch="LlamaForCausalLM")
    # A quantized output, FP8 beside FP4, a factor of 1; rows of q and k are permuted; rope factors are generated.
    layers = {"lm_head": {"quant_algo": "W4A16_NVFP4"}, "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
              "model.layers.0.self_attn": {"quant_algo": "NVFP4"}}
    yield ("nvfp4_llama_mixed", ["bf16"], config(
        **llama, tie_word_embeddings=False,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 64},
        quantization_config=modelopt("MIXED_PRECISION", quantized_layers=layers)),
        decoder(mixed, head=nvfp4))
    yield ("nvfp4_qwen3_w4a16", ["bf16"], config("qwen3", "Qwen3ForCausalLM",
                                                 quantization_config=modelopt("W4A16_NVFP4")),
           decoder(lambda *a: nvfp4(*a, activations=False), qk_norm=True))
    # Eleven experts: in the order of names the last one is number 9.
    yield ("nvfp4_qwen3moe", ["bf16"], config(
        "qwen3_moe", "Qwen3MoeForCausalLM", num_experts=11, num_experts_per_tok=2, moe_intermediate_size=64,
        quantization_config=modelopt("NVFP4")), decoder(nvfp4, qk_norm=True, experts=11))
    yield ("fp8_qwen3moe", ["fp8_as_q8 f16", "fp8_as_q8 f32"], config(
        "qwen3_moe", "Qwen3MoeForCausalLM", num_experts=2, num_experts_per_tok=2, moe_intermediate_size=48,
        quantization_config={"quant_method": "fp8", "weight_block_size": [32, 32]}),
        decoder(lambda *a: fp8(*a, block=32), mlp=48, qk_norm=True, experts=2))


def convert(folder, what):
    *switches, outtype = what.split()
    with tempfile.TemporaryDirectory() as tmp:
        out = Path(tmp) / "model.gguf"
        converter.convert(folder, outtype, out, **{switch: True for switch in switches})
        reader = gguf.GGUFReader(out)
        tensors = [[t.name, t.tensor_type.name, hashlib.sha256(t.data.tobytes()).hexdigest()] for t in reader.tensors]
        return {"sha256": sha256(out), "tensors": tensors}


MANIFEST = """origin = "random weights in the layout of the method; expect.json is what llama.cpp 0.5.0 makes of them"
licence = "as the repository"
script = "lab/peers/native_fixtures.py"

[files]
"""


def dump(value):
    """One line for each result: the checksums are not for reading."""
    rows = [f" {json.dumps(key)}: {json.dumps(value[key])}" for key in value]
    return "{\n" + ",\n".join(rows) + "\n}\n"


for name, whats, settings, tensors in cases():
    folder = FIXTURES / name / "hf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    save_file({k: v.contiguous() for k, v in sorted(tensors.items())}, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)
    (FIXTURES / name / "expect.json").write_text(dump({what: convert(folder, what) for what in whats}))
    sums = [f'"{file}" = "{sha256(FIXTURES / name / file)}"\n'
            for file in ("expect.json", "hf/config.json", "hf/model.safetensors")]
    (FIXTURES / name / "MANIFEST.toml").write_text(MANIFEST + "".join(sums))

if CORPUS:
    results = {}
    for name in ("ct-nvfp4", "ct-nvfp4a16", "modelopt-nvfp4", "modelopt-nvfp4-qwen3moe", "modelopt-nvfp4-sidecar"):
        results[f"prequant/{name} bf16"] = convert(CORPUS / "prequant" / name / "hf", "bf16")["sha256"]
    fp8_cases = ["arch/llama_fp8_block", "arch/llama_ct_fp8_channel"] + [
        f"prequant/{name}" for name in ("ct-fp8-block", "ct-fp8-dynamic", "fp8-block-transformers", "fp8-block128",
                                        "fp8-block128-ragged", "fp8-block64x32", "fp8-tensor-scale-inv", "modelopt-fp8",
                                        "ct-int8-w8a8", "fp8-block-qwen3moe")]
    for name in fp8_cases:
        for outtype in ("bf16", "f16", "f32"):
            what = f"fp8_as_q8 {outtype}"
            try:
                results[f"{name} {what}"] = convert(CORPUS / name / "hf", what)["sha256"]
            except Exception as error:
                print(f"{name}: {error!r}")
    (FIXTURES / "corpus.json").write_text(dump(results))
