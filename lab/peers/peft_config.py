#!/usr/bin/env python3
"""Writes crates/gguf-conversion/src/lora/peft.tsv: every key of PEFT's adapter_config.json, and what it means to a conversion.

Usage: peft_config.py > crates/gguf-conversion/src/lora/peft.tsv   (with the `peft` package)

A line has a key and its effect, and for three effects a third column:

    read KIND       the conversion reads the key, or the tensors show it; its value is of a kind (none: read elsewhere)
    none            no effect on a trained adapter
    only VALUES     no effect at these values; at others PEFT changes the base model as it loads the adapter
    off WHY         no effect if it is off (null, false, 0, empty); else the adapter is no sum of matrices

Fails if PEFT has a key that has no line here.
"""
import dataclasses
import json
import sys

import peft

READ = """peft_type base_model_name_or_path r lora_alpha rank_pattern alpha_pattern use_rslora ensure_weight_tying use_dora
trainable_token_indices token_indices alora_invocation_tokens target_parameters lora_bias modules_to_save bias""".split()
KINDS = {"map": "alpha_pattern rank_pattern", "text": "base_model_name_or_path bias peft_type invocation_string",
         "switch": "ensure_weight_tying lora_bias use_dora use_rslora", "number": "r"}
# The methods of `init_lora_weights` are told apart below; their own settings count with them.
NONE = """task_type auto_mapping peft_version revision inference_mode target_modules exclude_modules lora_dropout
layers_to_transform layers_pattern megatron_core runtime_config loftq_config eva_config corda_config lora_ga_config
velora_config qalora_group_size fan_in_fan_out init_weights""".split()
ONLY = {"init_lora_weights": [True, False, None, "gaussian", "eva", "orthogonal", "mica"], "layer_replication": [None, []],
        "kasa_config": [None]}
OFF = {
    "use_qalora": "QA-LoRA averages groups of inputs",
    "use_bdlora": "the matrices are block-diagonal (BD-LoRA)",
    "monteclora_config": "the matrices are sampled (Monteclora)",
    "arrow_config": "several adapters are mixed for each token (Arrow)",
    "megatron_config": "the matrices belong to the parallel layers of Megatron",
}
# Keys that older versions and other programs write.
OTHERS = {"invocation_string": "read", "merge_weights": "none", "lora_dtype": "none", "lorap_lr_ratio": "none",
          "unsloth_fixed": "none", "enable_lora": "off\tsome outputs of a joined layer are left out"}


def main():
    rows = {key: "read" for key in READ} | {key: "none" for key in NONE}
    rows |= {key: f"only\t{json.dumps(values)}" for key, values in ONLY.items()}
    rows |= {key: f"off\t{why}" for key, why in OFF.items()} | OTHERS
    rows |= {key: f"read\t{kind}" for kind, keys in KINDS.items() for key in keys.split()}
    known = {field.name for config in (peft.LoraConfig, peft.TrainableTokensConfig) for field in dataclasses.fields(config)}
    if known - rows.keys():
        sys.exit(f"PEFT {peft.__version__} has keys without a line: {', '.join(sorted(known - rows.keys()))}")
    print(f"# Keys of adapter_config.json (PEFT {peft.__version__}). Written by lab/peers/peft_config.py.")
    for key, row in sorted(rows.items()):
        print(f"{key}\t{row}")


main()
