#!/usr/bin/env python3
"""Gradients of the engine next to those of PyTorch, on small random models of several families, dense and with experts.

    gradients.py --programs DIR [--tokens 48] [--seed 1] [--dir DIR]

For each family, two checkpoints are made: one of random weights, and the same with noise. Both are converted in F32. The engine
(`cargo run --release -p gguf-verification --example gradients`, its program is DIR/examples/gradients) and transformers with
autograd compute the gradient of the mean divergence of the second from the first, with respect to every tensor. Rows: the largest
difference of a gradient's element as a share of the largest element of its tensor, over all tensors of an operation. DIR of
--programs holds gguf-convert. Needs torch, transformers and gguf.
"""

import argparse
import os
import re
import subprocess
import tempfile

import gguf
import numpy as np
import torch
import transformers

LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 128, "tie_word_embeddings": False}
FAMILIES = {
    "Llama": LLAMA,
    "Llama, tied": LLAMA | {"tie_word_embeddings": True},
    "Qwen2": {key: value for key, value in LLAMA.items() if key != "head_dim"} | {"use_sliding_window": False},
    "Qwen3": LLAMA,
    "Gemma2": LLAMA | {"query_pre_attn_scalar": 16, "sliding_window": 16, "tie_word_embeddings": True},
    "Gemma3Text": LLAMA | {"query_pre_attn_scalar": 16, "sliding_window": 16, "tie_word_embeddings": True},
    "Granite": LLAMA | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.0},
    "StableLm": LLAMA | {"partial_rotary_factor": 0.5, "use_qkv_bias": True},
    "Phi": LLAMA | {"partial_rotary_factor": 0.5},
    "Mixtral": LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True},
    "Qwen2Moe": {key: value for key, value in LLAMA.items() if key != "head_dim"} | {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48},
    "Olmoe": LLAMA | {"num_experts": 4, "num_experts_per_tok": 2},
}
OPERATIONS = (
    ("embedding, head", r"^(token_embd|output)\."),
    ("norms", r"norm"),
    ("queries, keys", r"attn_[qk]\."),
    ("values", r"attn_v\."),
    ("queries, keys, values in one", r"attn_qkv\."),
    ("outputs of heads", r"attn_output\."),
    ("gates", r"ffn_gate(_shexp|_exps)?\."),
    ("up", r"ffn_up(_shexp|_exps)?\."),
    ("down", r"ffn_down(_shexp|_exps)?\."),
    ("router, gate of shared experts", r"ffn_gate_inp"),
)
# Families whose files have the rows of queries and keys in llama.cpp's order.
ORDERED = ("Llama", "Granite", "Mixtral")


def config_of(family, seed):
    name = family.split(",")[0]
    config = getattr(transformers, name + "Config")(**FAMILIES[family])
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for value in model.parameters():
            value += 0.1 * torch.randn_like(value)
    return name, model.eval()


def tokenizer(folder, n_vocab):
    """The smallest tokenizer that converters accept: byte pairs without pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    own = Tokenizer(models.BPE({f"t{at}" if at else "<s>": at for at in range(n_vocab)}, []))
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<s>", eos_token="<s>").save_pretrained(folder)


def convert(options, model, folder, path):
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer(folder, model.config.vocab_size)
    command = [os.path.join(options.programs, "gguf-convert"), folder, "-o", path, "--type", "f32", "--quiet", "--no-sync",
               "--pre", "gpt-2"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


def gradients(model, reference, tokens):
    ids = torch.tensor([tokens])
    with torch.no_grad():
        goal = reference(ids).logits[0].double().log_softmax(-1)
    found = model(ids).logits[0].double().log_softmax(-1)
    loss = (goal.exp() * (goal - found)).sum(-1).mean()
    loss.backward()
    return loss.item()


def rows_in_order(gradient, n_heads):
    """llama.cpp's order of the rotated pairs."""
    rest = gradient.shape[1:]
    return gradient.reshape(n_heads, 2, -1, *rest).swapaxes(1, 2).reshape(gradient.shape)


def parts(model, names):
    """Name in the file and gradient of every parameter; experts' gates and up projections lie in one."""
    for key, value in model.named_parameters():
        gradient = value.grad.numpy()
        if key.endswith("experts.gate_up_proj"):
            layer = re.search(r"layers\.(\d+)\.", key)[1]
            for name, half in zip(("gate", "up"), np.split(gradient, 2, axis=1)):
                yield f"blk.{layer}.ffn_{name}_exps.weight", half
        elif key.endswith("experts.down_proj"):
            yield f"blk.{re.search(r'layers.(?P<at>[0-9]+)[.]', key)['at']}.ffn_down_exps.weight", gradient
        else:
            yield names.get_name(key, try_suffixes=(".weight", ".bias")), gradient


def compare(options, family, folder):
    name, reference = config_of(family, options.seed)
    model = config_of(family, options.seed)[1]
    with torch.no_grad():
        for value in model.parameters():
            value += 0.02 * torch.randn_like(value)
    for own, part in ((reference, "reference"), (model, "model")):
        convert(options, own, os.path.join(folder, part), os.path.join(folder, part + ".gguf"))
    tokens = np.random.default_rng(options.seed).integers(1, model.config.vocab_size, options.tokens).tolist()
    loss = gradients(model, reference, tokens)
    out = os.path.join(folder, "gradients")
    os.makedirs(out, exist_ok=True)
    paths = [os.path.join(folder, part + ".gguf") for part in ("model", "reference")]
    command = [os.path.join(options.programs, "examples", "gradients"), *paths, ",".join(map(str, tokens)), out]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{family}: {done.stderr.strip()}")
    arch = gguf.GGUFReader(paths[0]).fields["general.architecture"].contents()
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    worst = {}
    for ours, expected in parts(model, names):
        if name in ORDERED and re.search(r"attn_[qk]\.", ours):
            heads = model.config.num_attention_heads if "attn_q." in ours else model.config.num_key_value_heads
            expected = rows_in_order(expected, heads)
        found = np.fromfile(os.path.join(out, ours), np.float32)
        # Rows of the last tokens of the vocabulary have none if the text has not.
        found = np.pad(found, (0, expected.size - found.size)).reshape(expected.shape)
        share = np.abs(found - expected).max() / np.abs(expected).max()
        operation = next(label for label, pattern in OPERATIONS if re.search(pattern, ours))
        worst[operation] = max(worst.get(operation, 0), share)
    return abs(float(done.stdout) / loss - 1), worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir")
    parser.add_argument("--families", default=";".join(FAMILIES))
    options = parser.parse_args()
    labels = [label for label, _ in OPERATIONS]
    print("| family | divergence | " + " | ".join(labels) + " |\n|---|" + "---:|" * (len(labels) + 1))
    for family in options.families.split(";"):
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            loss, worst = compare(options, family, folder)
        cells = [f"{worst[label]:.1e}" if label in worst else "" for label in labels]
        print(f"| {family} | {loss:.1e} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
