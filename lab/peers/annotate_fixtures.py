#!/usr/bin/env python3
"""Writes fixtures/annotate/<case>.json: models whose configuration says what GGUF has no key for, and what transformers
computes for them.

Usage: annotate_fixtures.py FIXTURES_DIR    (needs torch and transformers)

The weights are not stored: element i of the k-th tensor (by name) follows from a hash of i and k (`weights`), in units
of 2^-16 and 2^-17, which f32 holds exactly. A case has the configuration, names and shapes of the tensors, token ids that
the model itself drew (seed 1), the negative log likelihood of each but the first, and the logits after the last one:
float32, eager attention. Of a model with an encoder `source` is what that reads, and the tokens are the decoder's.

Two models are Llama but for a part of each layer, and transformers has no class of them: theirs is Llama's, with the part
by its formula (the first DeepSeek MoE's experts) or under other names (CogVLM's language experts, of CogVLM 2, whose
files need no more than others have).
"""
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, LlamaForCausalLM

H, I, V, LENGTH = 32, 48, 64, 40
MASK = (1 << 32) - 1


def weights(k, name, shape):
    n = torch.Size(shape).numel()
    values = []
    for i in range(n):
        x = (i * 2654435761 + k * 2246822519 + 12345) & MASK
        x = ((x ^ (x >> 15)) * 2246822519) & MASK
        x = ((x ^ (x >> 13)) * 3266489917) & MASK
        values.append(((x >> 16) - 32768) / 32768)
    t = torch.tensor(values, dtype=torch.float32).reshape(shape)
    return 1 + t / 4 if "norm" in name and name.endswith("weight") else t / 2


def decoder(model_type, name, layers=4, **more):
    return {"architectures": [name], "model_type": model_type, "hidden_size": H, "intermediate_size": I,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers, "vocab_size": V,
            "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, **more}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0}
SLIDING, FULL = "sliding_attention", "full_attention"
CASES = {
    "mistral": decoder("mistral", "MistralForCausalLM", 2, sliding_window=7),
    "mixtral": decoder("mixtral", "MixtralForCausalLM", 2, sliding_window=9, num_local_experts=4, num_experts_per_tok=2),
    "llama_yarn": decoder("llama", "LlamaForCausalLM", 2, rope_theta=30.0, rope_scaling={**YARN, "truncate": False}),
    "qwen2_max_window_layers": decoder("qwen2", "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=6,
                                      max_window_layers=2),
    "qwen2_layer_types": decoder("qwen2", "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=6,
                                layer_types=[SLIDING, FULL, FULL, SLIDING]),
    "qwen2_all_layers": decoder("qwen2", "Qwen2ForCausalLM", 2, use_sliding_window=True, sliding_window=6,
                               max_window_layers=0),
    "qwen3": decoder("qwen3", "Qwen3ForCausalLM", head_dim=16, use_sliding_window=True, sliding_window=5,
                    max_window_layers=3),
    "qwen3_moe": decoder("qwen3_moe", "Qwen3MoeForCausalLM", 2, head_dim=16, use_sliding_window=True, sliding_window=5,
                        max_window_layers=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                        norm_topk_prob=True),
    "smollm3": decoder("smollm3", "SmolLM3ForCausalLM", use_sliding_window=True, sliding_window=6),
    "starcoder2": decoder("starcoder2", "Starcoder2ForCausalLM", 2, sliding_window=8, use_bias=True),
    "gpt_oss": decoder("gpt_oss", "GptOssForCausalLM", 3, head_dim=16, rope_theta=30.0, sliding_window=8, num_local_experts=4,
                      num_experts_per_tok=2, layer_types=[FULL, SLIDING, SLIDING],
                      rope_scaling={**YARN, "truncate": True}),
    "t5": {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": H, "d_kv": 8, "d_ff": I,
           "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": V, "feed_forward_proj": "relu",
           "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "tie_word_embeddings": False,
           "layer_norm_epsilon": 1e-6, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    "llama4": decoder("llama4_text", "Llama4ForCausalLM", head_dim=8, intermediate_size_mlp=I, num_local_experts=4,
                      num_experts_per_tok=2, interleave_moe_layer_step=2, attention_chunk_size=7, attn_scale=0.25,
                      floor_scale=6),
    "deepseek": decoder("deepseek", "DeepseekForCausalLM", 3, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2,
                        moe_intermediate_size=16, first_k_dense_replace=1, norm_topk_prob=True, scoring_func="softmax",
                        rms_norm_eps=1e-6),
    "cogvlm2": {key: value for key, value in
                decoder("cogvlm", "CogVLMForCausalLM", 2, num_multi_query_heads=2, rms_norm_eps=1e-6).items()
                if key not in ("rope_theta", "num_key_value_heads")},
}


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(H, width, bias=False), nn.Linear(H, width, bias=False)
        self.down_proj = nn.Linear(width, H, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """Softmax over all experts, of which the best are added, and the shared ones."""

    def __init__(self, values):
        super().__init__()
        width, n = values["moe_intermediate_size"], values["n_routed_experts"]
        self.n_used, self.normed = values["num_experts_per_tok"], values["norm_topk_prob"]
        self.gate = nn.Linear(H, n, bias=False)
        self.experts = nn.ModuleList([Mlp(width) for _ in range(n)])
        self.shared_experts = Mlp(width * values["n_shared_experts"])

    def forward(self, x):
        weight, chosen = torch.softmax(self.gate(x), -1).topk(self.n_used, -1)
        if self.normed:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        made = torch.stack([expert(x) for expert in self.experts], -2)
        made = torch.gather(made, -2, chosen.unsqueeze(-1).expand(*chosen.shape, H))
        return self.shared_experts(x) + (weight.unsqueeze(-1) * made).sum(-2)


def deepseek(values):
    config = LlamaConfig(**{key: value for key, value in values.items() if key not in ("architectures", "model_type")})
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager")
    for layer in model.model.layers[values["first_k_dense_replace"]:]:
        layer.mlp = Experts(values)
    return model, lambda state: state, lambda state: state


QKV, DENSE = "language_expert_query_key_value.weight", "language_expert_dense"


def cogvlm(values):
    own = {key: value for key, value in values.items() if key not in ("architectures", "model_type")}
    own |= {"num_key_value_heads": values["num_multi_query_heads"], "rope_theta": 500000.0}
    model = LlamaForCausalLM._from_config(LlamaConfig(**own), attn_implementation="eager")

    def named(state):
        joined = {}
        for key, shape in state.items():
            if "self_attn." in key and not key.endswith("o_proj.weight"):
                key = key.rsplit("self_attn.", 1)[0] + "self_attn." + QKV
                shape = [joined.get(key, [0])[0] + shape[0], H]
            joined[key.replace("mlp.", "mlp.language_mlp.").replace("o_proj", DENSE)] = shape
        return dict(sorted(joined.items()))

    def cut(state):
        parts = {}
        for key, value in state.items():
            if key.endswith(QKV):
                size = H // values["num_attention_heads"] * values["num_multi_query_heads"]
                for name, part in zip("qkv", value.split([H, size, size])):
                    parts[key.replace(QKV, f"{name}_proj.weight")] = part
            else:
                parts[key.replace("mlp.language_mlp.", "mlp.").replace(DENSE, "o_proj")] = value
        return parts

    return model, named, cut


STANDINS = {"deepseek": deepseek, "cogvlm2": cogvlm}
# Names of one tensor in a state; the first is stored.
SAME = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    for name, values in CASES.items():
        if name in STANDINS:
            model, named, cut = STANDINS[name](values)
        else:
            config = AutoConfig.for_model(**values)
            auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            model, named, cut = auto.from_config(config, attn_implementation="eager"), lambda x: x, lambda x: x
        model, config = model.float().eval(), model.config
        state = named({key: list(value.shape) for key, value in sorted(model.state_dict().items()) if key not in SAME})
        missing, strange = model.load_state_dict(
            cut({key: weights(k, key, shape) for k, (key, shape) in enumerate(state.items())}), strict=False)
        assert set(missing) <= set(SAME) and not strange, (missing, strange)
        generator = torch.Generator().manual_seed(1)
        source = torch.randint(2, V, (LENGTH,), generator=generator).tolist() if config.is_encoder_decoder else None

        def run(tokens):
            own = torch.tensor([tokens])
            out = model(own) if source is None else model(input_ids=torch.tensor([source]), decoder_input_ids=own)
            return out.logits[0]

        tokens = [5] if source is None else [config.decoder_start_token_id]
        with torch.inference_mode():
            while len(tokens) < LENGTH:
                likely = torch.softmax(run(tokens)[-1], -1)
                tokens.append(int(torch.multinomial(likely, 1, generator=generator)))
            logits = run(tokens)
        nll = -torch.log_softmax(logits.double(), -1)[torch.arange(LENGTH - 1), torch.tensor(tokens[1:])]
        result = {"reference": f"transformers {transformers.__version__}, float32, eager attention", "config": values,
                  "tensors": state, **({} if source is None else {"source": source}), "tokens": tokens,
                  "nll": [round(x, 7) for x in nll.tolist()],
                  "last_logits": [round(x, 6) for x in logits[-1].tolist()]}
        (out / f"{name}.json").write_text(json.dumps(result) + "\n")
        print(name, len(json.dumps(result)), f"nll {nll.mean():.3f} max |logit| {logits.abs().max():.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
