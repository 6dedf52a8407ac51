#!/usr/bin/env python3
"""Writes fixtures/chat/expected.json: chats as transformers writes them out.

Usage: chat_fixtures.py [CONFORMANCE]

Templates: fixtures/chat/templates/, and those of vocab/*/hf in the conformance corpus if it is given (of these only
the text that comes out is stored). Needs transformers and jinja2. `strftime_now` is fixed as gguf-verify fixes it.
"""
import datetime
import hashlib
import json
import pathlib
import sys

import jinja2
from transformers.utils import chat_template_utils

ROOT = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "chat"


class Fixed(datetime.datetime):
    @classmethod
    def now(cls):
        return cls(2024, 7, 26, 12)


chat_template_utils.datetime = Fixed
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def render(template, messages):
    try:
        text = chat_template_utils.render_jinja_template(
            conversations=[chat_template_utils._normalize_chat_messages(messages)],  # as apply_chat_template does
            chat_template=template,
            add_generation_prompt=False,
            **TOKENS,
        )[0][0]
        return {"text": text}
    except jinja2.TemplateError as error:
        # `raise_exception` raises the base class itself; its subclasses are failures.
        return {"refused" if type(error) is jinja2.TemplateError else "failed": str(error)}
    except TypeError as error:
        return {"failed": str(error)}


def corpus_templates(corpus):
    for path in sorted(corpus.glob("vocab/*/hf/tokenizer_config.json")):
        template = json.loads(path.read_text()).get("chat_template")
        if isinstance(template, str):
            yield path.parents[1].name, template


chats = json.loads((ROOT / "chats.json").read_text())
expected = {"templates": {}, "corpus": {}}
for path in sorted((ROOT / "templates").glob("*.jinja")):
    template = path.read_text()
    expected["templates"][path.stem] = {name: render(template, chat) for name, chat in chats.items()}
if len(sys.argv) > 1:
    for name, template in corpus_templates(pathlib.Path(sys.argv[1])):
        digest = hashlib.sha256(template.encode()).hexdigest()
        rendered = {chat: render(template, messages) for chat, messages in chats.items()}
        expected["corpus"][name] = {"template_sha256": digest, "chats": rendered}
out = ROOT / "expected.json"
out.write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
counts = [sum(len(v.get("chats", v)) for v in part.values()) for part in expected.values()]
print(f"{out}: {counts[0]} chats of own templates, {counts[1]} of the corpus")
