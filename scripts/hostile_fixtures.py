#!/usr/bin/env python3
"""Writes fixtures/hostile: one bad file for each rule, named after it, and the runs in MANIFEST.toml.

What a run is expected to say stays as the manifest has it; new runs get `exit = -1` and `says = "?"`, to be filled in by
hand from what `GGUF_HOSTILE_PRINT= cargo test --test it every_bad_file -- --nocapture` prints. Needs Python alone.
"""

import json
import pathlib
import struct
import tomllib

from hostile_formats import (
    CONFIG, N_EMBD, VOCAB, base, checkpoint, gguf, info, kv, s, safetensors, tokenizer, zip_of,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "hostile"
RUNS = []  # (file, run)


def write(name, content, *runs):
    path = ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(content)
    add(name.split("/")[0], *runs)


def add(file, *runs):
    RUNS.extend((file, run) for run in runs)


# --- GGUF ---------------------------------------------------------------------------------------------------------

def gguf_rules():
    look, check = "gguf-inspect FILE", "gguf-verify FILE --structure-only"
    use = "gguf-inspect hash FILE"  # files of other programs are shown, and no more
    one = lambda dims, ty, data=bytes(64), name=b"w": gguf(infos=[info(name, dims, ty, 0)], data=data)
    key = lambda *keys: gguf(keys=keys)
    raw = lambda name, content, *runs: write(f"gguf_{name}.gguf", content, *(runs or (look,)))
    raw("empty", b"", look, check, "gguf-quantize FILE OUT Q8_0")
    raw("magic_wrong", gguf(magic=b"GGUX"), look, check)
    raw("magic_swapped", gguf(magic=b"FUGG"))
    raw("magic_of_ggjt", gguf(magic=b"tjgg"))
    for version in (0, 1, 4, 0x03000000, 0xFFFFFFFF):
        raw(f"version_{version:x}", gguf(version=version))
    raw("count_of_keys", gguf(n_keys=1 << 62), look, check)
    raw("count_of_keys_negative", gguf(n_keys=(1 << 64) - 1))
    raw("count_of_tensors", gguf(n_tensors=1 << 62), look, check)
    raw("count_of_tensors_a_little", gguf(infos=[info("w", [4], 0, 0)], data=bytes(32), n_tensors=2))
    raw("string_beyond_the_end", gguf(keys=[struct.pack("<Q", 1 << 40) + b"abc"]))
    raw("string_of_all_bits", gguf(keys=[struct.pack("<Q", (1 << 64) - 1) + b"abc"]))
    raw("value_cut", gguf(keys=[s("a") + struct.pack("<I", 10) + b"\0\0"]))
    raw("value_type_13", gguf(keys=[s("a") + struct.pack("<I", 13) + bytes(8)]))
    raw("array_length", gguf(keys=[s("a") + struct.pack("<IIQ", 9, 0, 1 << 60)]))
    raw("array_length_wraps", gguf(keys=[s("a") + struct.pack("<IIQ", 9, 10, 1 << 61)]))
    raw("array_of_strings_length", gguf(keys=[s("a") + struct.pack("<IIQ", 9, 8, 1 << 58)]))
    raw("array_type", gguf(keys=[s("a") + struct.pack("<IIQ", 9, 99, 1)]))
    raw("arrays_nested.gguf.gen".replace(".gguf.gen", ""), gguf(keys=[s("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 2000]))
    write("gguf_arrays_nested_wide.gguf.gen", [["x:" + gguf(n_keys=1).hex(), 1], ["x:" + (s("a") + struct.pack("<I", 9)).hex(), 1],
          ["x:" + struct.pack("<IQ", 9, 1).hex(), 60000]], look)
    raw("bool_of_2", gguf(keys=[s("a") + struct.pack("<I", 7) + b"\2"]))
    raw("key_empty", key(kv("", "u32", 1)))
    raw("key_not_utf8", key(kv(b"\xff", "u32", 1)))
    raw("key_twice", key(kv("a", "u32", 1), kv("a", "u32", 2)))
    raw("key_with_escapes", key(kv(b"\x1b[31mred\x1b[0m", "str", b"\x1b]0;title\x07\xe2\x80\xae")))
    raw("alignment_0", key(kv("general.alignment", "u32", 0)), look, check)
    raw("alignment_3", key(kv("general.alignment", "u32", 3)))
    raw("alignment_of_a_gigabyte", gguf(keys=[kv("general.alignment", "u32", 1 << 30)], infos=[info("w", [4], 0, 0)], data=bytes(16)), look, check)
    raw("alignment_is_text", key(kv("general.alignment", "str", "32")))
    raw("dims_5", one([1] * 5, 0), use)
    raw("dims_a_lot", gguf(infos=[s("w") + struct.pack("<I", 0xFFFFFFFF)]), use)
    raw("dim_negative", one([(1 << 64) - 1], 0))
    raw("dim_0", one([0, 5], 0))
    raw("dims_product_wraps", one([1 << 33, 1 << 33], 24), look, check)
    raw("dims_product_wraps_to_little", one([1 << 32, 1 << 32, 16], 0))
    raw("size_wraps", one([1 << 62, 4], 0))
    raw("size_of_blocks_wraps", one([(1 << 61) - 2], 28))
    raw("sizes_sum_wraps", gguf(infos=[info("a", [1 << 62], 24, 0), info("b", [1 << 62], 24, 1 << 62)], data=bytes(64)))
    raw("data_beyond_the_end", one([1 << 30], 0), look, check, "gguf-quantize FILE OUT Q8_0")
    raw("data_cut_by_a_byte", one([16], 0, bytes(63)), look, check)
    raw("data_offset_huge", gguf(infos=[info("w", [4], 0, (1 << 64) - 32)], data=bytes(64)))
    raw("data_unaligned", gguf(infos=[info("w", [4], 0, 4)], data=bytes(64)))
    raw("data_overlaps", gguf(infos=[info("a", [8], 0, 0), info("b", [8], 0, 0)], data=bytes(64)))
    raw("data_gap", gguf(infos=[info("a", [8], 0, 0), info("b", [8], 0, 64)], data=bytes(96)))
    raw("type_unknown", one([4], 99), use)
    raw("type_removed", one([32], 4), use)
    raw("type_negative", one([4], 0xFFFFFFFF), use)
    raw("rows_of_half_blocks", one([33], 8))
    raw("name_too_long", one([4], 0, name=b"n" * 64), use)
    raw("name_empty", one([4], 0, name=b""), look, check)
    raw("name_not_utf8", one([4], 0, name=b"\xfe"))
    raw("name_twice", gguf(infos=[info("w", [4], 0, 0), info("w", [4], 0, 32)], data=bytes(64)))
    raw("no_architecture", one([16], 0), check, "gguf-convert gguf2hf FILE -o OUT", "gguf-quantize FILE OUT Q8_0")
    nan = struct.pack("<f", float("nan"))
    raw("weights_nan", one([4, 4], 0, nan * 16), check, "gguf-quantize FILE OUT F16")
    raw("scales_nan", one([32, 2], 8, (b"\x00\x7e" + bytes(32)) * 2), check)
    whole = base()
    raw("cut_in_the_header", whole[:700], look, check)
    raw("cut_in_the_data", whole[:-1], look, check)
    raw("bytes_behind_the_end", whole + b"x" * 100, check)
    write("gguf_many_keys.gguf.gen", [["x:" + gguf(n_keys=50000).hex(), 1], ["x:" + kv("a", "u8", 1).hex(), 50000]], look)
    tensors = b"".join(info(f"t{i}", [], 0, 32 * i) for i in range(20000))
    del tensors
    write("gguf_many_tensors.gguf.gen", [["x:" + gguf(n_tensors=30000).hex(), 1], ["x:" + info("w", [1], 0, 0).hex(), 30000]], look, check)
    write("gguf_key_of_a_megabyte.gguf.gen", [["x:" + (gguf(n_keys=1) + struct.pack("<Q", 1000000)).hex(), 1], ["k", 1000000], ["x:" + struct.pack("<IB", 0, 1).hex(), 1]], look, check)
    write("gguf_array_of_empty_texts.gguf.gen", [["x:" + (gguf(n_keys=1) + s("a") + struct.pack("<IIQ", 9, 8, 130000)).hex(), 1], ["x:" + bytes(8).hex(), 130000]], look, check)
    # Parts of a split model.
    split = lambda no, n, total: [kv("general.architecture", "str", "llama"), kv("split.no", "u16", no), kv("split.count", "u16", n), kv("split.tensors.count", "i32", total)]
    part = lambda name, keys, *infos: gguf(keys, [info(n, [8], 0, 32 * i) for i, n in enumerate(infos)], bytes(32 * len(infos)))
    sets = {
        "split_part_missing": [("m-00001-of-00002.gguf", split(0, 2, 2), "a")],
        "split_count_65535": [("m-00001-of-65535.gguf", split(0, 65535, 2), "a")],
        "split_number_twice": [("m-00001-of-00002.gguf", split(0, 2, 2), "a"), ("m-00002-of-00002.gguf", split(0, 2, 2), "b")],
        "split_tensor_twice": [("m-00001-of-00002.gguf", split(0, 2, 2), "a"), ("m-00002-of-00002.gguf", split(1, 2, 2), "a")],
        "split_total_wrong": [("m-00001-of-00002.gguf", split(0, 2, 7), "a"), ("m-00002-of-00002.gguf", split(1, 2, 7), "b")],
        "split_count_differs": [("m-00001-of-00002.gguf", split(0, 2, 2), "a"), ("m-00002-of-00002.gguf", split(1, 3, 2), "b")],
    }
    for name, parts in sets.items():
        for file, keys, tensor in parts:
            write(f"{name}/{file}", part(file, keys, tensor))
        first = parts[0][0]
        add(name, f"gguf-inspect FILE/{first}", f"gguf-verify FILE/{first} --structure-only", f"gguf-inspect merge FILE/{first} -o OUT")
    raw("split_number_of_none", gguf(split(0, 2, 1), [info("a", [8], 0, 0)], bytes(32)), look, "gguf-inspect merge FILE -o OUT")


# --- metadata that the engine computes with -----------------------------------------------------------------------


def engine_rules():
    run = "gguf-verify FILE --prompts TEXT --ctx 16 --chunks 1"
    keys = lambda name, patch, *runs: write(f"engine_{name}.keys", patch, *(runs or (run,)))
    u32 = lambda key, v: {"llama." + key: ["u32", v]}
    keys("block_count_huge", u32("block_count", 4294967295), run, "gguf-quantize FILE OUT Q8_0", "gguf-convert gguf2hf FILE -o OUT")
    keys("block_count_0", u32("block_count", 0))
    keys("block_count_missing", {"llama.block_count": None})
    keys("block_count_is_text", {"llama.block_count": ["str", "1"]})
    keys("heads_huge", u32("attention.head_count", 4294967295), run, "gguf-convert gguf2hf FILE -o OUT")
    keys("heads_0", u32("attention.head_count", 0))
    keys("heads_3", u32("attention.head_count", 3))
    keys("heads_kv_0", u32("attention.head_count_kv", 0))
    keys("heads_kv_huge", u32("attention.head_count_kv", 1 << 31))
    keys("heads_of_a_million_layers", {"llama.attention.head_count": ["arr:u32", [[2, 100000]]]}, run, "gguf-quantize FILE OUT Q4_K_M")
    keys("head_size_huge", {**u32("attention.key_length", 4294967295), **u32("attention.value_length", 4294967295)})
    keys("head_size_0", {**u32("attention.key_length", 0), **u32("attention.value_length", 0)})
    keys("embedding_huge", u32("embedding_length", 4294967295))
    keys("embedding_0", u32("embedding_length", 0))
    keys("feed_forward_huge", u32("feed_forward_length", 4294967295))
    keys("context_huge", u32("context_length", 4294967295))
    keys("context_0", u32("context_length", 0))
    keys("ctx_beyond_memory", {}, "gguf-verify FILE --prompts TEXT --ctx 2000000000 --chunks 1")
    keys("vocab_size_huge", u32("vocab_size", 4294967295), run, "gguf-convert gguf2hf FILE -o OUT")
    keys("rope_dimensions_huge", u32("rope.dimension_count", 4294967294))
    keys("rope_dimensions_odd", u32("rope.dimension_count", 15))
    keys("rope_dimensions_0", u32("rope.dimension_count", 0))
    keys("rope_base_0", {"llama.rope.freq_base": ["f32", 0.0]})
    keys("rope_base_nan", {"llama.rope.freq_base": ["f32", "nan"]})
    keys("rope_scale_0", {"llama.rope.scaling.type": ["str", "linear"], "llama.rope.scaling.factor": ["f32", 0.0]})
    keys("rope_scale_infinite", {"llama.rope.scaling.type": ["str", "yarn"], "llama.rope.scaling.factor": ["f32", "inf"]})
    keys("rope_type_unknown", {"llama.rope.scaling.type": ["str", "\u001b[2J"]})
    keys("epsilon_nan", {"llama.attention.layer_norm_rms_epsilon": ["f32", "nan"]})
    keys("epsilon_negative", {"llama.attention.layer_norm_rms_epsilon": ["f32", -1e30]})
    keys("experts_huge", {**u32("expert_count", 4294967295), **u32("expert_used_count", 4294967295)}, run, "gguf-quantize FILE OUT Q4_K_M")
    keys("experts_used_beyond", {**u32("expert_count", 2), **u32("expert_used_count", 3)})
    keys("experts_used_0", {**u32("expert_count", 8), **u32("expert_used_count", 0)})
    keys("architecture_unknown", {"general.architecture": ["str", "no-such"]})
    keys("architecture_is_a_path", {"general.architecture": ["str", "../../../etc/passwd"]}, run, "gguf-convert gguf2hf FILE -o OUT")
    keys("architecture_of_another", {"general.architecture": ["str", "gemma"]})
    keys("architecture_is_a_number", {"general.architecture": ["u32", 7]})
    keys("architecture_long", {"general.architecture": ["str", [["llama", 50000]]]})
    keys("file_type_unknown", {"general.file_type": ["u32", 4000000000]}, run, "gguf-inspect FILE")
    keys("imatrix_without_memory", {}, "gguf-verify imatrix FILE --prompts TEXT --ctx 2000000000 -o OUT")


# --- vocabularies of GGUF files -----------------------------------------------------------------------------------


def vocabulary_rules():
    run = "gguf-verify FILE --prompts TEXT --ctx 16 --chunks 1"
    check = "gguf-verify FILE --structure-only"
    keys = lambda name, patch, *runs: write(f"vocab_{name}.keys", patch, *(runs or (run,)))
    tok = lambda key, ty, v: {"tokenizer.ggml." + key: [ty, v]}
    keys("tokens_missing", {"tokenizer.ggml.tokens": None})
    keys("tokens_none", tok("tokens", "arr:str", []))
    keys("tokens_few", tok("tokens", "arr:str", [["a", 1]]))
    keys("tokens_all_alike", tok("tokens", "arr:str", [["a", 260]]))
    keys("tokens_a_hundred_thousand", tok("tokens", "arr:str", [["", 100000]]))
    keys("tokens_are_numbers", tok("tokens", "arr:u32", [[1, 260]]))
    keys("token_of_a_megabyte", tok("tokens", "arr:str", [["a", 100], [[["x", 900000]], 1], ["b", 159]]))
    keys("types_missing", {"tokenizer.ggml.token_type": None})
    keys("types_few", tok("token_type", "arr:i32", [[1, 3]]))
    keys("types_wild", tok("token_type", "arr:i32", [[-2147483648, 130], [2147483647, 130]]))
    keys("merges_unknown", tok("merges", "arr:str", [["zz yy", 3]]))
    keys("merges_without_blank", tok("merges", "arr:str", [["th", 3]]))
    keys("merges_of_blanks", tok("merges", "arr:str", [[" ", 3]]))
    keys("merges_a_hundred_thousand", tok("merges", "arr:str", [["t h", 80000]]))
    keys("pre_unknown", tok("pre", "str", "no-such"))
    keys("pre_of_a_megabyte", tok("pre", "str", [["x", 900000]]))
    keys("model_unknown", tok("model", "str", "no-such"))
    keys("bos_beyond", tok("bos_token_id", "u32", 4294967295))
    keys("eos_negative", tok("eos_token_id", "i32", -5))
    keys("spm_without_scores", tok("model", "str", "llama"))
    keys("unigram_scores_nan", {**tok("model", "str", "t5"), **tok("scores", "arr:f32", [["nan", 260]]), **tok("unknown_token_id", "u32", 256)})
    keys("unigram_scores_infinite", {**tok("model", "str", "t5"), **tok("scores", "arr:f32", [["inf", 130], ["-inf", 130]]), **tok("unknown_token_id", "u32", 256)})
    keys("charsmap_cut", {**tok("model", "str", "t5"), **tok("scores", "arr:f32", [[0, 260]]), **tok("precompiled_charsmap", "arr:u8", [[255, 3]])})
    keys("charsmap_in_a_circle", {**tok("model", "str", "t5"), **tok("scores", "arr:f32", [[0, 260]]), **tok("unknown_token_id", "u32", 256),
         **tok("precompiled_charsmap", "arr:u8", [[0, 1], [4, 1], [0, 2], [255, 1024], [97, 64]])})
    keys("charsmap_long_replacement", {**tok("model", "str", "t5"), **tok("scores", "arr:f32", [[0, 260]]),
         **tok("precompiled_charsmap", "arr:u8", [[0, 4], [97, 900000]])})
    # `e` becomes 200 times `x`.
    units = [0] * 257
    units[0x65] = 0x65 | 0x100 | (0x165 << 10)
    grows = struct.pack("<I", 4 * 257) + struct.pack("<257I", *units) + b"x" * 200 + b"\0"
    for model in ("t5", "llama"):
        keys(f"charsmap_grows_{model}", {**tok("model", "str", model), **tok("scores", "arr:f32", [[0, 260]]), **tok("unknown_token_id", "u32", 256),
             **tok("precompiled_charsmap", "arr:u8", [[byte, 1] for byte in grows])})
    keys("wordpiece_without_words", {**tok("model", "str", "bert"), **tok("token_type_count", "u32", 2)})
    keys("rwkv_wild", {**tok("model", "str", "rwkv"), **tok("tokens", "arr:str", [["\\x", 260]])})
    keys("template_is_a_number", {"tokenizer.chat_template": ["u32", 7]}, "gguf-verify FILE --prompts CHAT")


# --- chat templates -----------------------------------------------------------------------------------------------


def template_rules():
    run = "gguf-verify FILE --prompts CHAT"
    template = lambda name, pieces, *runs: write(f"template_{name}.keys", {"tokenizer.chat_template": ["str", pieces]}, *(runs or (run,)))
    template("tag_of_three", "{%}", run, "gguf-verify FILE --structure-only")
    template("tag_open", "{% if")
    template("expression_open", "{{ ")
    template("comment_open", "{# ")
    template("syntax", "a\nb\n{% if %}")
    template("of_a_megabyte", [["x", 950000]])
    template("nested_minus", [["{{ ", 1], ["-", 5000], ["x }}", 1]], run, "gguf-verify FILE --structure-only", "gguf-verify logits FILE --prompts CHAT")
    template("nested_not", [["{{ ", 1], ["not ", 5000], ["x }}", 1]])
    template("nested_ternary", [["{{ ", 1], ["1 if x else ", 1600], ["1 }}", 1]])
    template("deep_minus", [["{{ ", 1], ["-", 900000], ["x }}", 1]])
    template("deep_not", [["{{ ", 1], ["not ", 200000], ["x }}", 1]])
    template("deep_ternary", [["{{ ", 1], ["1 if x else ", 75000], ["1 }}", 1]])
    template("deep_attributes", [["{{ x", 1], [".a", 400000], [" }}", 1]])
    template("deep_filters", [["{{ 'a'", 1], ["|upper", 150000], [" }}", 1]])
    template("deep_sums", [["{{ x", 1], ["+x", 400000], [" }}", 1]])
    template("deep_indices", [["{{ x", 1], ["[0]", 300000], [" }}", 1]])
    template("nested_attributes", [["{{ x", 1], [".a", 10000], [" }}", 1]])
    template("nested_brackets", [["{{ ", 1], ["[", 20000], ["]", 20000], [" }}", 1]])
    template("nested_parentheses", [["{{ ", 1], ["(", 20000], ["1", 1], [")", 20000], [" }}", 1]])
    template("nested_filters", [["{{ 'a'", 1], ["|upper", 20000], [" }}", 1]])
    template("nested_sums", [["{{ 1", 1], ["+1", 20000], [" }}", 1]])
    template("nested_ifs", [["{% if 1 %}", 5000], ["{% endif %}", 5000]])
    template("nested_loops", [["{% for i in [1] %}", 3000], ["{% endfor %}", 3000]])
    template("indent", "{{ 'a\nb'|indent(4000000000) }}")
    template("batch", "{{ [1]|batch(4000000000, 0)|list }}")
    template("slice", "{{ [1]|slice(4000000000, 0)|list }}")
    template("width", "{{ '%1000000000d'|format(1) }}")
    template("precision", "{{ '%.1000000000f'|format(1.5) }}")
    template("repeat", "{{ 'a' * 4000000000 }}")
    template("repeat_a_list", "{{ ([1] * 400000000)|length }}")
    template("doubling", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}")
    template("in_a_long_text", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(23) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for i in range(99999) %}{{ 'b' in ns.s }}{% endfor %}")
    template("replace_all", "{{ ('a' * 1000000)|replace('a', 'b' * 100000) }}")
    template("join", "{{ range(99999)|join('x' * 100000) }}")
    template("namespace_in_itself", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}")
    template("namespace_as_json", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns|tojson }}")
    template("namespace_compared", "{% set a = namespace() %}{% set a.a = a %}{% set b = namespace() %}{% set b.a = b %}{{ a == b }}")
    template("range_huge", "{{ range(4000000000)|list|length }}")
    template("loop_without_end", "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}")
    template("output_without_end", "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}")
    template("macro_calls_itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")
    template("caller_calls_itself", "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% call f() %}x{% endcall %}{% endcall %}{{ f() }}")
    template("includes_a_file", "{% include '/etc/passwd' %}")
    template("extends_itself", "{% extends 'self' %}")
    template("refuses", "{{ raise_exception('no \u001b[31mchats') }}")
    template("fails", "\n\n{{ messages[0].content.nothing() }}")
    template("divides_by_0", "{{ 1 // 0 }}")
    template("power", "{{ 9 ** 9 ** 9 }}")
    template("sorts_itself", "{% set ns = namespace(l=[]) %}{{ (range(99999)|list)|sort(reverse=true)|length }}")
    template("unique_pprint", "{{ (messages * 100000)|pprint|length }}")
    template("writes_a_gigabyte", "{% set a = 'x' * 10000000 %}{% for i in range(100) %}{{ a }}{% endfor %}")
    template("date", "{{ strftime_now('%' * 1000001) }}")


# --- prompts, tasks, logit files, matrices ------------------------------------------------------------------------


def input_rules():
    run = "gguf-verify BASE --prompts FILE --ctx 16 --chunks 1"
    prompts = lambda name, content, *runs: write(f"prompts_{name}", content, *(runs or (run,)))
    prompts("empty.txt", b"")
    prompts("binary.txt", bytes(range(256)))
    prompts("not_utf8.txt", b"abc\xff\xfe")
    prompts("not_utf8.jsonl", b'{"text": "a"}\n\xff\n')
    prompts("not_json.jsonl", '{"text": \n')
    prompts("of_no_form.jsonl", '{"words": 5}\n')
    prompts("tokens_beyond.jsonl", '{"tokens": [0, 4294967295]}\n')
    prompts("tokens_negative.jsonl", '{"tokens": [-1]}\n')
    prompts("tokens_are_floats.jsonl", '{"tokens": [1.5]}\n')
    prompts("tokens_wrap.jsonl", '{"tokens": [18446744073709551616]}\n')
    prompts("nested.jsonl.gen", [["[", 500000]])
    prompts("nested_closed.json.gen", [['{"messages": ', 1], ["[", 5000], ["]", 5000], ["}", 1]])
    prompts("many_lines.jsonl.gen", [["{}\n", 300000]])
    prompts("one_line.txt.gen", [["a", 1000000]])
    prompts("blanks.txt.gen", [[" ", 1000000]])
    prompts("special_tokens.txt.gen", [["<|end|>", 140000]])
    prompts("table.csv.gen", [["a,b,c\n", 1000]])
    prompts("a_model.gguf", base()[:64])
    prompts("messages_without_template.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n')
    prompts("messages_are_numbers.jsonl", '{"messages": 5}\n')
    prompts("many_tokens.jsonl.gen", [['{"tokens": [0', 1], [",1", 100000], ["]}\n", 1]], run, "gguf-verify logits BASE --prompts FILE")
    logits = lambda name, content: write(f"logits_{name}.bin", content, "gguf-verify BASE --baseline FILE")
    head = lambda ctx, vocab, chunks: b"_logits_" + struct.pack("<III", ctx, vocab, chunks)
    logits("cut", b"_logits_\1")
    logits("ctx_huge", head(0xFFFFFFFF, 260, 0xFFFFFFFF))
    logits("vocab_huge", head(16, 0xFFFFFFFF, 1))
    logits("chunks_huge", head(16, 260, 0x7FFFFFFF))
    logits("all_zero", head(0, 0, 0))
    logits("tokens_beyond", head(16, 260, 1) + struct.pack("<16I", *[9999] * 16) + bytes(7 * (2 * 260 + 8)))
    task = lambda name, content, option: write(f"tasks_{name}", content, f"gguf-verify BASE {option} FILE")
    task("multiple_count.bin", struct.pack("<I", 0xFFFFFFFF), "--multiple-choice")
    task("multiple_offset.bin", struct.pack("<II", 1, 0xFFFFFFFF) + bytes(64), "--multiple-choice")
    task("multiple_answers.bin", struct.pack("<III", 1, 0, 1) + b"q" + struct.pack("<I", 0xFFFFFFFF) + bytes(64), "--multiple-choice")
    task("hellaswag_short.txt", "a\nb\n", "--hellaswag")
    task("hellaswag_label.txt", "a\n9\nb\nc\nd\ne\n", "--hellaswag")
    task("winogrande_columns.csv", "a,b\n", "--winogrande")
    task("winogrande_answer.csv", "1,a _ b,c,d,7\n", "--winogrande")
    quant = "gguf-quantize --imatrix FILE BASE OUT Q8_0"
    show = "gguf-verify imatrix show FILE"
    matrix = lambda name, content, *runs: write(f"imatrix_{name}", content, *(runs or (quant, show)))
    entry = lambda name, calls, values: struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(values)) + struct.pack(f"<{len(values)}f", *values)
    matrix("empty.dat", b"")
    matrix("count_huge.dat", struct.pack("<i", 0x7FFFFFFF))
    matrix("count_negative.dat", struct.pack("<i", -1))
    matrix("name_huge.dat", struct.pack("<ii", 1, 0x7FFFFFFF))
    matrix("name_negative.dat", struct.pack("<ii", 1, -4) + bytes(16))
    matrix("values_huge.dat", struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, 0x7FFFFFFF))
    matrix("values_negative.dat", struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, -1))
    matrix("values_nan.dat", struct.pack("<i", 1) + entry(b"blk.0.attn_q.weight", 1, [float("nan")] * 32))
    matrix("values_infinite.dat", struct.pack("<i", 1) + entry(b"blk.0.attn_q.weight", 1, [float("inf")] * 32))
    matrix("columns_wrong.dat", struct.pack("<i", 1) + entry(b"blk.0.attn_q.weight", 1, [1.0] * 31), quant)
    matrix("of_another_model.dat", struct.pack("<i", 1) + entry(b"x", 1, [1.0] * 32), quant)
    matrix("name_not_utf8.dat", struct.pack("<i", 1) + entry(b"\xff\x1b[2J", 1, [1.0] * 32))
    im = lambda infos, data: gguf([kv("general.type", "str", "imatrix"), kv("imatrix.datasets", "arr", ("str", ["a"])), kv("imatrix.chunk_count", "u32", 1), kv("imatrix.chunk_size", "u32", 512)], infos, data)
    matrix("sums_without_counts.gguf", im([info("blk.0.attn_q.weight.in_sum2", [32], 0, 0)], bytes(128)))
    matrix("counts_are_zero.gguf", im([info("blk.0.attn_q.weight.in_sum2", [32], 0, 0), info("blk.0.attn_q.weight.counts", [1], 0, 128)], struct.pack("<32f", *[1.0] * 32) + bytes(32)))
    matrix("is_a_model.gguf", base()[:8] + bytes(16))


# --- checkpoints --------------------------------------------------------------------------------------------------

def checkpoint_rules():
    convert, look = "gguf-convert hf2gguf FILE -o OUT", "gguf-inspect checkpoint FILE"
    config = lambda name, patch, *runs: write(f"config_{name}.hf/config.json.patch", patch, *(runs or (convert, look)))
    for name, v in [("huge", 4294967295), ("beyond_64_bits", 1 << 70), ("negative", -1), ("float", 1.5), ("text", "1"), ("1e308", 1e308), ("0", 0)]:
        config(f"layers_{name}", {"num_hidden_layers": v})
    for name, v in [("huge", 1 << 62), ("negative", -8), ("0", 0)]:
        config(f"heads_{name}", {"num_attention_heads": v})
        config(f"heads_kv_{name}", {"num_key_value_heads": v})
        config(f"hidden_{name}", {"hidden_size": v})
        config(f"vocab_{name}", {"vocab_size": v})
    config("experts_huge", {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 1 << 40, "num_experts_per_tok": 1 << 40})
    config("rope_factor_0", {"rope_scaling": {"type": "linear", "factor": 0}})
    config("rope_factors_many", {"rope_scaling": {"type": "longrope", "short_factor": [1] * 20000, "long_factor": [1] * 20000, "factor": 2}})
    config("rope_is_text", {"rope_scaling": "\u001b[31m"})
    config("class_unknown", {"architectures": ["NoSuchModel"]})
    config("class_is_a_path", {"architectures": ["../../etc/passwd"]})
    config("class_none", {"architectures": []})
    config("remote_code", {"auto_map": {"AutoModelForCausalLM": "evil--evil.Model"}, "architectures": ["Evil"]})
    config("bos_beyond", {"bos_token_id": 1 << 63})
    config("epsilon_nan", {"rms_norm_eps": "NaN"})
    write("config_nested.hf/config.json.gen", [["[", 500000]], convert, look)
    write("config_key_twice.hf/config.json", '{"architectures": ["LlamaForCausalLM"], "architectures": []}', convert, look)
    write("special_tokens_key_twice.hf/special_tokens_map.json", '{"bos_token": "a", "bos_token": "b"}', convert, look)
    write("config_not_json.hf/config.json", "#!/bin/sh\nrm -rf /", convert, look)
    write("config_not_an_object.hf/config.json", "[1, 2]", convert, look)
    write("config_surrogate.hf/config.json", '{"architectures": ["\\ud800"]}', convert, look)
    write("config_number_of_a_megabyte.hf/config.json.gen", [['{"num_hidden_layers": ', 1], ["9", 1000000], ["}", 1]], convert, look)
    write("config_missing.hf/config.json.none", "", convert, look)
    entries, data = checkpoint()
    data = bytes(len(data))
    first = next(iter(entries))
    zeros = bytes(len(data))

    def st(name, content, *runs):
        # The weights do not matter here: zeros are short as pieces.
        head, found, rest = content.partition(zeros)
        pieces = [["x:" + head.hex(), 1], ["x:00", len(zeros)], ["x:" + rest.hex(), 1]]
        path = f"safetensors_{name}.hf/model.safetensors"
        write(path + ".gen" * bool(found), pieces if found else content, *(runs or (convert, look)))

    edit = lambda **members: {**entries, first: {**entries[first], **members}}
    st("empty", b"")
    st("length_huge", struct.pack("<Q", 1 << 63) + b"{}")
    st("length_beyond_the_end", struct.pack("<Q", 1000) + b"{}")
    st("not_an_object", safetensors("[1]", b""))
    st("cut", safetensors(entries, data)[:-1])
    st("bytes_behind_the_end", safetensors(entries, data + b"x"))
    st("offsets_reversed", safetensors(edit(data_offsets=[len(data), 0]), data))
    st("offsets_beyond", safetensors(edit(data_offsets=[0, 1 << 60]), data))
    st("offsets_overlap", safetensors({**entries, "x": entries[first]}, data))
    st("offsets_beyond_64_bits", safetensors(edit(data_offsets=[0, 1 << 70]), data))
    st("shape_wraps", safetensors(edit(shape=[1 << 40, 1 << 40]), data))
    st("shape_of_a_thousand", safetensors(edit(shape=[1] * 20000), data))
    st("shape_negative", safetensors(edit(shape=[-1, 32]), data))
    st("shape_other", safetensors(edit(shape=[32, len(VOCAB)]), data))
    st("type_unknown", safetensors(edit(dtype="F99"), data))
    st("name_twice", safetensors(json.dumps(entries)[:-1] + f', "{first}": {json.dumps(entries[first])}}}', data))
    st("name_with_escapes", safetensors({**entries, "\u001b[2J\u202e": {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}}, data))
    st("tensor_missing", safetensors({k: v for k, v in entries.items() if k != "model.norm.weight"}, data[:-4 * N_EMBD]))
    head = safetensors(entries, b"")
    write("safetensors_tensor_nan.hf/model.safetensors.gen", [["x:" + head.hex(), 1], ["x:0000c07f", len(data) // 4]], convert)
    write("safetensors_nested.hf/model.safetensors.gen", [["x:" + struct.pack("<Q", 500001).hex(), 1], ['{', 1], ['"a":{', 100000]], convert, look)
    write("safetensors_many_tensors.hf/model.safetensors.gen", [["x:" + struct.pack("<Q", 2 + 51 * 19000).hex(), 1], ["{", 1], ['"abcdef":{"dtype":"F32","shape":[],"data_offsets":[0', 19000], ["}", 1]], convert, look)
    index = lambda name, content: (write(f"index_{name}.hf/model.safetensors.index.json", content, convert, look), write(f"index_{name}.hf/model.safetensors.none", ""))
    index("outside", {"weight_map": {first: "../../../etc/passwd"}})
    index("absolute", {"weight_map": {first: "/etc/passwd"}})
    index("shard_missing", {"weight_map": {first: "model-00001-of-00001.safetensors"}})
    index("empty", {"weight_map": {}})
    index("not_an_object", [])
    index("names_are_numbers", {"weight_map": {first: 5}})
    index("of_many_shards", {"weight_map": {f"t{i}": f"{i}.safetensors" for i in range(3000)}})
    # Regexes in descriptions of quantization.
    many = {f"+:(?:x{{{900 + i}}}){{90}}": {"bits": 4} for i in range(300)}
    config("quantized_regexes", {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": many}})
    config("quantized_regex_huge", {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"+:((x{1000}){1000}){1000}": {}}}})
    targets = [f"re:(?:x{{{900 + i}}}){{90}}" for i in range(300)]
    config("quantized_targets", {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {"targets": targets, "weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}})
    config("quantized_round", {"quantization_config": {"quant_method": "auto-round", "bits": 4, "group_size": 32, "extra_config": {f"(?:x{{{900 + i}}}){{90}}": {"bits": 8} for i in range(300)}}})
    config("quantized_bits", {"quantization_config": {"quant_method": "gptq", "bits": 1 << 40, "group_size": -(1 << 40)}})
    config("quantized_unknown", {"quantization_config": {"quant_method": "\u001b[1m", "bits": 4}})
    # PyTorch files.
    torch = lambda name, content, *runs: (write(f"torch_{name}.hf/pytorch_model.bin", content, *(runs or (convert, look))), write(f"torch_{name}.hf/model.safetensors.none", ""))
    torch("empty", b"")
    torch("not_a_pickle", b"something else")
    torch("calls_system", zip_of([("a/data.pkl", b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R."), ("a/version", b"3\n")]))
    torch("calls_eval", zip_of([("a/data.pkl", b"\x80\x02c__builtin__\neval\nX\x01\0\0\x001\x85R."), ("a/version", b"3\n")]))
    torch("opcode_unknown", zip_of([("a/data.pkl", b"\x80\x02\xfe."), ("a/version", b"3\n")]))
    torch("text_huge", zip_of([("a/data.pkl", b"\x80\x02X\xff\xff\xff\x7f."), ("a/version", b"3\n")]))
    torch("memo_unset", zip_of([("a/data.pkl", b"\x80\x02h\x09."), ("a/version", b"3\n")]))
    torch("memo_huge", zip_of([("a/data.pkl", b"\x80\x02Nr\xff\xff\xff\x7f."), ("a/version", b"3\n")]))
    torch("lists_nested", zip_of([("a/data.pkl", b"\x80\x02" + b"]" * 3000 + b"a" * 2999 + b"."), ("a/version", b"3\n")]))
    torch("list_in_itself", zip_of([("a/data.pkl", b"\x80\x02]q\x00h\x00a."), ("a/version", b"3\n")]))
    torch("doubling", zip_of([("a/data.pkl", b"\x80\x02]q\x00" + b"".join(b"]q" + bytes([i + 1]) + b"h" + bytes([i]) + b"ah" + bytes([i]) + b"a" for i in range(200)) + b"."), ("a/version", b"3\n")]))
    torch("stack_empty", zip_of([("a/data.pkl", b"\x80\x02000."), ("a/version", b"3\n")]))
    torch("archive_cut", zip_of([("a/data.pkl", b"\x80\x02}.")])[:-4])
    torch("archive_without_pickle", zip_of([("a/other", b"x")]))
    write("torch_opcodes_a_megabyte.hf/pytorch_model.bin.gen", [["x:8002", 1], ["x:5d", 1000000], ["x:2e", 1]], convert, look)
    write("torch_opcodes_a_megabyte.hf/model.safetensors.none", "")


# --- tokenizer files, cards, descriptions -------------------------------------------------------------------------


def tokenizer_rules():
    convert, source = "gguf-convert hf2gguf FILE -o OUT --vocab-only", "gguf-verify BASE --source FILE --structure-only"
    patch = lambda name, members, *runs: write(f"tokenizer_{name}.hf/tokenizer.json.patch", members, *(runs or (convert, source)))
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    patch("normalizers_double", {"normalizer": {"type": "Sequence", "normalizers": [double] * 20}})
    patch("normalizer_long", {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 100000}})
    patch("normalizers_prepend", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x" * 1000}] * 100}})
    nested = {"type": "NFC"}
    for _ in range(50):
        nested = {"type": "Sequence", "normalizers": [nested]}
    patch("normalizers_nested", {"normalizer": nested})
    regex = lambda text, n=1: {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}] * n
                               + [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    patch("regex_backtracks", {"pre_tokenizer": regex(r"(?:(?:\S|\s)+)+(?=\x00)", 50)})
    patch("regex_backreferences", {"pre_tokenizer": regex(r"(.*)*(.*)*(.*)*\1\2\3\x00", 50)})
    patch("regexes_large", {"pre_tokenizer": regex(r"(?:x{900}){90}", 1500)})
    patch("regex_too_large", {"pre_tokenizer": regex(r"((x{1000}){1000}){1000}")})
    patch("regex_broken", {"pre_tokenizer": regex("(")})
    patch("pre_tokenizer_unknown", {"pre_tokenizer": {"type": "NoSuch"}})
    patch("decoder_regexes", {"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "(?:x{900}){9}"}, "content": ""}] * 2000}})
    patch("decoder_doubles", {"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40},
          "added_tokens": [{**tokenizer()["added_tokens"][0], "content": "a" * 64, "id": 260}]})
    model = tokenizer()["model"]
    write("tokenizer_decoder_doubles.hf/config.json.patch", {"vocab_size": 300})
    patch("vocab_negative", {"model": {**model, "vocab": {"a": -1}}})
    patch("vocab_beyond", {"model": {**model, "vocab": {"a": 4000000000}}})
    patch("vocab_shared_id", {"model": {**model, "vocab": {"a": 0, "b": 0}}})
    patch("vocab_is_a_list", {"model": {**model, "vocab": [1, 2]}})
    patch("vocab_empty", {"model": {**model, "vocab": {}}})
    patch("merges_unknown", {"model": {**model, "merges": ["zz yy"]}})
    patch("merges_are_numbers", {"model": {**model, "merges": [1, 2]}})
    patch("merges_of_one", {"model": {**model, "merges": ["a"]}})
    patch("model_unknown", {"model": {"type": "NoSuch"}})
    patch("model_unigram_nan", {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", "NaN"]]}})
    patch("model_unigram_unknown_beyond", {"model": {"type": "Unigram", "unk_id": 4000000000, "vocab": [["a", 0.0]]}})
    added = lambda i, text: {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    patch("added_beyond", {"added_tokens": [added(4000000000, "x")]})
    patch("added_empty", {"added_tokens": [added(256, "")]})
    patch("added_many", {"added_tokens": [added(256 + i, f"<{i}>") for i in range(1000)]})
    patch("template_processing_doubles", {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 1000, "pair": [], "special_tokens": {"x": {"id": "x", "ids": [1] * 10000, "tokens": ["x"] * 10000}}}})
    patch("truncation", {"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 5}})
    patch("padding_huge", {"padding": {"strategy": {"Fixed": 4000000000}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}})
    write("tokenizer_nested.hf/tokenizer.json.gen", [["[", 900000]], convert, source)
    write("tokenizer_not_json.hf/tokenizer.json", "version https://git-lfs.github.com/spec/v1\n", convert, source)
    write("tokenizer_missing.hf/tokenizer.json.none", "", convert, source)
    write("tokenizer_config_nested.hf/tokenizer_config.json.gen", [['{"chat_template": ', 1], ["[", 400000]], convert, source)
    write("tokenizer_config_class.hf/tokenizer_config.json", {"tokenizer_class": "\u001b[31mEvil", "bos_token": {"content": [1]}}, convert, source)
    spm = lambda name, content: (write(f"sentencepiece_{name}.hf/tokenizer.model", content, convert, source), write(f"sentencepiece_{name}.hf/tokenizer.json.none", ""))
    spm("empty", b"")
    spm("no_protobuf", b"\xff" * 64)
    spm("length_huge", b"\x0a\xff\xff\xff\xff\x0f")
    spm("piece_without_text", b"\x0a\x00" * 3)
    spm("pieces_not_utf8", b"\x0a\x04\x0a\x02\xff\xfe")
    write("sentencepiece_groups_nested.hf/tokenizer.model.gen", [["x:0b", 900000]], convert, source)
    write("sentencepiece_groups_nested.hf/tokenizer.json.none", "")
    # Cards.
    card = lambda name, content: write(f"card_{name}", content, "gguf-convert hf2gguf HF -o OUT --card FILE")
    card("empty.toml", "")
    card("not_toml.toml", "[[[")
    card("unknown_key.toml", 'schema = 1\nname = "x"\nwhat = 1\n')
    card("schema_99.toml", "schema = 99\n")
    card("nested.toml.gen", [["a = ", 1], ["[", 300000]])
    card("extends_itself.toml", 'schema = 1\narch = "card_extends_itself"\nextends = "card_extends_itself"\n')
    card("not_utf8.toml", b"\xff\xfe")
    # Descriptions of models.
    describe = "gguf-convert hf2gguf FILE -o OUT"
    readme = lambda name, content: write(f"model_card_{name}.hf/README.md" + (".gen" if isinstance(content, list) else ""), content, describe)
    readme("anchors_double", "---\na: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)) + "---\n")
    readme("anchor_in_itself", "---\na: &a [*a]\n---\n")
    readme("nested", [["---\na: ", 1], ["[", 300000], ["\n---\n", 1]])
    readme("nested_blocks", [["---\n", 1], ["- ", 300000], ["a\n---\n", 1]])
    readme("too_long", [["---\n", 1], ["a: b\n", 200000]])
    readme("not_utf8", b"---\nlicense: \xff\n---\n")
    readme("key_twice", "---\nlicense: a\nlicense: b\n---\n")
    readme("tags_of_escapes", '---\ntags: ["\\e[2J"]\nlicense: "\\u202e"\n---\n')
    meta = lambda name, content: write(f"metadata_{name}", content, "gguf-convert hf2gguf HF -o OUT --metadata FILE")
    meta("nested.json.gen", [["[", 500000]])
    meta("not_an_object.json", "[]")
    meta("wrong_kinds.json", {"general.name": [1], "general.tags": 5})
    # FastLLM files.
    flm = lambda name, content: write(f"flm_{name}.flm", content, "gguf-convert flm2gguf FILE -o OUT", "gguf-inspect checkpoint FILE")
    i = lambda *v: struct.pack(f"<{len(v)}i", *v)
    flm("empty", b"")
    flm("version_9", i(9))
    flm("dictionary_huge", i(2, 0x7FFFFFFF))
    flm("dictionary_negative", i(2, -1))
    flm("text_huge", i(2, 1, 0x7FFFFFFF))
    flm("tokens_huge", i(2, 0, 0x7FFFFFFF))
    flm("tensors_huge", i(2, 0, 0, 0x7FFFFFFF))
    flm("dims_huge", i(2, 0, 0, 1, 1) + b"w" + i(0x7FFFFFFF))
    flm("size_wraps", i(2, 0, 0, 1, 1) + b"w" + i(4, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0))


def main():
    manifest = ROOT / "MANIFEST.toml"
    known = {}
    if manifest.exists():
        known = {(c["file"], c["run"]): (c["exit"], c["says"]) for c in tomllib.loads(manifest.read_text())["case"]}
    (ROOT / "base.hf").mkdir(parents=True, exist_ok=True)
    write("base.gguf", base())
    write("base_chat.jsonl", json.dumps({"messages": [{"role": "user", "content": "the heather"}, {"role": "assistant", "content": "then the"}]}) + "\n")
    write("base_text.txt", "The heather on the path. " * 8)
    write("base.hf/config.json", CONFIG)
    write("base.hf/tokenizer.json", tokenizer())
    write("base.hf/tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"})
    write("base.hf/model.safetensors", safetensors(*checkpoint()))
    for rules in (gguf_rules, engine_rules, vocabulary_rules, template_rules, input_rules, checkpoint_rules, tokenizer_rules):
        rules()
    out = ["# Bad files, who reads them, and what is said of each. Written by scripts/hostile_fixtures.py, which keeps `exit` and `says`."]
    for file, run in RUNS:
        exit_code, says = known.get((file, run), (-1, "?"))
        out.append(f"\n[[case]]\nfile = {json.dumps(file)}\nrun = {json.dumps(run)}\nexit = {exit_code}\nsays = {json.dumps(says, ensure_ascii=False)}")
    manifest.write_text("\n".join(out) + "\n")
    print(len({file for file, _ in RUNS}), "rules,", len(RUNS), "runs")


if __name__ == "__main__":
    main()
