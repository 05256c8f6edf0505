"""Weights of eight and four bits with scales, and their values according to PyTorch and Hugging Face's transformers.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/block_scales/make.py

Writes tests/golden/block_scales/scaled.safetensors: FP8 (DeepSeek-V3), MXFP4 (gpt-oss) and the expected floats.
"""

import pathlib

import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

torch.manual_seed(1)
bits = torch.randint(0, 256, (1, 130, 129), dtype=torch.uint8)
bits[(bits & 127) == 127] = 0  # not a number
bits[0, 0] = torch.arange(129) % 127
weight = bits.view(torch.float8_e4m3fn)
scale = torch.rand(1, 2, 2) + 0.5
wide = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :130, :129]
blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
scales = torch.randint(110, 140, (2, 6, 3), dtype=torch.uint8)
tensors = {
    "expert.weight": weight,
    "expert.weight_scale_inv": scale,
    "experts.gate_up_proj_blocks": blocks,
    "experts.gate_up_proj_scales": scales,
    "expected.fp8": weight.float() * wide,
    "expected.mxfp4": convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2).contiguous(),
}
save_file(tensors, pathlib.Path(__file__).parent / "scaled.safetensors")
