"""Block quantizers: the bytes of gguf-py where it has a quantizer, and what must hold for every type."""

import multiprocessing
import unittest

import numpy as np

import gguf_foundry as gf

try:
    import gguf
    from gguf import quants
except ImportError:
    gguf = None


def bell(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Peer(unittest.TestCase):
    @unittest.skipIf(gguf is None, "gguf-py is not installed")
    def test_bytes_and_floats_are_those_of_gguf_py(self):
        n_quantized = n_decoded = 0
        values = bell(6, 512)
        for ty in gf.types():
            try:
                peer = gguf.GGMLQuantizationType(ty.id)
            except ValueError:
                continue
            importance = np.ones(512, np.float32) if ty.needs_imatrix else None
            if not ty.can_quantize or ty.block_size == 1 and ty.name not in ("F16", "BF16"):
                continue
            ours = gf.quantize(values, peer, imatrix=importance)
            try:
                expected = quants.quantize(values, peer)
            except NotImplementedError:
                pass
            else:
                self.assertEqual(ours.tobytes(), expected.tobytes(), ty.name)
                self.assertEqual(ours.nbytes, expected.nbytes)
                n_quantized += 1
            try:
                expected = quants.dequantize(ours, peer)
            except NotImplementedError:
                continue
            np.testing.assert_array_equal(gf.dequantize(ours, peer), expected, ty.name)
            n_decoded += 1
        self.assertGreaterEqual(n_quantized, 9)
        self.assertGreaterEqual(n_decoded, 22)


class Blocks(unittest.TestCase):
    def test_every_type_comes_back_near(self):
        values = bell(3, 5, 256)
        for ty in gf.types():
            if not ty.can_quantize or ty.name.startswith("I") and not ty.name.startswith("IQ"):
                continue
            with self.subTest(ty.name):
                importance = np.ones(256, np.float32) if ty.needs_imatrix else None
                blocks = gf.quantize(values, ty.name.lower(), imatrix=importance)
                self.assertEqual(blocks.shape, (3, 5, 256 // ty.block_size * ty.type_size))
                back = gf.dequantize(blocks, ty.id)
                self.assertEqual((back.shape, back.dtype), (values.shape, np.float32))
                error = np.sqrt(np.mean((back - values) ** 2))
                # A bell of deviation 1. Ternary types know the largest value of a block, its opposite and zero.
                bits = ty.bits_per_weight
                self.assertLess(error, 0.9 if bits < 2.6 else max(1.5 / 2 ** (bits - 1), 2e-3))

    def test_threads_change_nothing(self):
        values = bell(700, 1024)
        one = gf.quantize(values, "q4_k", threads=1)
        for threads in (2, 3, 8):
            np.testing.assert_array_equal(gf.quantize(values, "q4_k", threads=threads), one)
        np.testing.assert_array_equal(gf.dequantize(one, "q4_k", threads=1), gf.dequantize(one, "q4_k", threads=5))

    def test_importance_is_by_column_and_by_matrix(self):
        values = bell(2, 4, 256)
        weights = np.random.default_rng(2).random((2, 256)).astype(np.float32)
        both = gf.quantize(values, "iq2_xxs", imatrix=weights)
        for matrix in range(2):
            alone = gf.quantize(values[matrix], "iq2_xxs", imatrix=weights[matrix])
            np.testing.assert_array_equal(both[matrix], alone)
        self.assertFalse(np.array_equal(gf.quantize(values, "q4_k", imatrix=weights), gf.quantize(values, "q4_k")))
        with self.assertRaisesRegex(ValueError, "imatrix: shape"):
            gf.quantize(values, "q4_k", imatrix=np.ones((3, 256)))
        with self.assertRaisesRegex(ValueError, "256 weights expected, found 8"):
            gf.quantize(values, "q4_k", imatrix=np.ones(8))

    def test_other_arrays_are_taken_as_floats(self):
        values = bell(4, 64)
        expected = gf.quantize(values.astype(np.float16).astype(np.float32), "q8_0")
        np.testing.assert_array_equal(gf.quantize(values.astype(np.float16), "q8_0"), expected)
        turned = np.ascontiguousarray(values.T)
        np.testing.assert_array_equal(gf.quantize(turned.T, "q8_0"), gf.quantize(values, "q8_0"))
        np.testing.assert_array_equal(gf.dequantize(values.astype(np.float16), "f16"), values.astype(np.float16))
        self.assertEqual(gf.quantize(np.zeros((0, 64)), "q8_0").shape[0], 0)

    def test_what_cannot_be_done_is_said(self):
        values = bell(2, 256)
        for call, words in [
            (lambda: gf.quantize(values, "q9_9"), "unknown type 'q9_9'"),
            (lambda: gf.quantize(values[:, :100], "q4_k"), "100 columns are not a positive multiple"),
            (lambda: gf.quantize(values, "iq1_s"), "IQ1_S needs an importance matrix"),
            (lambda: gf.quantize(values, "q8_0", threads=0), "threads: a positive number"),
            (lambda: gf.quantize(np.float32(1), "q8_0"), "at least one dimension"),
            (lambda: gf.dequantize(np.zeros(33, np.uint8), "q8_0"), "whole blocks of 34 bytes"),
        ]:
            with self.assertRaisesRegex(ValueError, words):
                call()

    def test_numbers_that_are_not_finite(self):
        values = bell(3, 64)
        values[1, 7] = np.nan
        with self.assertRaisesRegex(ValueError, r"value at \(1, 7\) is nan"):
            gf.quantize(values, "q8_0")
        self.assertEqual(gf.quantize(values, "q8_0", allow_nonfinite=True).shape, (3, 68))
        # Finite values whose sum is not.
        self.assertEqual(gf.quantize(np.full((2, 64), 3e38, np.float32), "f32").shape, (2, 256))

    def test_the_row_of_an_error_is_that_of_the_array(self):
        values = bell(3000, 256)
        values[2345] = 3e38
        with self.assertRaisesRegex(ValueError, "row 2345"):
            gf.quantize(values, "iq3_s", imatrix=np.ones(256))

    @unittest.skipUnless("fork" in multiprocessing.get_all_start_methods(), "no fork here")
    def test_a_forked_process_quantizes_too(self):
        expected = gf.quantize(bell(300, 1024), "q6_k")
        with multiprocessing.get_context("fork").Pool(1) as pool:
            found = pool.apply_async(gf.quantize, (bell(300, 1024), "q6_k")).get(60)
        np.testing.assert_array_equal(found, expected)


if __name__ == "__main__":
    unittest.main()
