#!/usr/bin/env python3
"""Writes fixtures/heads/<case>.json: models whose outputs are not the next token, and what transformers computes for them.

Usage: head_fixtures.py FIXTURES_DIR    (needs torch and transformers)

Weights are those of annotate_fixtures.py. A case has the configuration, files beside it, names and shapes of the tensors,
and texts as token ids, with

- of rerankers `scores`: for each text the probabilities of "yes" and "no" among the two, behind its last token;
- of masked-language models `nll`: for each text the negative log likelihood of each token where that token alone is
  masked (Salazar et al. 2020), by its position; those of `from` on.

float32, eager attention. LLaDA and Dream are code of their checkpoints: theirs are Llama and Qwen 2 with a mask that hides
nothing, the first under other names; Dream's logits at a token are those of the next one.
"""
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from annotate_fixtures import decoder, weights

YES, NO, MASK = 7, 9, 5
WORDS = {"tokenizer.json": {"added_tokens": [{"content": "yes", "id": YES}, {"content": "no", "id": NO}]}}
MODERN = {"architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert", "hidden_size": 32, "intermediate_size": 48,
          "num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 64, "max_position_embeddings": 64,
          "global_attn_every_n_layers": 3, "local_attention": 8, "pad_token_id": 0, "cls_token_id": 1, "bos_token_id": 1,
          "sep_token_id": 2, "eos_token_id": 2, "reference_compile": False}
LLADA = {"model.embed_tokens": "model.transformer.wte", "model.norm": "model.transformer.ln_f",
         "lm_head": "model.transformer.ff_out", "model.layers": "model.transformer.blocks", "input_layernorm": "attn_norm",
         "self_attn.o_proj": "attn_out", "self_attn.": "", "post_attention_layernorm": "ff_norm", "mlp.gate_proj": "ff_proj",
         "mlp.up_proj": "up_proj", "mlp.down_proj": "ff_out"}
CASES = {
    "qwen3_reranker": decoder("qwen3", "Qwen3ForCausalLM", 2, head_dim=16),
    "qwen3_reranker_tied": decoder("qwen3", "Qwen3ForCausalLM", 2, head_dim=16, tie_word_embeddings=True),
    "modernbert_masked_lm": {**MODERN, "decoder_bias": False},
    "llada": {**decoder("llama", "LLaDAModelLM", 2, rms_norm_eps=1e-5), "mlp_hidden_size": 48, "d_model": 32},
    "dream": decoder("qwen2", "DreamModel", 2, rms_norm_eps=1e-6, mask_token_id=MASK),
}
OTHER_CODE = {"llada": "llada", "dream": "Dream"}


def texts():
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(10, 64, (n,), generator=draw).tolist() for n in (40, 23, 17, 31)]


def scores(model, ids):
    logits = model(torch.tensor([ids])).logits[0, -1]
    return F.softmax(logits[[YES, NO]].double(), -1).tolist()


def masked(model, ids, shift, more):
    """One run for each position."""
    nll = []
    for at in range(shift, len(ids)):
        seen = torch.tensor([ids])
        seen[0, at] = MASK
        logits = model(seen, **more(len(ids))).logits[0, at - shift]
        nll.append(-F.log_softmax(logits.double(), -1)[ids[at]].item())
    return nll


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    for name, values in CASES.items():
        is_masked = values["model_type"] == "modernbert"
        auto = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
        config = AutoConfig.for_model(**values)
        model = auto.from_config(config, attn_implementation="eager").float().eval()
        own = {}
        for key, value in model.state_dict().items():
            if key in ("decoder.weight" if is_masked else "lm_head.weight",) and config.tie_word_embeddings:
                continue
            label = key
            if name == "llada":
                for a, b in LLADA.items():
                    label = label.replace(a, b)
            own[label] = (key, list(value.shape))
        shapes = {label: own[label][1] for label in sorted(own)}
        state = {own[label][0]: weights(k, label, shape) for k, (label, shape) in enumerate(shapes.items())}
        missing, unknown = model.load_state_dict(state, strict=False)
        assert not unknown and all("lm_head" in key or "decoder.weight" in key for key in missing), (missing, unknown)
        model.tie_weights()
        if name in OTHER_CODE:
            values = {**values, "model_type": OTHER_CODE[name]}
        result = {"reference": f"transformers {transformers.__version__}, float32, eager attention", "config": values,
                  "tensors": shapes, "texts": texts()}
        with torch.inference_mode():
            if "reranker" in name:
                result |= {"files": WORDS, "scores": [[round(x, 8) for x in scores(model, ids)] for ids in texts()]}
            else:
                shift = int(name == "dream")
                hides = {} if is_masked else {"attention_mask": None}
                def more(n):
                    return {key: torch.zeros(1, 1, n, n) for key in hides}
                nll = [masked(model, ids, shift, more) for ids in texts()]
                result |= {"mask": MASK, "from": shift, "nll": [[round(x, 6) for x in row] for row in nll]}
        (out / f"{name}.json").write_text(json.dumps(result) + "\n")
        print(name, len(json.dumps(result)), result.get("scores") or [sum(row) / len(row) for row in result["nll"]])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
