#!/usr/bin/env python3
"""Holds `gguf-convert merge-lora` against PEFT's `merge_and_unload`: small random models, adapters of each form.

Usage: merge_lora.py PROGRAMS   (the directory of gguf-convert)

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
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

LLAMA = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
GPT2 = dict(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "plain": (LLAMA, dict(r=4, lora_alpha=8, target_modules=LINEAR)),
    "rslora": (LLAMA, dict(r=9, lora_alpha=8, target_modules=LINEAR, use_rslora=True)),
    "patterns": (LLAMA, dict(r=4, lora_alpha=8, target_modules=LINEAR, rank_pattern={"q_proj": 2, "layers.1.mlp.up_proj": 16},
                             alpha_pattern={"q_proj": 3, "layers.1.mlp.up_proj": 5})),
    "embedding": (LLAMA, dict(r=4, lora_alpha=8, target_modules=["q_proj", "embed_tokens", "lm_head"])),
    "saved": (LLAMA, dict(r=4, lora_alpha=8, target_modules=["v_proj"], modules_to_save=["lm_head", "norm"])),
    "bias": (LLAMA | dict(attention_bias=True), dict(r=4, lora_alpha=8, target_modules=["q_proj"], bias="lora_only")),
    "conv1d": (GPT2, dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "conv1d_rslora": (GPT2, dict(r=4, lora_alpha=8, target_modules=["c_attn", "wte"], use_rslora=True, fan_in_fan_out=True)),
}


def tensors(path):
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}


def main():
    convert = Path(sys.argv[1]) / "gguf-convert"
    wrong = []
    for name, (config, settings) in CASES.items():
        torch.manual_seed(1)
        base = GPT2LMHeadModel(GPT2Config(**config)) if config is GPT2 else LlamaForCausalLM(LlamaConfig(**config))
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
