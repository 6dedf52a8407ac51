"""Files and programs, on the bundled model. GGUF_FOUNDRY_FIXTURES names the folder `fixtures` of the repository."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np

import gguf_foundry as gf

try:
    import gguf
except ImportError:
    gguf = None

FIXTURES = pathlib.Path(os.environ.get("GGUF_FOUNDRY_FIXTURES", pathlib.Path(__file__).parents[2] / "fixtures"))
MODEL = FIXTURES / "tiny-llama"


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.f16 = cls.dir / "f16.gguf"
        cls.report = gf.convert(MODEL, cls.f16, type="f16", quiet=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_convert_says_what_it_wrote(self):
        self.assertEqual(self.report["type"], "F16")
        self.assertEqual(self.report["file_bytes"], self.f16.stat().st_size)

    def test_a_model_is_read(self):
        model = gf.read(self.f16)
        self.assertEqual((model.version, model.endian, model.alignment), (3, "little", 32))
        self.assertEqual(model.metadata["general.architecture"], "llama")
        self.assertEqual(model.metadata_types["tokenizer.ggml.tokens"], "arr[str]")
        self.assertEqual(model.metadata_types["llama.block_count"], "u32")
        self.assertEqual(len(model), self.report["tensors"])
        norm = model["blk.0.attn_norm.weight"]
        self.assertEqual((norm.type.name, norm.shape, norm.n_rows), ("F32", (256,), 1))
        self.assertTrue(np.isfinite(norm.dequantize()).all())
        query = model["blk.0.attn_q.weight"]
        self.assertEqual(query.type.name, "F16")
        floats = query.dequantize()
        np.testing.assert_array_equal(query.blocks().view(np.float16), floats.astype(np.float16))
        np.testing.assert_array_equal(query.dequantize(slice(3, 9)), floats[3:9])
        np.testing.assert_array_equal(query.dequantize(slice(-2, None)), floats[-2:])
        self.assertEqual(query.dequantize(slice(9, 3)).shape, (0, 256))
        with self.assertRaises(KeyError):
            model["nothing"]

    def test_the_way_back_needs_no_type(self):
        folder = self.dir / "back"
        gf.convert(self.f16, folder, form="gguf2hf", quiet=True)
        self.assertTrue((folder / "config.json").is_file())

    def test_metadata_and_templates_are_written(self):
        copy = self.dir / "copy.gguf"
        keys = {"general.name": "@Mine", "llama.context_length": 99, "general.size_label": None}
        gf.set_metadata(self.f16, keys, copy, quiet=True, force=True)
        model = gf.read(copy)
        self.assertEqual(model.metadata["general.name"], "@Mine")
        self.assertEqual(model.metadata["llama.context_length"], 99)
        self.assertNotIn("general.size_label", model.metadata)
        text = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
        gf.set_template(copy, text, quiet=True)
        self.assertEqual(gf.read(copy).metadata["tokenizer.chat_template"], text)

    def test_several_files_are_judged(self):
        report = gf.verify([self.f16, self.f16], structure_only=True, quiet=True)
        self.assertEqual([one.verdict for one in report.models], ["partial", "partial"])
        self.assertEqual(gf.verify(self.f16, structure_only=True, quiet=True).models[0].verdict, "partial")

    def test_warnings_reach_the_caller(self):
        broken = self.dir / "template.gguf"
        gf.set_metadata(self.f16, {"general.name": "x"}, broken, quiet=True)
        with self.assertWarns(gf.GgufWarning):
            gf.inspect("set", broken, "tokenizer.chat_template=str:{% if", force=True, dry_run=True)

    @unittest.skipIf(gguf is None, "gguf-py is not installed")
    def test_gguf_py_reads_the_same(self):
        model, peer = gf.read(self.f16), gguf.GGUFReader(self.f16)
        self.assertEqual(list(model), [tensor.name for tensor in peer.tensors])
        for tensor in peer.tensors:
            self.assertEqual(model[tensor.name].shape, tuple(int(n) for n in reversed(tensor.shape)))
            self.assertEqual(model[tensor.name].offset, tensor.data_offset)
            self.assertEqual(model[tensor.name].blocks().tobytes(), tensor.data.tobytes())
        fields = {key: field for key, field in peer.fields.items() if not key.startswith("GGUF.")}
        self.assertEqual(list(model.metadata), list(fields))
        for key, field in fields.items():
            self.assertEqual(model.metadata[key], field.contents(), key)

    def test_quantized_here_and_by_the_program(self):
        q6 = self.dir / "q6.gguf"
        gf.quantize_file(self.f16, q6, "q6_k", quiet=True)
        before, after = gf.read(self.f16), gf.read(q6)
        n = 0
        for name, tensor in after.tensors.items():
            if tensor.type.name == "Q6_K":
                np.testing.assert_array_equal(gf.quantize(before[name].dequantize(), "q6_k"), tensor.blocks())
                n += 1
        self.assertGreater(n, 20)

    def test_types_of_another_file(self):
        q4, like = self.dir / "model-q4.gguf", self.dir / "like.gguf"
        gf.quantize_file(self.f16, q4, "q4_k_m", quiet=True)
        report = gf.quantize_file(self.f16, like, like=q4, quiet=True)
        self.assertGreater(report["like"]["by_name"], 20)
        self.assertEqual(like.read_bytes(), q4.read_bytes())
        with self.assertRaises(gf.ProgramError) as caught:
            gf.quantize_file(self.f16, self.dir / "x.gguf", quiet=True)
        self.assertEqual(caught.exception.exit_code, 2)

    def test_a_ladder(self):
        folder = self.dir / "ladder"
        listed = gf.ladder(self.f16, folder, types=["q8_0", "q4_k_m"], by="me", quiet=True)
        self.assertEqual([file["type"] for file in listed["files"]], ["Q8_0", "Q4_K_M"])
        names = {part["name"] for file in listed["files"] for part in file["parts"]}
        self.assertEqual(names | {"README.md", "ladder.json", "SHA256SUMS"}, {path.name for path in folder.iterdir()})
        planned = gf.ladder(self.f16, self.dir / "none", preset="small", dry_run=True, quiet=True)
        self.assertEqual(len(planned["files"]), 6)
        self.assertFalse((self.dir / "none").exists())
        # Two machines, and the run that puts their files together.
        parts, options = self.dir / "parts", {"types": "q8_0,q4_k_m", "quiet": True}
        records = [gf.ladder(self.f16, parts, part=f"{part}/2", **options) for part in (1, 2)]
        self.assertEqual(sorted(file["type"] for record in records for file in record["files"]), ["Q4_K_M", "Q8_0"])
        joined = gf.ladder(self.f16, parts, resume=True, **options)
        self.assertEqual(joined["files"], listed["files"])

    def test_a_file_is_made_again_from_its_recipe(self):
        q4, recipe, again = (self.dir / name for name in ("own-q4.gguf", "own.recipe", "again.gguf"))
        gf.quantize_file(self.f16, q4, "q4_k_m", quiet=True)
        found = gf.recipe(q4, self.f16, recipe, quiet=True)
        self.assertTrue(found["explained"])
        gf.rebuild(recipe, self.f16, again, quiet=True)
        self.assertEqual(again.read_bytes(), q4.read_bytes())
        with self.assertRaises(gf.ProgramError):
            gf.rebuild(q4, self.f16, self.dir / "x.gguf", quiet=True)

    def test_verdicts(self):
        text = MODEL / "corpus.txt"
        q4 = self.dir / "q4.gguf"
        gf.convert(MODEL, q4, type="q4_k_m", quiet=True)
        good = gf.verify(q4, prompts=text, baseline=MODEL, quiet=True)
        self.assertEqual((good.verdict, good.exit_code), ("pass", 0))
        strict = gf.verify(q4, prompts=[text], baseline=MODEL, max_kld=1e-9, quiet=True)
        self.assertEqual((strict.verdict, strict.exit_code), ("fail", 3))
        self.assertGreater(strict["perplexity"]["value"], 1)

    def test_programs_lie_in_the_environment(self):
        version = subprocess.run([gf.program("gguf-inspect"), "--version"], capture_output=True, text=True, check=True)
        self.assertIn(gf.__version__, version.stdout)
        self.assertEqual(gf.inspect("diff", self.f16, self.f16, quiet=True).get("error"), None)
        with self.assertRaises(FileNotFoundError):
            gf.program("gguf-nothing")

    def test_failures_are_told(self):
        broken = self.dir / "broken.gguf"
        broken.write_bytes(self.f16.read_bytes()[:3000])
        with self.assertRaisesRegex(ValueError, "offset 876: key `tokenizer.ggml.tokens`"):
            gf.read(broken)
        with self.assertRaises(FileNotFoundError):
            gf.read(self.dir / "nothing.gguf")
        with self.assertRaises(gf.ProgramError) as caught:
            gf.convert(self.dir / "nothing", self.dir / "x.gguf")
        self.assertEqual(caught.exception.exit_code, 1)
        with self.assertRaises(gf.ProgramError) as caught:
            gf.convert(MODEL, self.dir / "x.gguf", type="q9_9")
        self.assertEqual(caught.exception.exit_code, 2)
        with self.assertRaises(gf.ProgramError) as caught:
            gf.convert(MODEL, self.dir / "x.gguf", no_such_option=True)
        self.assertEqual(caught.exception.exit_code, 2)
        self.assertFalse((self.dir / "x.gguf").exists())


if __name__ == "__main__":
    unittest.main()
