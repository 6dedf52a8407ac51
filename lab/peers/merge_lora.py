#!/usr/bin/env python3
"""Holds `gguf-convert merge-lora` against PEFT's `merge_and_unload`: small random models, adapters of each form.

Usage: merge_lora.py PROGRAMS [CASE..]   (the directory of gguf-convert)

Needs torch, transformers, peft and gguf. Both sides become F32 files by gguf-convert; values may differ by rounding alone:
PEFT adds in F32, we in F64.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, pad_token_id=0)
LLAMA = dict(model_type="llama", intermediate_size=96, **SIZES)
GPT2 = dict(model_type="gpt2", vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64)
OSS = dict(model_type="gpt_oss", intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, head_dim=16, **SIZES)
MIXTRAL = dict(model_type="mixtral", intermediate_size=32, num_local_experts=4, **SIZES)
QWEN3_MOE = dict(model_type="qwen3_moe", intermediate_size=96, moe_intermediate_size=48, num_experts=4, head_dim=16, **SIZES)
GLM4_MOE = dict(model_type="glm4_moe", intermediate_size=96, moe_intermediate_size=32, n_routed_experts=4, n_shared_experts=1,
                num_experts_per_tok=2, first_k_dense_replace=1, head_dim=16, **SIZES)
GRANITE = dict(model_type="granitemoe", intermediate_size=48, num_local_experts=4, num_experts_per_tok=2, **SIZES)
LLAMA4 = dict(model_type="llama4_text", intermediate_size=48, intermediate_size_mlp=96, num_local_experts=4, head_dim=16, **SIZES)
EXPERTS = dict(r=2, lora_alpha=6, target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"])
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "plain": (LLAMA, dict(r=4, lora_alpha=8, target_modules=LINEAR)),
    "rslora": (LLAMA, dict(r=9, lora_alpha=8, target_modules=LINEAR, use_rslora=True)),
    "patterns": (LLAMA, dict(r=4, lora_alpha=8, target_modules=LINEAR, rank_pattern={"q_proj": 2, "layers.1.mlp.up_proj": 16},
                             alpha_pattern={"q_proj": 3, "layers.1.mlp.up_proj": 5})),
    "embedding": (LLAMA, dict(r=4, lora_alpha=8, target_modules=["q_proj", "embed_tokens", "lm_head"])),
    "saved": (LLAMA, dict(r=4, lora_alpha=8, target_modules=["v_proj"], modules_to_save=["lm_head", "norm"])),
    "bias": (LLAMA | dict(attention_bias=True), dict(r=4, lora_alpha=8, target_modules=["q_proj"], bias="lora_only")),
    "lora_bias": (LLAMA | dict(attention_bias=True), dict(r=4, lora_alpha=8, target_modules=["q_proj", "o_proj"], lora_bias=True)),
    "experts_gpt_oss": (OSS, EXPERTS),
    "experts_gpt_oss_down": (OSS, EXPERTS | dict(target_parameters=["experts.down_proj"])),
    "experts_mixtral": (MIXTRAL, EXPERTS),
    "experts_qwen3_moe": (QWEN3_MOE, EXPERTS | dict(use_rslora=True, rank_pattern={"experts.down_proj": 3})),
    "experts_glm4_moe": (GLM4_MOE, EXPERTS | dict(alpha_pattern={"experts.gate_up_proj": 1})),
    "experts_granite": (GRANITE, EXPERTS),
    "experts_llama4": (LLAMA4, EXPERTS),
    "conv1d": (GPT2, dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "conv1d_rslora": (GPT2, dict(r=4, lora_alpha=8, target_modules=["c_attn", "wte"], use_rslora=True, fan_in_fan_out=True)),
}


def tensors(path):
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}


def applied(base, adapter):
    """Returns the base's tensors with a GGUF adapter, as a runtime computes them."""
    found = gguf.GGUFReader(adapter)
    alpha = found.fields["adapter.lora.alpha"].contents()
    pairs = {tensor.name: tensor.data for tensor in found.tensors}
    sums = dict(base)
    for name, a in ((name, data) for name, data in pairs.items() if name.endswith(".lora_a")):
        b = pairs[name[:-1] + "b"]
        a = a.T if "token_embd" in name else a
        product = (b.astype(np.float64) @ a) * (alpha / b.shape[-1])
        name = name[:-7]
        sums[name] = base[name] + (product.T if "token_embd" in name else product)
    return sums


def main():
    convert = Path(sys.argv[1]) / "gguf-convert"
    wrong = []
    chosen = sys.argv[2:] or CASES
    for name, (config, settings) in ((name, CASES[name]) for name in chosen):
        torch.manual_seed(1)
        base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)
            base.save_pretrained(work / "base")
            model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
            with torch.no_grad():
                # B begins as zeros, and what is saved whole as the model's own.
                for key, value in model.named_parameters():
                    if value.requires_grad:
                        value.copy_(torch.randn_like(value) * 0.1)
            model.save_pretrained(work / "adapter")
            fresh = AutoModelForCausalLM.from_pretrained(work / "base")
            PeftModel.from_pretrained(fresh, work / "adapter").merge_and_unload().save_pretrained(work / "merged")
            common = ["--type", "f32", "--no-tokenizer", "--no-sync", "--quiet", "-o"]
            subprocess.run([convert, "merge-lora", work / "base", work / "adapter", *common, work / "ours.gguf"], check=True)
            subprocess.run([convert, "hf2gguf", work / "merged", *common, work / "theirs.gguf"], check=True)
            subprocess.run([convert, "hf2gguf", work / "base", *common, work / "base.gguf"], check=True)
            ours, theirs, before = (tensors(work / f"{side}.gguf") for side in ["ours", "theirs", "base"])
            lora = subprocess.run([convert, "lora2gguf", work / "adapter", "--base", work / "base", "--scale-alpha", "--no-sync",
                                   "-o", work / "lora.gguf"], capture_output=True, text=True)
            if lora.returncode:
                print(f"{name}: lora2gguf: {lora.stderr.splitlines()[0]}")
            else:
                sums = applied(before, work / "lora.gguf")
                far = max(float(np.abs(sums[key] - theirs[key]).max() / max(np.abs(theirs[key]).max(), 1e-9)) for key in theirs if key in sums)
                print(f"{name}: lora2gguf: largest difference {far:.1e}")
                if far > 1e-6:
                    wrong.append(f"{name} (lora2gguf)")
            # A model whose embeddings are its output is saved by PEFT with both once they differ.
            worst, changed = 0.0, 0
            for tensor in theirs:
                if tensor not in ours:
                    wrong.append(f"{name}: {tensor} is missing")
                    continue
                scale = max(np.abs(theirs[tensor]).max(), 1e-9)
                worst = max(worst, float(np.abs(ours[tensor] - theirs[tensor]).max() / scale))
                changed += not np.array_equal(ours[tensor], before[tensor])
            print(f"{name}: {changed} of {len(ours)} tensors changed, largest difference {worst:.1e} of the largest value")
            if worst > 1e-6 or changed == 0:
                wrong.append(name)
    if wrong:
        sys.exit(f"not as PEFT merges: {', '.join(wrong)}")


main()
