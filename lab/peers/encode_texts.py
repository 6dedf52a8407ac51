#!/usr/bin/env python3
"""Random and awkward texts with the ids of the original tokenizers, as a corpus that our tests read.

  encode_texts.py CORPUS OUT [--count 500] [--seed 1]
  GGUF_CONFORMANCE=OUT cargo test --test it tokenizer::encoding::ids_equal

CORPUS is the conformance corpus. For every vocabulary of CORPUS/vocab, OUT/vocab gets links to its files, and a
tokenization.json and notes of the same form with other texts; _vectors of BERT's kind get ids by Hugging Face's
tokenizer, made of the tokens of the GGUF file. The tests list the texts that differ, and fail: their list of known
differences is of other texts. Needs tokenizers, sentencepiece, gguf.
"""
import argparse
import json
import pathlib
import random

import sentencepiece
import tokenizers
from gguf import GGUFReader
from tokenizers import models, normalizers, pre_tokenizers

WORDS = """the of Hello world naïve café Ünïcödé straße ΣΊΣΥΦΟΣ İstanbul ǅ ﬁnance ﬂy ① ½ ² Ⅷ ℌ ﷺ Å Å ậ ậ
русский українська мова ёлка 中文 測試 日本語 テスト ﾃｽﾄ 한국어 한국 ไทย हिन्दी العربية עברית ქართული 🙂 👩‍👩‍👧 🇩🇪 👍🏽 😁
don't I'll 3.14159 1,000 0xFF http://x.y/z?q=1 a_b-c <s> </s> <unk> <pad> <0x0A> [UNK] [MASK] ▁ ▁▁ ## ##ing \\n
embeddings tokenization internationalization antidisestablishmentarianism return printf("%d\\n") {} [] () => != ...
""".split()
ODD = [
    " ", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u200b", "\u200d", "\u2028", "\u0085", "\ufeff",
    "\u00ad", "\u0000", "\u0001", "\u007f", "\u0300", "\u0301\u0323", "\ufffd", "\ue000", "\U0010ffff", "\u0378", "\u2581",
    "\u0e33", "\u094d", "\u1160", "\uac00", "\u0f71\u0f72", "\u1e9e", "\u0130", "\U0001d400", "\U00020000", "\uf900",
]


def text(rng):
    kind = rng.random()
    if kind < 0.08:
        return rng.choice(WORDS + ODD + list("aZ9.,;'\"#")) * rng.choice([1, 2, 3, 7, 17, 64, 120, 300])
    if kind < 0.2:
        points = (chr(rng.choice([rng.randrange(0x300), rng.randrange(0x3000), rng.randrange(0xD800),
                                  rng.randrange(0xE000, 0x30000)])) for _ in range(rng.randrange(1, 30)))
        return "".join(points)
    parts = []
    for _ in range(rng.randrange(1, 25)):
        parts.append(rng.choice(WORDS) if rng.random() < 0.7 else rng.choice(ODD))
        if rng.random() < 0.6:
            parts.append(" ")
    return "".join(parts)


def original(folder):
    file = folder / "tokenizer.json"
    if file.is_file():
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        return (lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
                lambda ids: tokenizer.decode(ids, skip_special_tokens=False))
    model = sentencepiece.SentencePieceProcessor(model_file=str(next(folder.glob("*.model"))))
    return model.encode, model.decode


def bert(file):
    fields = GGUFReader(str(file)).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    vocab = {}
    for at, (token, kind) in enumerate(zip(tokens, types)):
        inner = "##" + token
        vocab[token if kind == 3 else token[1:] if token.startswith("\u2581") else inner] = at
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    texts = sorted({text(rng) for _ in range(args.count)})
    for folder in sorted((args.corpus / "vocab").iterdir()):
        if not (folder / "hf").is_dir():
            continue
        out = args.out / "vocab" / folder.name
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "hf").exists():
            (out / "hf").symlink_to((folder / "hf").resolve())
        encode, decode = original(folder / "hf")
        ids = {text: encode(text) for text in texts}
        decoded = {text: decode(own) for text, own in ids.items()}
        notes = {"decoded_differs_from_text": {text: own for text, own in decoded.items() if own != text}}
        (out / "tokenization_notes.json").write_text(json.dumps(notes))
        (out / "tokenization.json").write_text(json.dumps(ids))
    vectors = args.out / "vocab" / "_vectors"
    vectors.mkdir(parents=True, exist_ok=True)
    for file in sorted((args.corpus / "vocab" / "_vectors").glob("*bert*.gguf")):
        if not (vectors / file.name).exists():
            (vectors / file.name).symlink_to(file.resolve())
        encode = bert(file)
        tests = [[text, encode(text)] for text in texts]
        (vectors / file.with_suffix(".json").name).write_text(json.dumps({"tests": tests}))


if __name__ == "__main__":
    main()
