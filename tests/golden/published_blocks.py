"""Tiny random mixtures of published models and what the `transformers` package makes of an input:
tests/io/blocks/*.safetensors, which tests/io/published_maps_test.cpp reads.

    python3 -m venv venv && venv/bin/pip install torch==2.5.1 numpy transformers==4.57.1 safetensors
    venv/bin/python3 tests/golden/published_blocks.py tests/io/blocks

Weights are drawn, rounded to the type in which the file keeps them, and the block then runs in float64, but for what it
computes in float by itself: probabilities.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config, Llama4TextConfig, MixtralConfig, OlmoeConfig, Qwen2MoeConfig
from transformers import Qwen3MoeConfig, SwitchTransformersConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock
from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

ITEMS, D, H = 24, 16, 20


def block(name, module, at, dtype, shards=1, runs_in=torch.float64):
    torch.manual_seed(len(name))
    module = module.to(runs_in).eval()
    weights = {}
    with torch.no_grad():
        for key, value in module.state_dict().items():
            kept = torch.float32 if "bias" in key else dtype
            drawn = torch.randn(value.shape, dtype=torch.float64)
            rounded = (drawn * (0.2 if "bias" in key else value.shape[-1] ** -0.5)).to(kept)
            value.copy_(rounded)
            weights[at + key] = rounded.contiguous()
        x = torch.randn(1, ITEMS, D, dtype=runs_in)
        y = module(x)
        y = y[0] if isinstance(y, tuple) else y
    weights["input"], weights["output"] = x.squeeze(0).contiguous(), y.squeeze(0).contiguous()
    folder = pathlib.Path(sys.argv[1])
    if shards == 1:
        save_file(weights, folder / f"{name}.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    where = {n: f"{name}-{i * shards // len(names) + 1:05}-of-{shards:05}.safetensors" for i, n in enumerate(names)}
    for shard in sorted(set(where.values())):
        save_file({n: weights[n] for n in names if where[n] == shard}, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": where}
    (folder / f"{name}.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


SIZES = dict(hidden_size=D, moe_intermediate_size=H)
block(
    "mixtral",
    MixtralSparseMoeBlock(
        MixtralConfig(hidden_size=D, intermediate_size=H, num_local_experts=4, num_experts_per_tok=2)
    ),
    "model.layers.0.block_sparse_moe.",
    torch.bfloat16,
)
block(
    "qwen2_moe",
    Qwen2MoeSparseMoeBlock(
        Qwen2MoeConfig(**SIZES, shared_expert_intermediate_size=28, num_experts=6, num_experts_per_tok=3)
    ),
    "model.layers.1.mlp.",
    torch.float16,
)
block(
    "qwen3_moe",
    Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(**SIZES, num_experts=8, num_experts_per_tok=4, norm_topk_prob=True)),
    "model.layers.2.mlp.",
    torch.bfloat16,
    shards=3,
)
block(
    "olmoe",
    OlmoeSparseMoeBlock(OlmoeConfig(hidden_size=D, intermediate_size=H, num_experts=8, num_experts_per_tok=3)),
    "model.layers.0.mlp.",
    torch.float32,
)
block(
    "deepseek_v3",
    DeepseekV3MoE(
        DeepseekV3Config(
            **SIZES, n_routed_experts=16, num_experts_per_tok=4, n_group=4, topk_group=2, n_shared_experts=2
        )
    ),
    "model.layers.3.mlp.",
    torch.bfloat16,
    runs_in=torch.float32,  # its sum over experts takes nothing else
)
block(
    "llama4",
    Llama4TextMoe(
        Llama4TextConfig(hidden_size=D, intermediate_size=H, num_local_experts=6, num_experts_per_tok=2)
    ),
    "model.layers.0.feed_forward.",
    torch.bfloat16,
)
block(
    "switch_transformer",
    SwitchTransformersSparseMLP(
        SwitchTransformersConfig(d_model=D, d_ff=H, num_experts=4, expert_capacity=ITEMS, router_dtype="float32")
    ),
    "encoder.block.1.layer.1.mlp.",
    torch.float32,
)
