#!/usr/bin/env python3
"""Writes fixtures/vocab/<case>/ for the tokenizer modes: small tokenizer files, the `tokenizer.*` keys that llama.cpp's
converter makes of them (expect.json), and ids of texts (ids.json) by the original tokenizer, where there is one to run.

Usage: vocab_modes.py [--tokenize PROGRAM] LLAMA_CPP_DIR FIXTURES_DIR [CASE...]

Needs torch, transformers 4.57, tokenizers, gguf, sentencepiece, tiktoken, mistral-common 1.13. Code that comes with
checkpoints is not run: the classes below do what it does, as far as the converter looks. The pre-tokenizer, which the
converter finds by a hash over real vocabularies, is given where a case is small. PROGRAM reads the name of a GGUF file and
texts (a line with the length in bytes, then the text and a line feed) and prints a line of ids by llama.cpp for each: with
it, `llama.cpp`'s ids stand beside the others where they differ. Trainings of WordPiece are not the same twice.
"""
import argparse
import base64
import contextlib
import io
import itertools
import json
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import converter

parser = argparse.ArgumentParser()
parser.add_argument("llama_cpp", type=Path)
parser.add_argument("fixtures", type=Path)
parser.add_argument("--tokenize")
parser.add_argument("cases", nargs="*")
options = parser.parse_args()
converter.use(options.llama_cpp)
import gguf  # noqa: E402
import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402
from conversion.mistral import MistralModel  # noqa: E402
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer  # noqa: E402
from mistral_common.tokens.tokenizers.tekken import Tekkenizer  # noqa: E402

TEXT = """The quick brown fox jumps over the lazy dog. She sells sea shells by the sea shore, 1234567890 of them.
How much wood would a woodchuck chuck if a woodchuck could chuck wood? 你好，世界！敏捷的棕色狐狸跳过了懒狗。
Peter Piper picked a peck of pickled peppers; naïve café déjà vu — (a + b) * c = d / e & f | g.
"""
TEXTS = ["", "The quick brown fox", "  two  blanks ", "naïve café DÉJÀ", "你好，世界！", "a\n\nb\tc", "1234567890", "🦙 llama 👩‍🔬",
         "unbelievable words, zzz!", "(a + b) * c", "x" * 40, "ＦＵＬＬ ﬁ ½", "\ufeffbom\0nul", "don't I'LL"]
SIZES = dict(hidden_size=64, num_attention_heads=4, num_hidden_layers=1, intermediate_size=96)
ALPHABET = transformers.models.gpt2.tokenization_gpt2.bytes_to_unicode()
QWEN_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def write(folder, name, value):
    (folder / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


RULES = ["FF26\t46", "FF35\t55", "FF2C\t4C", "FB01\t66 69", "BD\t31 2044 32", "FEFF\t", "3000\t20", "9\t20", "A\t20"]


def spm(folder, name, n, kind, rules=False, **more):
    if rules:
        # A map of characters as released models have it, without their 200 KB.
        (folder / "rules").write_text("".join(rule + "\n" for rule in RULES))
        more = more | dict(normalization_rule_tsv="rules", normalization_rule_name="")
    settings = dict(pad_id=-1, normalization_rule_name="identity", byte_fallback=kind == "bpe",
                    hard_vocab_limit=kind == "bpe") | more
    # From memory to memory, and without a folder: a model holds the names of the files it was trained with.
    model = io.BytesIO()
    with contextlib.chdir(folder):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT.splitlines()), model_writer=model, vocab_size=n, model_type=kind, minloglevel=2,
            character_coverage=1.0, **settings)
    (folder / name).write_bytes(model.getvalue())
    (folder / "rules").unlink(missing_ok=True)
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / name))


def rank_list(order=range(256), n=120):
    """256 bytes, then pairs of the most frequent kind, as a training would find them."""
    tokens = [bytes([b]) for b in order]
    words = [[bytes([b]) for b in word] for word in TEXT.encode().replace(b" ", b"\n ").split(b"\n")]
    for _ in range(n):
        pairs = {}
        for word in words:
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if best[0] + best[1] not in tokens:
            tokens.append(best[0] + best[1])
        merged = []
        for word in words:
            out = []
            for part in word:
                out.append(part)
                if tuple(out[-2:]) == best:
                    out[-2:] = [best[0] + best[1]]
            merged.append(out)
        words = merged
    return tokens


def rank_file(folder, name, tokens):
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (folder / name).write_text("".join(lines))


class Ranks:
    """A tokenizer of ranks, as far as the converter looks."""

    def __init__(self, folder, name, specials, eos=None):
        lines = (folder / name).read_text().splitlines()
        self.mergeable_ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}
        self.model = SimpleNamespace(_mergeable_ranks=self.mergeable_ranks)
        self.special_tokens = specials(len(lines))
        self.eos_id = self.special_tokens.get(eos)
        self.vocab_size = max(self.special_tokens.values()) + 1

    def get_vocab(self):
        return {**self.mergeable_ranks, **self.special_tokens}


def trained(kind, size=320, special=(), **parts):
    """A tokenizer.json."""
    models, trainers = tokenizers.models, tokenizers.trainers
    if kind == "wordpiece":
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(special), show_progress=False)
    else:
        made = tokenizers.Tokenizer(models.BPE(**parts.pop("bpe", {})))
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False,
                                      **parts.pop("trainer", {}))
    for name, part in parts.items():
        setattr(made, name, part)
    made.train_from_iterator(TEXT.splitlines(), trainer)
    return made


def bert_tokenizer():
    made = trained("wordpiece", special=["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                   normalizer=tokenizers.normalizers.BertNormalizer(), decoder=tokenizers.decoders.WordPiece(),
                   pre_tokenizer=tokenizers.pre_tokenizers.BertPreTokenizer())
    cls, sep = made.token_to_id("[CLS]"), made.token_to_id("[SEP]")
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
    return made


BERT = dict(architectures=["BertModel"], model_type="bert", vocab_size=324, type_vocab_size=2, pad_token_id=0,
            max_position_embeddings=64, **SIZES)


def bert(folder):
    made = bert_tokenizer()
    made.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "BertTokenizer", "do_lower_case": True, "cls_token": "[CLS]", "sep_token": "[SEP]",
        "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"})
    return BERT, dict(pre="jina-v2-en", ids=lambda text: made.encode(text, add_special_tokens=False).ids)


def bert_lines(folder):
    made = bert_tokenizer()
    vocab = sorted(made.get_vocab().items(), key=lambda row: row[1])
    (folder / "vocab.txt").write_text("".join(token + "\n" for token, _ in vocab))
    write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    cased = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False)
    return BERT, dict(pre="jina-v2-en", ids=lambda text: cased.encode(text, add_special_tokens=False),
                      note="the file has no key that says that letters keep their case")


def xlmr(folder):
    spm(folder, "sentencepiece.bpe.model", 200, "unigram", rules=True, byte_fallback=False)
    config = dict(architectures=["XLMRobertaModel"], model_type="xlm-roberta", vocab_size=204, type_vocab_size=1,
                  pad_token_id=1, bos_token_id=0, eos_token_id=2, max_position_embeddings=66, **SIZES)
    slow = transformers.XLMRobertaTokenizer(str(folder / "sentencepiece.bpe.model"))
    return config, dict(ids=lambda text: slow.convert_tokens_to_ids(slow.tokenize(text)))


def xlmr_json(folder):
    with tempfile.TemporaryDirectory() as temp:
        spm(Path(temp), "sentencepiece.bpe.model", 200, "unigram", rules=True, byte_fallback=False)
        fast = transformers.XLMRobertaTokenizerFast(str(Path(temp) / "sentencepiece.bpe.model"))
    # As released files have it; the converter does not look into a sequence.
    state = json.loads(fast.backend_tokenizer.to_str())
    state["normalizer"] = next(step for step in state["normalizer"]["normalizers"] if step["type"] == "Precompiled")
    write(folder, "tokenizer.json", state)
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "XLMRobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>",
        "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>", "add_prefix_space": True,
        "clean_up_tokenization_spaces": True,
        "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": True,
                       "single_word": False}})
    config = dict(architectures=["XLMRobertaModel"], model_type="xlm-roberta", vocab_size=208, type_vocab_size=1,
                  pad_token_id=1, max_position_embeddings=66, **SIZES)
    return config, dict(ids=lambda text: fast.encode(text, add_special_tokens=False))


def gemma4(folder):
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]", "<unused0>", "<|tool>", "<|channel>",
               "<channel|>", "<|tool_call>", "<|\"|>", "<|turn>", "<turn|>"]
    made = trained("bpe", size=600, special=special + bytes_, bpe=dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>"),
                   normalizer=tokenizers.normalizers.Replace(" ", "▁"),
                   pre_tokenizer=tokenizers.pre_tokenizers.Split(" ", "merged_with_previous"),
                   decoder=tokenizers.decoders.Sequence([
                       tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]))
    state = json.loads(made.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]
    for token in state["added_tokens"]:
        token["special"] = not token["content"].startswith(("<unused", "[multi"))
    state["added_tokens"].append(dict(state["added_tokens"][0], id=len(state["model"]["vocab"]), content="<image>"))
    state["added_tokens"].append(dict(state["added_tokens"][0], id=len(state["model"]["vocab"]) + 1, content="<extra>",
                                      special=False))
    write(folder, "tokenizer.json", state)
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>",
        "pad_token": "<pad>", "mask_token": "<mask>", "extra_special_tokens": {"image_token": "<image>", "sot_token": "<|turn>"},
        "chat_template": "{{ bos_token }}"})
    n = len(state["model"]["vocab"]) + 2
    config = dict(architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", vocab_size=n, head_dim=16, **SIZES)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return config, dict(ids=lambda text: fast.encode(text, add_special_tokens=False))


def rwkv(folder):
    tokens = [bytes([b]) for b in range(256)] + [b"\t\t", b"\n ", b"  ", b"\r\n", b"\n\n", b"''", b"'\"", b'"\\', b"\xff\xfe"]
    tokens += [word.encode() for word in ("The", "the", " the", " quick", "wood", "chuck", "é", "你", "你好", "，世", "🦙", "café")]
    lines = []
    for n, token in enumerate(tokens, 1):
        try:
            shown = repr(token.decode())
        except UnicodeDecodeError:
            shown = repr(token)
        lines.append(f"{n} {shown} {len(token)}\n")
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    write(folder, "tokenizer_config.json", {"tokenizer_class": "RwkvTokenizer", "chat_template": "{{ messages }}"})
    by_token = {token: n for n, token in enumerate(tokens, 1)}

    def ids(text):
        data, out = text.encode(), []
        while data:
            n = next(n for n in range(min(12, len(data)), 0, -1) if data[:n] in by_token)
            out.append(by_token[data[:n]])
            data = data[n:]
        return out
    config = dict(architectures=["Rwkv6ForCausalLM"], model_type="rwkv6", vocab_size=288, bos_token_id=7, **SIZES)
    return config, dict(ids=ids)


def plamo2(folder):
    rows = [["<|plamo:unk|>", 0.0, "UNKNOWN", 1, 0, 0, 0], ["<|plamo:bos|>", 0.0, "CONTROL", 1, 0, 0, 0],
            ["<|plamo:eos|>", 0.0, "CONTROL", 1, 0, 0, 0], ["<|plamo:pad|>", 0.0, "CONTROL", 1, 0, 0, 0],
            ["<|plamo:op|>", 0.0, "NORMAL", 1, 0, 0, 0]]
    rows += [[f"<0x{b:02X}>", 0.0, "BYTE", 1, 0, 0, 0] for b in range(256)]
    with tempfile.TemporaryDirectory() as temp:
        model = spm(Path(temp), "m", 180, "unigram", byte_fallback=False)
    texts = [(model.id_to_piece(i).replace("▁", " "), model.get_score(i)) for i in range(3, model.vocab_size())]
    texts += [("quick", -7.25), ("qui", -3.125), ("好，", -6.5), ("🦙", -9.0)]
    seen = {row[0] for row in rows}
    for text, score in texts:
        if text not in seen:
            rows.append([text, score, "NORMAL", 0, 0, 0, 0])
            seen.add(text)
    (folder / "tokenizer.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "Plamo2Tokenizer", "bos_token": "<|plamo:bos|>", "eos_token": "<|plamo:eos|>",
        "pad_token": "<|plamo:pad|>", "unk_token": "<|plamo:unk|>", "cls_token": None, "sep_token": None})
    config = dict(architectures=["Plamo2ForCausalLM"], model_type="plamo2", vocab_size=len(rows) + 3, **SIZES)
    return config, {}


def tekken_file(folder, version, special):
    tokens = rank_list()
    vocab = [{"rank": n, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode("utf-8", "replace")}
             for n, token in enumerate(tokens)]
    pattern = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
               r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    # Two tokens fewer than the file has are used.
    file = {"config": {"pattern": pattern, "num_vocab_tokens": len(vocab), "default_vocab_size": len(vocab) + 24 - 2,
                       "default_num_special_tokens": 24, "version": version}, "vocab": vocab}
    if special:
        file["special_tokens"] = [{"rank": n, "token_str": token, "is_control": True} for n, token in enumerate(special)]
    (folder / "tekken.json").write_text(json.dumps(file))
    made = Tekkenizer.from_file(folder / "tekken.json")
    return dict(ids=lambda text: made.encode(text, bos=False, eos=False))


def mistral_tekken(folder):
    extra = tekken_file(folder, "v3", None)
    return dict(architectures=["MistralForCausalLM"], model_type="mistral", vocab_size=398, **SIZES), extra


def mistral_tekken_v7(folder):
    known = [token["token_str"].value for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    extra = tekken_file(folder, "v7", ["[THINK]", *reversed(known)])
    return dict(dim=64, n_layers=1, n_heads=4, n_kv_heads=4, hidden_dim=96, vocab_size=398, norm_eps=1e-5), extra | dict(
        mistral=True)


def mistral_spm(folder):
    spm(folder, "tokenizer.model.v3", 400, "bpe", control_symbols=["[INST]", "[/INST]"], remove_extra_whitespaces=False)
    made = SentencePieceTokenizer(folder / "tokenizer.model.v3")
    return dict(dim=64, n_layers=1, n_heads=4, n_kv_heads=4, hidden_dim=96, vocab_size=400, norm_eps=1e-5), dict(
        mistral=True, ids=lambda text: made.encode(text, bos=False, eos=False))


def phi3(folder):
    spm(folder, "tokenizer.model", 400, "bpe")
    write(folder, "added_tokens.json", {"<|assistant|>": 401, "<|end|>": 403})
    added = {"0": ("<unk>", True), "1": ("<s>", True), "2": ("</s>", False), "400": ("<|endoftext|>", True),
             "401": ("<|assistant|>", True), "402": ("<|placeholder1|>", False), "404": ("a▁b", False)}
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "<|endoftext|>", "add_bos_token": True,
        "added_tokens_decoder": {n: {"content": text, "special": special} for n, (text, special) in added.items()}})
    write(folder, "tokenizer.json", {"version": "1.0", "added_tokens": [
        {"id": 400, "content": "<|endoftext|>", "special": True}, {"id": 405, "content": "<|user|>", "special": True},
        {"id": 2, "content": "</s>", "special": False}], "model": {"type": "BPE", "vocab": {}, "merges": []}})
    return dict(architectures=["Phi3ForCausalLM"], model_type="phi3", vocab_size=410, bos_token_id=1, eos_token_id=400,
                pad_token_id=400, **SIZES), {}


def arctic(folder):
    spm(folder, "tokenizer.model", 400, "bpe")
    added = {"0": ("<unk>", True), "1": ("<s>", True), "2": ("</s>", True), "398": ("<|im_start|>", True),
             "399": ("<|im_end|>", True), "400": ("plain", False)}
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "ArcticTokenizer", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<unk>",
        "added_tokens_decoder": {n: {"content": text, "special": special} for n, (text, special) in added.items()}})
    return dict(architectures=["ArcticForCausalLM"], model_type="arctic", vocab_size=404, bos_token_id=398, eos_token_id=399,
                num_local_experts=2, **SIZES), {}


def numbered(names, gap=0):
    return lambda n: {name: n + gap + at for at, name in enumerate(names)}


def stablelm(folder):
    names = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<gh_stars>", "<filename>",
             "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>",
             "<jupyter_output>", "<empty_output>", "<commit_before>", "<commit_msg>", "<commit_after>", "<reponame>",
             "<|endofprompt|>", "<|im_start|>", "<|im_end|>", "<|pause|>", *[f"<|reg{i}|>" for i in range(8)], "<|extra0|>"]
    rank_file(folder, "arcade100k.tiktoken", rank_list())
    write(folder, "tokenizer_config.json", {"tokenizer_class": "Arcade100kTokenizer"})
    return dict(architectures=["StableLmForCausalLM"], model_type="stablelm", vocab_size=416, **SIZES), dict(
        pre="stablelm2", tokenizer=lambda path: Ranks(path, "arcade100k.tiktoken", numbered(names, 1)))


def hunyuan(folder):
    tokens = rank_list()
    # A token that no merge makes is left without one.
    tokens.append(b"QZX")
    rank_file(folder, "hy.tiktoken", tokens)
    names = ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *[f"<|extra_{i}|>" for i in range(204)]]
    write(folder, "tokenizer_config.json", {"tokenizer_class": "HYTokenizer", "chat_template": "{{ x }}"})
    config = dict(architectures=["HunYuanMoEV1ForCausalLM"], model_type="hunyuan_v1_moe", vocab_size=len(tokens) + 209,
                  bos_token_id=1, eos_token_id=380, pad_token_id=381, num_experts=2, **SIZES)
    return config, dict(pre="hunyuan", tokenizer=lambda path: Ranks(path, "hy.tiktoken", numbered(names)))


def kimi(folder, linear=False):
    rank_file(folder, "tiktoken.model", rank_list())
    n = len(rank_list())
    named = {n: "[BOS]", n + 1: "[EOS]", n + 2: "<|im_end|>", n + 255: "[PAD]"}
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]",
        "added_tokens_decoder": {i: {"content": text, "special": True} for i, text in named.items()}})
    specials = lambda n: {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(n, n + 256)}  # noqa: E731
    config = dict(architectures=["KimiLinearForCausalLM" if linear else "DeepseekV3ForCausalLM"],
                  model_type="kimi_linear" if linear else "kimi_k2", vocab_size=n + 260, bos_token_id=n, eos_token_id=n + 2,
                  **SIZES)
    return config, dict(pre="kimi-k2", tokenizer=lambda path: Ranks(path, "tiktoken.model", specials, "[EOS]"))


def kimi_linear(folder):
    return kimi(folder, linear=True)


def hybriddna(folder):
    splits = tokenizers.pre_tokenizers
    made = trained("bpe", size=300, pre_tokenizer=splits.Sequence([
        splits.Split(tokenizers.Regex(QWEN_REGEX), "isolated"), splits.ByteLevel(add_prefix_space=False, use_regex=False)]),
        normalizer=tokenizers.normalizers.NFC(), decoder=tokenizers.decoders.ByteLevel(),
        trainer=dict(initial_alphabet=splits.ByteLevel.alphabet()))
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    made.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "HybridDNATokenizer", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})
    base = made.get_vocab()
    kmers = ["".join(word) for word in itertools.product("ATCG", repeat=6)]
    dna = ["<dna>", "</dna>", "<oov>", *kmers]
    dna += [f"<unused_{i}>" for i in range(-(len(base) + len(dna)) % 128)]
    to_id = {token: len(base) + n for n, token in enumerate(dna)}
    end = made.token_to_id("<|endoftext|>")
    added = tokenizers.AddedToken("<|endoftext|>", special=True)

    def ids(text):
        out = []
        while text:
            opening, closing = text.find("<dna>"), text.find("</dna>")
            has_open = opening >= 0 and (closing < 0 or opening < closing)
            start = opening if has_open else 0 if closing >= 0 else len(text)
            out += made.encode(text[:start], add_special_tokens=False).ids
            inside, tag, text = text[start:].removeprefix("<dna>").partition("</dna>")
            words = [inside.strip().upper()[i:i + 6].ljust(6, "A") for i in range(0, len(inside.strip()), 6)]
            out += [to_id["<dna>"]] * has_open + [to_id[word if set(word) <= set("ACGT") else "<oov>"] for word in words]
            out += [to_id["</dna>"]] * bool(tag)
        return out
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=len(base) + len(dna) + 2, **SIZES)
    own = SimpleNamespace(vocab={**to_id, **base}, kmers=kmers, dna_token_to_id=to_id,
                          get_added_vocab=lambda: {"<|endoftext|>": end}, added_tokens_decoder={end: added})
    return config, dict(pre="qwen2", tokenizer=lambda path: own, ids=ids, texts=[
        "<dna>ACGTACGGGGGGTT</dna> and text", "see <dna>acgtnnACGTAC", "no tags ACGTAC", "<dna></dna>", "a </dna> b"])


def whitespace(folder):
    made = trained("bpe", size=260, special=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], bpe=dict(unk_token="<unk>"),
                   normalizer=tokenizers.normalizers.Lowercase(),
                   pre_tokenizer=tokenizers.pre_tokenizers.WhitespaceSplit())
    state = json.loads(made.to_str())
    state["pre_tokenizer"] = {"type": "Whitespace"}
    state["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
                               "add_prefix_space": False}
    write(folder, "tokenizer.json", state)
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "RobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
        "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"})
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = dict(architectures=["JinaBertModel"], model_type="bert", vocab_size=264, type_vocab_size=2, **SIZES)
    return config, dict(pre="unused", ids=lambda text: made.encode(text, add_special_tokens=False).ids)


class ChatGlm3Tokenizer:
    """As tokenization_chatglm.py of ChatGLM 3."""
    SPECIAL = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]

    def __init__(self, folder):
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        self.tokenizer = SimpleNamespace(sp_model=self.model)

    def _convert_id_to_token(self, index):
        n = self.model.vocab_size()
        if n <= index < n + len(self.SPECIAL):
            return self.SPECIAL[index - n]
        if index > n or index in (self.model.eos_id(), self.model.bos_id(), self.model.pad_id()):
            return ""
        return self.model.IdToPiece(index)

    def get_vocab(self):
        return {self._convert_id_to_token(i): i for i in range(self.model.vocab_size() + len(self.SPECIAL))}


def chatglm3(folder):
    spm(folder, "tokenizer.model", 400, "bpe")
    write(folder, "tokenizer_config.json", {"tokenizer_class": "ChatGLMTokenizer"})
    return dict(architectures=["ChatGLMModel"], model_type="chatglm", num_layers=1, padded_vocab_size=420,
                ffn_hidden_size=96, _name_or_path="THUDM/chatglm3-6b", bos_token_id=1, eos_token_id=2, pad_token_id=0,
                hidden_size=64, num_attention_heads=4), dict(tokenizer=ChatGlm3Tokenizer, ids=None, parameters=True)


def qwen(folder):
    """With special tokens behind a smaller number of ranks than tokenization_qwen.py has."""
    order = [*range(33, 127), *range(161, 173), *range(174, 256), *range(0, 33), *range(127, 161), 173]
    rank_file(folder, "qwen.tiktoken", rank_list(order))
    write(folder, "tokenizer_config.json", {"tokenizer_class": "QWenTokenizer"})
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *[f"<|extra_{i}|>" for i in range(205)]]
    config = dict(architectures=["QWenLMHeadModel"], model_type="qwen", num_hidden_layers=1, vocab_size=600,
                  intermediate_size=192, layer_norm_epsilon=1e-6, hidden_size=64, num_attention_heads=4)
    return config, dict(pre="qwen2", tokenizer=lambda path: Ranks(path, "qwen.tiktoken", numbered(names)), ids=None)


def baichuan(folder):
    spm(folder, "tokenizer.model", 400, "bpe")
    added = {"400": {"content": "<reserved_1>", "special": False}, "2": {"content": "</s>", "special": True}}
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "BaichuanTokenizer", "add_bos_token": False, "added_tokens_decoder": added})
    return dict(architectures=["BaichuanForCausalLM"], model_type="baichuan", num_hidden_layers=1, vocab_size=404,
                intermediate_size=96, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2, hidden_size=64,
                num_attention_heads=4), dict(ids=None)


CASES = [bert, bert_lines, xlmr, xlmr_json, gemma4, rwkv, plamo2, mistral_tekken, mistral_tekken_v7, mistral_spm, phi3, arctic,
         stablelm, hunyuan, kimi, kimi_linear, hybriddna, whitespace, chatglm3, qwen, baichuan]


def llama_ids(path, texts):
    data = b"".join(b"%d\n%s\n" % (len(text.encode()), text.encode()) for text in texts)
    done = subprocess.run([options.tokenize, str(path), "0"], input=data, capture_output=True, check=True)
    return [[int(n) for n in line.split()] for line in done.stdout.decode().split("\n")[:len(texts)]]


def convert(folder, config, extra, out):
    if extra.get("mistral"):
        made = MistralModel(folder, gguf.LlamaFileType.ALL_F32, out, hparams=dict(config))
    else:
        made = converter.text_class(folder)(folder, gguf.LlamaFileType.ALL_F32, out)
    if pre := extra.get("pre"):
        type(made).get_vocab_base_pre = lambda self, _: pre
    if not extra.get("parameters"):
        made.set_gguf_parameters = lambda: None
    made.write_vocab()


load = transformers.AutoTokenizer.from_pretrained
for make in CASES:
    if options.cases and make.__name__ not in options.cases:
        continue
    folder = options.fixtures / make.__name__
    folder.mkdir(parents=True, exist_ok=True)
    config, extra = make(folder)
    write(folder, "params.json" if extra.get("mistral") else "config.json", config)
    if own := extra.get("tokenizer"):
        def from_code(path, trust_remote_code=False, **_):
            if not trust_remote_code:
                raise ValueError("the tokenizer is code")
            return own(Path(path))
        transformers.AutoTokenizer.from_pretrained = from_code
    else:
        transformers.AutoTokenizer.from_pretrained = load
    texts = TEXTS + extra.get("texts", [])
    with tempfile.TemporaryDirectory() as temp:
        out = Path(temp) / "vocab.gguf"
        convert(folder, config, extra, out)
        fields = gguf.GGUFReader(out).fields.values()
        rows = [converter.key_row(f) for f in fields if f.name.startswith("tokenizer.") or f.name.endswith(".vocab_size")]
        theirs = llama_ids(out, texts) if options.tokenize else [None] * len(texts)
    (folder / "expect.json").write_text("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]\n")
    if not (original := extra.get("ids", options.tokenize)):
        print(make.__name__, [r[0].removeprefix("tokenizer.ggml.") for r in rows])
        continue
    ids = {}
    for text, llama in zip(texts, theirs):
        own_ids = list(original(text)) if "ids" in extra else llama
        ids[text] = {"ids": own_ids} if llama in (None, own_ids) else {"ids": own_ids, "llama.cpp": llama}
    (folder / "ids.json").write_text(
        "{\n" + ",\n".join(f" {json.dumps(t, ensure_ascii=False)}: {json.dumps(r)}" for t, r in ids.items()) + "\n}\n")
    n_other = sum("llama.cpp" in r for r in ids.values())
    print(make.__name__, [r[0].removeprefix("tokenizer.ggml.") for r in rows], f"{n_other} of {len(ids)} texts differ")
