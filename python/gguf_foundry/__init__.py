"""GGUF files and llama.cpp's block quantizers, the same bytes several times faster, on NumPy arrays.

    import gguf_foundry as gf

    blocks = gf.quantize(weights, "q4_k")             # float array [..., n_cols] -> uint8 array [..., row_bytes]
    floats = gf.dequantize(blocks, "q4_k")            # and back

    model = gf.read("model.gguf")
    model.metadata["general.architecture"]
    model["blk.0.attn_q.weight"].dequantize()         # float32, shape as numpy has it: outermost first

    gf.convert("checkpoint/", "model.gguf", type="q4_k_m")
    gf.verify("model.gguf", prompts="text.txt", baseline="checkpoint/").verdict

`convert`, `quantize_file`, `ladder`, `recipe`, `rebuild`, `verify` and `inspect` run the four programs of this package, which are also on the PATH of its
environment: what an option means is said by `gguf-convert --help`. Memory does not grow with the model.
"""

from __future__ import annotations

from ._blocks import BlockType, dequantize, quantize, types
from ._file import Model, Tensor, read
from ._native import VERSION as __version__
from ._programs import Verification, convert, inspect, ladder, program, quantize_file, rebuild, recipe, set_metadata
from ._programs import set_template, verify
from ._programs import GgufWarning, ProgramError

__all__ = [
    "BlockType",
    "GgufWarning",
    "Model",
    "ProgramError",
    "Tensor",
    "Verification",
    "__version__",
    "convert",
    "dequantize",
    "inspect",
    "ladder",
    "program",
    "quantize",
    "quantize_file",
    "read",
    "rebuild",
    "recipe",
    "set_metadata",
    "set_template",
    "types",
    "verify",
]
