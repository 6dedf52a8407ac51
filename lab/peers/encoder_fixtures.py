#!/usr/bin/env python3
"""Writes fixtures/encoders/<case>.json: encoders without a case in the conformance corpus, and what transformers computes
for them.

Usage: encoder_fixtures.py FIXTURES_DIR    (needs torch and transformers)

Weights are those of annotate_fixtures.py. A case has the configuration,
names and shapes of the tensors, token ids, and the final hidden state of each token: float32, eager attention.
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModel

from annotate_fixtures import FULL, SLIDING, decoder, weights

LENGTH = 40
CASES = {
    # The window is halved to 4 tokens on each side, far fewer than there are.
    "gemma_embedding": decoder("gemma3_text", "Gemma3TextModel", 7, head_dim=8, sliding_window=8, query_pre_attn_scalar=8,
                               use_bidirectional_attention=True, rope_theta=1000000.0, rope_local_base_freq=100.0,
                               layer_types=[SLIDING] * 5 + [FULL, SLIDING]),
}


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    for name, values in CASES.items():
        model = AutoModel.from_config(AutoConfig.for_model(**values), attn_implementation="eager").float().eval()
        state = {key: list(value.shape) for key, value in sorted(model.state_dict().items())}
        model.load_state_dict({key: weights(k, key, shape) for k, (key, shape) in enumerate(state.items())})
        tokens = torch.randint(3, values["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            hidden = model(tokens[None]).last_hidden_state[0]
        result = {"reference": f"transformers {transformers.__version__}, float32, eager attention", "config": values,
                  "tensors": state, "tokens": tokens.tolist(),
                  "hidden": [[round(x, 5) for x in row] for row in hidden.tolist()]}
        (out / f"{name}.json").write_text(json.dumps(result) + "\n")
        print(name, len(json.dumps(result)), f"max |state| {hidden.abs().max():.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
