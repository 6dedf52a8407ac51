#!/usr/bin/env python3
"""Writes fixtures/vocab/<case>/: small tokenizer files, and the `tokenizer.*` keys that llama.cpp's converter makes of
them, for tokenizers whose code comes with the checkpoint.

Usage: vocab_fixtures.py LLAMA_CPP_DIR FIXTURES_DIR    (needs torch, transformers, gguf, sentencepiece)

That code is not run: the classes below do what it does, as far as the converter looks. Qwen's pre-tokenizer, which the
converter finds by a hash over its real vocabulary, is given.
"""
import base64
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

LLAMA_CPP, FIXTURES = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
import gguf  # noqa: E402
import sentencepiece  # noqa: E402
import transformers  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402

TEXT = """The quick brown fox jumps over the lazy dog. She sells sea shells by the sea shore, 1234567890 of them.
How much wood would a woodchuck chuck if a woodchuck could chuck wood? 你好，世界！敏捷的棕色狐狸跳过了懒狗。
Peter Piper picked a peck of pickled peppers; naïve café déjà vu — (a + b) * c = d / e & f | g.
"""
SIZES = dict(hidden_size=64, num_attention_heads=4)


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


class QwenTokenizer:
    """As tokenization_qwen.py, with special tokens behind a smaller number of ranks."""

    def __init__(self, folder):
        lines = (folder / "qwen.tiktoken").read_text().splitlines()
        self.mergeable_ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}
        names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]
        self.special_tokens = {name: i for i, name in enumerate(names, len(lines))}

    def get_vocab(self):
        return {**self.mergeable_ranks, **self.special_tokens}


def train(folder, name, n, kind):
    (folder / "text").write_text(TEXT)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=n, model_type=kind, pad_id=-1,
        normalization_rule_name="identity", byte_fallback=kind == "bpe", minloglevel=2, character_coverage=1.0)
    (folder / "m.model").rename(folder / name)
    (folder / "m.vocab").unlink()
    (folder / "text").unlink()


def ranks():
    """256 bytes in Qwen's order, then pairs of the most frequent kind, as a training would find them."""
    first = [*range(33, 127), *range(161, 173), *range(174, 256), *range(0, 33), *range(127, 161), 173]
    tokens = [bytes([b]) for b in first]
    words = [[bytes([b]) for b in word] for word in TEXT.encode().replace(b" ", b"\n ").split(b"\n")]
    for _ in range(120):
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
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def chatglm3(folder):
    train(folder, "tokenizer.model", 400, "bpe")
    return dict(architectures=["ChatGLMModel"], model_type="chatglm", num_layers=1, padded_vocab_size=420,
                ffn_hidden_size=96, _name_or_path="THUDM/chatglm3-6b", bos_token_id=1, eos_token_id=2, pad_token_id=0,
                **SIZES), {"tokenizer_class": "ChatGLMTokenizer"}, ChatGlm3Tokenizer


def qwen(folder):
    (folder / "qwen.tiktoken").write_text(ranks())
    return dict(architectures=["QWenLMHeadModel"], model_type="qwen", num_hidden_layers=1, vocab_size=600,
                intermediate_size=192, layer_norm_epsilon=1e-6, **SIZES), {"tokenizer_class": "QWenTokenizer"}, QwenTokenizer


def baichuan(folder):
    train(folder, "tokenizer.model", 400, "bpe")
    added = {"400": {"content": "<reserved_1>", "special": False}, "2": {"content": "</s>", "special": True}}
    return dict(architectures=["BaichuanForCausalLM"], model_type="baichuan", num_hidden_layers=1, vocab_size=404,
                intermediate_size=96, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2, **SIZES), {
        "tokenizer_class": "BaichuanTokenizer", "add_bos_token": False, "added_tokens_decoder": added}, None


def row(field):
    names = {t: t.name.lower() for t in gguf.GGUFValueType}
    kind = field.types[0]
    if kind == gguf.GGUFValueType.ARRAY:
        return [field.name, f"arr[{names[field.types[1]]}]", field.contents()]
    return [field.name, names[kind], field.contents()]


for make in (chatglm3, qwen, baichuan):
    folder = FIXTURES / make.__name__
    folder.mkdir(parents=True, exist_ok=True)
    config, tokenizer_config, tokenizer = make(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1) + "\n")
    if tokenizer:
        transformers.AutoTokenizer.from_pretrained = lambda path, **_: tokenizer(Path(path))
    with tempfile.TemporaryDirectory() as temp:
        out = Path(temp) / "vocab.gguf"
        hparams = ModelBase.load_hparams(folder, False)
        cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT), mmproj=False)
        cls.get_vocab_base_pre = lambda self, _: "qwen2"
        cls(folder, gguf.LlamaFileType.ALL_F32, out).write_vocab()
        reader = gguf.GGUFReader(out)
        rows = [row(f) for f in reader.fields.values() if f.name.startswith("tokenizer.")]
    (folder / "expect.json").write_text("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]\n")
    print(make.__name__, [r[0] for r in rows])
