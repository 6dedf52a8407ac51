"""Writes fixtures/comfy_quant.safetensors: weights as ComfyUI's package of kernels quantizes them, and what it makes of them.

usage: comfy_fixture.py COMFY_KITCHEN_DIR OUT      (the unpacked package, torch; never needed to build, test or use anything)

`x.weight` and its members are those of a checkpoint; `expect.x` are the values in F32 of the package's own functions.
Blocks of INT8 are not in the package: they follow `convert_to_quant`.
"""
import json
import sys

import torch
from safetensors.torch import save_file

sys.path.insert(0, sys.argv[1])
from comfy_kitchen.backends.eager import quantization as kitchen  # noqa: E402

torch.manual_seed(5)
out = {}


def weights(rows, cols):
    return torch.randn(rows, cols) * torch.linspace(0.1, 3, rows)[:, None]


def add(module, expected, members, **description):
    text = json.dumps(description).encode()
    members["comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
    out.update({f"{module}.{name}": tensor.contiguous() for name, tensor in members.items()})
    out[f"expect.{module}"] = expected.contiguous()


def nvfp4(module, rows, cols, byte_scales, extra, **more):
    own = weights(rows, cols)
    second = own.abs().max() / (448 * 6)
    codes, scales = kitchen.quantize_nvfp4(own, second, pad_16x=True)
    expected = kitchen.dequantize_nvfp4(codes, second, scales, torch.float32)[:rows, :cols]
    scales = scales.view(torch.uint8) if byte_scales else scales
    add(module, expected, {"weight": codes, "weight_scale": scales, "weight_scale_2": second, **extra}, format="nvfp4", **more)


nvfp4("a", 130, 40, False, {}, orig_shape=[130, 40], orig_dtype="torch.bfloat16", group_size=16)
nvfp4("b", 20, 48, True, {"bias": torch.zeros(20)})
codes, scales = kitchen.quantize_mxfp8(weights(130, 40), pad_32x=True)
expected = kitchen.dequantize_mxfp8(codes, scales, torch.float32)[:130, :40]
add("c", expected, {"weight": codes, "weight_scale": scales.view(torch.uint8)}, format="mxfp8", orig_shape=[130, 40])
own = weights(9, 32)
codes, scale = kitchen.quantize_int8_tensorwise(own)
add("d", kitchen.dequantize_int8_simple(codes, scale), {"weight": codes, "weight_scale": scale}, format="int8_tensorwise")
codes, scale = kitchen.quantize_int8_rowwise(own)
add("e", kitchen.dequantize_int8_simple(codes, scale), {"weight": codes, "weight_scale": scale}, format="int8_tensorwise", per_row=True)
codes, scale = kitchen.quantize_int8_convrot_weight(weights(9, 128), 64)
expected = kitchen.dequantize_int8_convrot_weight(codes, scale, 64)
add("f", expected, {"weight": codes, "weight_scale": scale}, format="int8_tensorwise", convrot=True, convrot_groupsize=64)
blocks = weights(8, 12).reshape(2, 4, 3, 4).permute(0, 2, 1, 3)
scale = blocks.abs().amax((2, 3)) / 127
blocks = (blocks / scale[:, :, None, None]).round().to(torch.int8)
whole = lambda blocks: blocks.permute(0, 2, 1, 3).reshape(8, 12)  # noqa: E731
add("g", whole(blocks.float() * scale[:, :, None, None]), {"weight": whole(blocks), "weight_scale": scale}, format="int8_blockwise", group_size=4)
save_file(out, sys.argv[2])
