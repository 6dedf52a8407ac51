#!/usr/bin/env python3
"""Do the ids equal Hugging Face's when llama.cpp reads a vocabulary that we wrote?

  vocab_ids.py --peer DIR --convert PROGRAM CORPUS     converts every vocabulary of CORPUS/vocab and compares
  vocab_ids.py --peer DIR --gguf FILE --texts JSON     compares one file with a {text: [ids]} table

DIR holds libllama.so (llama.cpp 0.5.0). CORPUS is the conformance corpus: each vocabulary has hf/ (tokenizer
files), tokenization.json (ids by the original tokenizer) and tokenization_notes.json (what llama.cpp makes of the
reference converter's file). Prints one line a vocabulary; exits with 1 if a vocabulary has more differences than
the reference converter's has.
"""
import argparse
import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile


class ModelParams(ctypes.Structure):
    """llama_model_params of 0.5.0."""

    _fields_ = [
        ("devices", ctypes.c_void_p),
        ("tensor_buft_overrides", ctypes.c_void_p),
        ("n_gpu_layers", ctypes.c_int32),
        ("split_mode", ctypes.c_int),
        ("load_mode", ctypes.c_int),
        ("lazy_mode", ctypes.c_int),
        ("main_gpu", ctypes.c_int32),
        ("tensor_split", ctypes.c_void_p),
        ("progress_callback", ctypes.c_void_p),
        ("progress_callback_user_data", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p),
        ("vocab_only", ctypes.c_bool),
        ("check_tensors", ctypes.c_bool),
        ("use_extra_bufts", ctypes.c_bool),
        ("no_host", ctypes.c_bool),
        ("no_alloc", ctypes.c_bool),
        ("load_mtp", ctypes.c_bool),
    ]


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Peer:
    """llama.cpp's tokenizer."""

    def __init__(self, folder):
        lib = ctypes.CDLL(str(pathlib.Path(folder) / "libllama.so"))
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_model_load_from_file.restype = ctypes.c_void_p
        lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
        lib.llama_model_get_vocab.restype = ctypes.c_void_p
        lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        lib.llama_model_free.argtypes = [ctypes.c_void_p]
        lib.llama_tokenize.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32,
            ctypes.c_bool, ctypes.c_bool,
        ]
        self.silent = LOG(lambda *_: None)
        lib.llama_log_set(self.silent, None)
        lib.llama_backend_init()
        self.lib = lib

    def ids(self, path, texts, parse_special):
        """Ids of each text, no special tokens added; None if the file does not load."""
        params = self.lib.llama_model_default_params()
        params.vocab_only = True
        model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            return None
        vocab = self.lib.llama_model_get_vocab(model)
        out = {}
        for text in texts:
            data = text.encode()
            room = (ctypes.c_int32 * (len(data) + 16))()
            n = self.lib.llama_tokenize(vocab, data, len(data), room, len(room), False, parse_special)
            out[text] = list(room[:max(n, 0)])
        self.lib.llama_model_free(model)
        return out


def differences(peer, path, expected, parse_special=True):
    found = peer.ids(path, expected, parse_special)
    if found is None:
        return None
    return {text: found[text] for text, ids in expected.items() if found[text] != ids}


def run_corpus(options, peer):
    worse = 0
    cases = sorted(p.parent for p in pathlib.Path(options.corpus, "vocab").glob("*/expect.json"))
    if not cases:
        sys.exit(f"{options.corpus}: no vocabulary found")
    for case in cases:
        expected = json.loads((case / "tokenization.json").read_text("utf-8"))
        notes = json.loads((case / "tokenization_notes.json").read_text("utf-8"))
        before = len(notes["llama_cpp"].get("differs", {}))
        parse_special = not notes["reference"].startswith("sentencepiece")
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder, "vocab.gguf")
            command = [options.convert, "hf2gguf", str(case / "hf"), "--vocab-only", "-o", str(target)]
            done = subprocess.run(command, capture_output=True, text=True)
            if "no architecture card" in done.stderr:
                print(f"{case.name:24} skipped: its architecture has no card")
                continue
            if done.returncode != 0:
                print(f"{case.name:24} not converted: {done.stderr.strip().splitlines()[:1]}")
                worse += 1
                continue
            wrong = differences(peer, target, expected, parse_special)
        if wrong is None:
            print(f"{case.name:24} llama.cpp does not load the file")
            worse += 1
            continue
        worse += len(wrong) > before
        print(f"{case.name:24} {len(expected)} texts, {len(wrong)} differ (reference converter: {before})")
        for text, ids in wrong.items() if options.verbose else ():
            print(f"    {text!r}\n      {ids}\n      {expected[text]}")
    return worse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="folder with libllama.so")
    parser.add_argument("--convert", default="target/release/gguf-convert", help="our converter")
    parser.add_argument("--gguf", help="one file to check")
    parser.add_argument("--texts", help="its {text: [ids]} table")
    parser.add_argument("--verbose", action="store_true", help="print the texts that differ")
    parser.add_argument("corpus", nargs="?")
    options = parser.parse_args()
    peer = Peer(options.peer)
    if options.gguf:
        expected = json.loads(pathlib.Path(options.texts).read_text("utf-8"))
        wrong = differences(peer, options.gguf, expected)
        if wrong is None:
            sys.exit(f"{options.gguf}: llama.cpp does not load the file")
        print(f"{options.gguf}: {len(expected)} texts, {len(wrong)} differ")
        for text, ids in wrong.items():
            print(f"    {text!r}\n      {ids}\n      {expected[text]}")
        sys.exit(1 if wrong else 0)
    if not options.corpus:
        parser.error("a corpus, or --gguf with --texts")
    sys.exit(1 if run_corpus(options, peer) else 0)


if __name__ == "__main__":
    main()
