#!/usr/bin/env python3
"""Classes of transformers that llama.cpp's converter does not know, under the graphs that compute them: logits of three.

Usage: new_classes.py PROGRAMS [CLASS..] [--keep FOLDER] [--write-fixtures]
       (needs torch, transformers 5.24, llama-cpp-python 0.3.36, for two classes timm)

PROGRAMS is the folder with gguf-convert and gguf-verify. A tiny model of each class in CASES is saved by transformers,
converted to F32, and run by llama.cpp's library and by gguf-verify; the row shows the largest difference of their logits to
those of transformers, over all positions. It is an error if a difference exceeds 1e-3 (with GELU, which llama.cpp looks up in
half precision, 2e-3 of the largest logit), or if the conversion warns. Towers are small; llama.cpp's keys and values are F32.
`--keep` leaves the checkpoints in a folder, `--write-fixtures` writes fixtures/classes and, for all classes, the figures.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

LIMIT = 1e-3
# Buffers that follow from the configuration.
COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
LENGTH = 24
ROOT = Path(__file__).parents[2]
# Warnings that every such model has; of Qianfan, whose names transformers saves otherwise than the release.
EXPECTED = ("tokenizer", "only the text model is written", "`language_model.model.")
GELU = ("GPTJ", "CodeGen", "Mpt", "VaultGemma")
TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 96, "max_position_embeddings": 512, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0}
GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "vocab_size": 96, "rotary_dim": 8, "bos_token_id": 1,
       "eos_token_id": 2}
FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}

TOWER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
         "patch_size": 14}
SIGLIP = {"model_type": "siglip_vision_model", **TOWER}
CLIP = {"model_type": "clip_vision_model", **TOWER}
TIMM = {"model_type": "timm_wrapper", "architecture": "test_vit"}
AUDIO = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "hidden_size": 32,
         "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
VIBE = {"model_type": "vibevoice_acoustic_tokenizer_encoder", "hidden_size": 8, "num_filters": 2, "depths": [1, 1],
        "downsampling_ratios": [2]}
QWEN35 = {"head_dim": 16, "layer_types": 3 * ["linear_attention"] + [FULL], "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                              "mrope_section": [2, 1, 1], "mrope_interleaved": True}}


def text(model_type, **more):
    """The text part of a model of several parts."""
    return {"text_config": {"model_type": model_type, **TEXT, **more}}


CASES = {
    "CwmForCausalLM": {**TEXT, "head_dim": 16, "sliding_window": 6, "rope_parameters": LLAMA3},
    "MinistralForCausalLM": {**TEXT, "head_dim": 24, "sliding_window": 6, "layer_types": [SLIDING, FULL, SLIDING, SLIDING]},
    "HeliumForCausalLM": {**TEXT, "head_dim": 16},
    "MiniMaxForCausalLM": {**TEXT, "num_hidden_layers": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
                           "layer_types": 7 * ["linear_attention"] + [FULL], "full_attn_alpha_factor": 3.5,
                           "linear_attn_alpha_factor": 3.5, "mlp_alpha_factor": 3.5, "full_attn_beta_factor": 0.5,
                           "linear_attn_beta_factor": 1.5, "mlp_beta_factor": 0.75},
    "HyperCLOVAXForCausalLM": {**TEXT, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "embedding_multiplier": 3.0,
                               "logits_scaling": 2.0, "tie_word_embeddings": True},
    "HyperCLOVAXForCausalLM without norms": {**TEXT, "attention_multiplier": 0.2, "residual_multiplier": 0.5,
                                             "embedding_multiplier": 3.0, "logits_scaling": 2.0, "use_post_norm": False},
    "VaultGemmaForCausalLM": {**TEXT, "head_dim": 16, "query_pre_attn_scalar": 20, "layer_types": 4 * [FULL],
                              "attn_logit_softcapping": None, "final_logit_softcapping": None, "tie_word_embeddings": True},
    "GPTJForCausalLM": GPT,
    "CodeGenForCausalLM": GPT,
    "MptForCausalLM": {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 96, "max_seq_len": 512, "expansion_ratio": 4},
    "Mistral4ForCausalLM": {**TEXT, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                            "n_shared_experts": 1, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
                            "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1, "num_key_value_heads": 4},
    "AriaForConditionalGeneration": {
        **text("aria_text", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=2),
        "vision_config": {"model_type": "idefics3_vision", **TOWER}, "projector_patch_to_query_dict": {4: 2}},
    "AriaTextForCausalLM": {**TEXT, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2},
    "MllamaForConditionalGeneration": {
        **text("mllama_text_model", num_hidden_layers=6, cross_attention_layers=[3], rope_parameters=LLAMA3),
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
                          "intermediate_size": 32, "vision_output_dim": 64, "image_size": 28, "patch_size": 14,
                          "intermediate_layers_indices": [0], "max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}},
    "Emu3ForCausalLM": TEXT,
    "BailingHybridForCausalLM": {**TEXT, "num_hidden_layers": 4, "num_local_experts": 8, "num_experts_per_tok": 2, "n_group": 2,
                                 "topk_group": 1, "moe_intermediate_size": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
                                 "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 16, "layer_group_size": 2,
                                 "num_key_value_heads": 4, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
    "Ernie4_5_VLMoeForConditionalGeneration": {
        **text("ernie4_5_vl_moe_text", moe_num_experts=4, moe_k=2, moe_num_shared_experts=2, moe_intermediate_size=[32, 16],
               rope_parameters={"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [3, 3, 2]}),
        "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 14}},
    "GraniteDoclingForConditionalGeneration": {
        **text("granite_docling_text", attention_multiplier=0.2, residual_multiplier=0.5, embedding_multiplier=3.0, logits_scaling=2.0),
        "vision_config": {**TOWER, "out_hidden_size": 64}},
    "Molmo2ForConditionalGeneration": {
        **text("molmo2_text", head_dim=16, additional_vocab_size=8),
        "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                          "num_key_value_heads": 2, "head_dim": 16, "image_default_input_size": [28, 28], "image_num_pos": 4},
        "adapter_config": {"hidden_size": 32, "intermediate_size": 32, "text_hidden_size": 64, "num_attention_heads": 2,
                           "num_key_value_heads": 2, "head_dim": 16, "vit_layers": [0]}},
    "Apertus1p5TextForCausalLM with a cut head": {**TEXT, "rope_parameters": LLAMA3, "output_vocab_size": 80},
    "Phi4MultimodalForCausalLM": {**TEXT, "vision_config": TOWER, "audio_config": {"hidden_size": 32, "intermediate_size": 32,
        "num_blocks": 1, "num_attention_heads": 2, "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 32}},
    "Apertus1p5TextForCausalLM": {**TEXT, "rope_parameters": LLAMA3},
    "CohereCompassForCausalLM": {**TEXT, "tie_word_embeddings": True, "sliding_window": 6,
        "layer_types": 3 * [SLIDING] + [FULL], "logit_scale": 0.5,
                                 "rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 10000.0,
        "mrope_section": [4, 2, 2]}, FULL: None}},
    "AyaVisionForConditionalGeneration": {**text("cohere2", sliding_window=6, layer_types=3 * [SLIDING] + [FULL],
        tie_word_embeddings=True), "vision_config": SIGLIP},
    "Cohere2VisionForConditionalGeneration": {**text("cohere2", sliding_window=6, layer_types=3 * [SLIDING] + [FULL],
        tie_word_embeddings=True), "vision_config": SIGLIP, "alignment_intermediate_size": 32},
    "InternVLForConditionalGeneration": {**text("qwen2"), "vision_config": {**TOWER, "image_size": [28, 28],
        "patch_size": [14, 14]}},
    "QianfanOCRForConditionalGeneration": {**text("qwen3", head_dim=16), "vision_config": {**TOWER, "image_size": [28, 28],
        "patch_size": [14, 14]}},
    "LlavaNextForConditionalGeneration": {**text("mistral"), "vision_config": CLIP},
    "LlavaNextVideoForConditionalGeneration": {**text("llama"), "vision_config": CLIP},
    "LlavaOnevisionForConditionalGeneration": {**text("qwen2"), "vision_config": SIGLIP},
    "VideoLlavaForConditionalGeneration": {**text("llama"), "vision_config": CLIP},
    "VipLlavaForConditionalGeneration": {**text("llama"), "vision_config": CLIP, "vision_feature_layers": [-1]},
    "GotOcr2ForConditionalGeneration": {**text("qwen2"), "vision_config": {**TOWER, "output_channels": 16, "mlp_dim": 32,
        "global_attn_indexes": [0]}},
    "Ovis2ForConditionalGeneration": {**text("qwen2"), "vision_config": {**TOWER, "vocab_size": 32,
        "num_visual_indicator_tokens": 5}, "hidden_size": 64},
    "DeepseekVLForConditionalGeneration": {**text("llama"), "vision_config": SIGLIP},
    "DeepseekVLHybridForConditionalGeneration": {**text("llama"), "vision_config": SIGLIP,
        "high_res_vision_config": {"model_type": "sam_vision_model", **TOWER, "output_channels": 16, "mlp_dim": 32,
        "global_attn_indexes": [0], "image_size": 28}},
    "Idefics2ForConditionalGeneration": {**text("mistral"), "vision_config": TOWER, "perceiver_config": {"hidden_size": 64,
        "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 16, "num_key_value_heads": 1, "resampler_n_latents": 2}},
    "LightOnOcrForConditionalGeneration": {**text("qwen3", head_dim=16), "vision_config": {"model_type": "pixtral", **TOWER,
        "head_dim": 16}},
    "VideoLlama3ForConditionalGeneration": {**text("qwen2"), "vision_config": TOWER},
    "Kimi_K25ForConditionalGeneration": {**text("deepseek_v3", n_routed_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=32, n_shared_experts=1, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=16, first_k_dense_replace=1, num_key_value_heads=4, n_group=1, topk_group=1),
        "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}},
    "GlmAsrForConditionalGeneration": {**text("llama", rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        "audio_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16}},
    "Glm46VForConditionalGeneration": {**text("glm4v_text", rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}), "vision_config": {"hidden_size": 32, "depth": 1,
        "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 32}},
    "VibeVoiceAsrForConditionalGeneration": {**text("qwen2"), "acoustic_tokenizer_encoder_config": VIBE,
        "semantic_tokenizer_encoder_config": VIBE},
    "MiniCPMOcrForConditionalGeneration": {**text("qwen3_5_text", **QWEN35), "vision_config": {**TOWER}, "insert_layer_id": 0},
    "MiniCPMV4_7ForConditionalGeneration": {**text("qwen3_5_text", **QWEN35), "vision_config": {**TOWER}, "insert_layer_id": 0},
    "PerceptionLMForConditionalGeneration": {**text("llama"), "vision_config": {**TIMM, "model_args": {"embed_dim": 64}}},
    "FastVlmForConditionalGeneration": {**text("qwen2"), "vision_config": {**TIMM, "hidden_size": 64}},
    "HyperCLOVAXVisionV2ForConditionalGeneration": {**text("hyperclovax"), "vision_config": {"depth": 1, "hidden_size": 32,
        "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "fullatt_block_indexes": [0]}},
}


MASK = 0xFFFFFFFF


def weight(k, name, shape):
    """Elements of the k-th tensor of a checkpoint: those of lab/peers/annotate_fixtures.py, which the tests make, too."""
    x = (np.arange(np.prod(shape), dtype=np.uint64) * 2654435761 + k * 2246822519 + 12345) & MASK
    x = ((x ^ (x >> 15)) * 2246822519) & MASK
    x = ((x ^ (x >> 13)) * 3266489917) & MASK
    values = torch.from_numpy(((x >> 16).astype(np.float32) - 32768) / 32768).reshape(shape)
    return 1 + values / 4 if "norm" in name and name.endswith("weight") else values / 2


def make(name, folder):
    """Saves a tiny model of a class with the names that transformers gives it; returns token ids and all logits."""
    model_class = getattr(transformers, name.split()[0])
    config = model_class.config_class(**CASES[name])
    model_class(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    shapes = {key: list(value.shape) for key, value in sorted(load_file(path).items()) if not key.endswith(COMPUTED)}
    save_file({key: weight(k, key, shape) for k, (key, shape) in enumerate(shapes.items())}, path, {"format": "pt"})
    model, info = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    odd = {key: value for key, value in info.items() if any(not str(one).endswith(COMPUTED) for one in value)}
    if odd:
        raise ValueError(f"transformers reads its own checkpoint with {odd}")
    n_vocab = 80 if "a cut head" in name else config.get_text_config().vocab_size
    ids = [3 + 5 * i % (n_vocab - 4) for i in range(LENGTH)]
    with torch.no_grad():
        return ids, model.eval()(input_ids=torch.tensor([ids])).logits[0].float(), shapes


def of_llama_cpp(path, ids, n_vocab):
    import llama_cpp as lib

    lib.llama_log_set(QUIET, None)
    params = lib.llama_model_default_params()
    key = (next(value for name, value in header(path) if name == "general.architecture") + ".vocab_size").encode()
    overrides = (lib.llama_model_kv_override * 2)()
    overrides[0].key, overrides[0].tag, overrides[0].value.val_i64 = key, lib.LLAMA_KV_OVERRIDE_TYPE_INT, n_vocab
    params.kv_overrides, params.use_mmap = overrides, False
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        return None
    options = lib.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 64
    options.type_k = options.type_v = lib.GGML_TYPE_F32
    options.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.n_threads = options.n_threads_batch = 1
    context = lib.llama_init_from_model(model, options)
    batch = lib.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    if lib.llama_decode(context, batch):
        return None
    rows = [list(lib.llama_get_logits_ith(context, i)[:n_vocab]) for i in range(len(ids))]
    lib.llama_free(context)
    lib.llama_model_free(model)
    return torch.tensor(rows)


def header(path):
    import gguf

    return ((field.name, field.contents()) for field in gguf.GGUFReader(path).fields.values())


def of_engine(programs, path, ids):
    prompts = path.with_suffix(".jsonl")
    prompts.write_text("".join(json.dumps({"tokens": ids[: i + 1]}) + "\n" for i in range(len(ids))))
    done = subprocess.run([programs / "gguf-verify", "logits", path, "--prompts", prompts], capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip()
    return torch.tensor([json.loads(line)["logits"] for line in done.stdout.splitlines()]), ""


def judge(programs, name, folder, write):
    """The row of a class, and what is wrong."""
    ids, wanted, shapes = make(name, folder)
    if write:
        config = json.loads((folder / "config.json").read_text())
        case = {"reference": f"transformers {transformers.__version__}, float32, eager attention", "config": config,
                "tensors": shapes, "tokens": ids, "last_logits": [round(x, 6) for x in wanted[-1].tolist()]}
        (ROOT / "fixtures/classes" / f"{name.replace(' ', '_')}.json").write_text(json.dumps(case) + "\n")
    path = folder.with_suffix(".gguf")
    command = [programs / "gguf-convert", "hf2gguf", folder, "-o", path, "--type", "f32", "--no-tokenizer"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if line.startswith(("error", "warning", "hint"))]
    if done.returncode:
        return name, said or [done.stderr]
    faults = [line for line in said if line.startswith("warning") and not any(word in line for word in EXPECTED)]
    arch = next(value for key, value in header(path) if key == "general.architecture")
    theirs = of_llama_cpp(path, ids, wanted.shape[1])
    ours, error = of_engine(programs, path, ids)
    cells = []
    for who, logits in (("llama.cpp", theirs), ("gguf-verify", ours)):
        if logits is None:
            faults.append(f"{who} does not run it {error}")
            cells.append("")
            continue
        difference = (logits - wanted).abs().max().item()
        cells.append(f"{difference:.1e}")
        limit = 2e-3 * wanted.abs().max().item() if who == "llama.cpp" and name.startswith(GELU) else LIMIT
        if not difference <= limit:
            faults.append(f"{who}: {difference:.2e}, of logits up to {wanted.abs().max().item():.2f}")
    return "\t".join([name, arch, *cells]), faults


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def QUIET(_level, _text, _data):
    pass


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("programs", type=Path)
    arguments.add_argument("classes", nargs="*")
    arguments.add_argument("--keep", type=Path)
    arguments.add_argument("--write-fixtures", action="store_true")
    options = arguments.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    bad, rows = False, []
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        root.mkdir(exist_ok=True)
        for name in options.classes or CASES:
            try:
                row, faults = judge(options.programs, name, root / name.replace(" ", "_"), options.write_fixtures)
            except Exception as problem:
                row, faults = name, [f"{problem!r:.400}"]
            print(row, *faults, sep="\n    ", flush=True)
            bad |= bool(faults)
            rows.append(row + "\n")
    if options.write_fixtures and not options.classes:
        (ROOT / "fixtures/class_figures.tsv").write_text("".join(rows))
    sys.exit(bad)


if __name__ == "__main__":
    main()
