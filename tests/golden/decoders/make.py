"""Tiny random decoders of Hugging Face's transformers, with their logits, gradients and greedy tokens in float64.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/decoders/make.py [NAME...]

Writes tests/golden/decoders/NAME/: config.json and model.safetensors as transformers saves them, and the results:
expected.safetensors and, after ten steps of AdamW, adamw.safetensors. If expected.safetensors exists, make.py uses its
tokens again. The tests never need these packages. transformers computes norms, softmax and positions in float32; here
torch.float32 means float64, so that everything runs in double.
"""

import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FOLDER = pathlib.Path(__file__).parent
SHARED = dict(vocab_size=37, hidden_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=False,
              attn_implementation="eager", experts_implementation="eager", use_cache=False)
MODELS = {
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM,
                dict(intermediate_size=7, num_local_experts=5, num_experts_per_tok=2, head_dim=6,
                     rms_norm_eps=1e-5, rope_theta=1e4)),
    "qwen2_moe": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM,
                  dict(intermediate_size=9, moe_intermediate_size=5, shared_expert_intermediate_size=9,
                       num_experts=6, num_experts_per_tok=3, norm_topk_prob=False,
                       use_sliding_window=True, sliding_window=4, max_window_layers=1)),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM,
                  dict(intermediate_size=9, moe_intermediate_size=5, num_experts=6, num_experts_per_tok=3, head_dim=8,
                       norm_topk_prob=True, tie_word_embeddings=True)),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM,
              dict(intermediate_size=5, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
                   pad_token_id=None, eos_token_id=2)),  # PyTorch sets the gradient of padding to 0
    "qwen3_moe_yarn": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM,
                       dict(intermediate_size=9, moe_intermediate_size=5, num_experts=4, num_experts_per_tok=2,
                            head_dim=16, norm_topk_prob=True, mlp_only_layers=[0],
                            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0,
                                                 original_max_position_embeddings=32))),
    "mixtral_llama3": (transformers.MixtralConfig, transformers.MixtralForCausalLM,
                       dict(intermediate_size=7, num_local_experts=4, num_experts_per_tok=2, head_dim=16,
                            sliding_window=5,
                            rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0,
                                                 high_freq_factor=4.0, original_max_position_embeddings=16))),
    "deepseek_v2": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM,
                    dict(num_key_value_heads=4, intermediate_size=9, moe_intermediate_size=5, n_routed_experts=5,
                         num_experts_per_tok=2, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.0,
                         topk_method="greedy", q_lora_rank=None, kv_lora_rank=6, qk_nope_head_dim=4,
                         qk_rope_head_dim=4, v_head_dim=5)),
    "deepseek_v2_groups": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM,
                           dict(num_key_value_heads=4, intermediate_size=9, moe_intermediate_size=5,
                                n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=0,
                                routed_scaling_factor=16.0, topk_method="group_limited_greedy", n_group=4,
                                topk_group=2, q_lora_rank=7, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=4,
                                v_head_dim=5)),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM,
                    dict(num_key_value_heads=4, intermediate_size=9, moe_intermediate_size=5, n_routed_experts=8,
                         num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.5,
                         n_group=4, topk_group=2, norm_topk_prob=True, q_lora_rank=7, kv_lora_rank=6,
                         qk_nope_head_dim=3, qk_rope_head_dim=4, v_head_dim=5, attention_bias=True,
                         rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, mscale=1.0,
                                              mscale_all_dim=1.0, original_max_position_embeddings=32))),
    "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM,
                dict(num_hidden_layers=3, intermediate_size=6, num_local_experts=5, num_experts_per_tok=2, head_dim=4,
                     sliding_window=4, pad_token_id=None, eos_token_id=2,
                     rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=8.0, beta_fast=32.0,
                                          beta_slow=1.0, truncate=False, original_max_position_embeddings=16))),
    "gpt_oss_mxfp4": (transformers.GptOssConfig, transformers.GptOssForCausalLM,
                      dict(vocab_size=11, hidden_size=32, num_hidden_layers=1, intermediate_size=32,
                           num_local_experts=3, num_experts_per_tok=2, head_dim=4, sliding_window=4, pad_token_id=None,
                           eos_token_id=2)),
    # Layers 0 and 2 attend in chunks, layer 1 has no positions; layer 1 is dense.
    "llama4_text": (transformers.Llama4TextConfig, transformers.Llama4ForCausalLM,
                    dict(vocab_size=23, num_hidden_layers=3, intermediate_size=5, intermediate_size_mlp=7,
                         num_local_experts=4, num_experts_per_tok=2, head_dim=4, moe_layers=[0, 2],
                         no_rope_layers=[1, 0, 1], attention_chunk_size=5, floor_scale=3, attn_scale=0.5,
                         use_qk_norm=True, attention_bias=True, tie_word_embeddings=True, bos_token_id=None,
                         eos_token_id=2, rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=8.0,
                                                              low_freq_factor=1.0, high_freq_factor=1.0,
                                                              original_max_position_embeddings=16))),
    # A model with images. The tests read only its text model.
    "llama4": (transformers.Llama4Config, transformers.Llama4ForConditionalGeneration, dict(
        text_config=dict(vocab_size=23, initializer_range=0.6, num_hidden_layers=3, intermediate_size=5,
                         intermediate_size_mlp=7, num_local_experts=3, num_experts_per_tok=1, head_dim=6,
                         interleave_moe_layer_step=2, no_rope_layer_interval=3,
                         attention_chunk_size=7, attn_temperature_tuning=True, floor_scale=4, use_qk_norm=False,
                         bos_token_id=None, eos_token_id=2, rope_parameters=dict(rope_type="default", rope_theta=5e5)),
        vision_config=dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                           image_size=8, patch_size=4, projector_input_dim=4, projector_output_dim=4,
                           vision_output_dim=4))),
}
LENGTH, SEQUENCES, GREEDY = 11, 2, 64


def in_double():
    """Makes the float32 of transformers' modules a float64."""
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double


def make(name):
    config_class, model_class, options = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    if "text_config" in options:
        options = options | {"text_config": SHARED | options["text_config"]}
    model = model_class(config_class(**(options if "text_config" in options else SHARED | options)))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key or key.endswith(("bias", "sinks")):
                p.copy_(p + 0.3 * torch.randn_like(p))
        for key, b in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                b.copy_(0.1 * torch.randn_like(b))
    to = FOLDER / name
    model.save_pretrained(to)
    for extra in to.glob("generation_config.json"):
        extra.unlink()
    if name.endswith("mxfp4"):
        quantise(model, to / "model.safetensors")
    return model.eval(), to


def quantise(model, path):
    """Replaces the weights of the experts by random MXFP4 weights."""
    tensors = load_file(path)
    for key in [key for key in tensors if key.endswith(("gate_up_proj", "down_proj"))]:
        experts, depth, columns = tensors.pop(key).shape
        blocks = torch.randint(0, 256, (experts, columns, depth // 32, 16), dtype=torch.uint8)
        scales = torch.randint(122, 126, (experts, columns, depth // 32), dtype=torch.uint8)
        tensors[key + "_blocks"], tensors[key + "_scales"] = blocks, scales
        with torch.no_grad():
            model.get_parameter(key).copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, path, {"format": "pt"})


def loss_of(logits, ids):
    """Returns the mean cross-entropy of each token given the tokens before it."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def expected(model, to):
    config = model.config.get_text_config()
    of_text = getattr(model, "language_model", model)
    earlier = to / "expected.safetensors"
    ids = load_file(earlier)["ids"] if earlier.exists() else torch.randint(0, config.vocab_size, (SEQUENCES, LENGTH))
    model = model.double()
    rotary = of_text.model.rotary_emb
    initial = ROPE_INIT_FUNCTIONS.get(rotary.rope_type, rotary.compute_default_rope_parameters)
    inverse, rotary.attention_scaling = initial(config)  # again, in double
    rotary.inv_freq = inverse.double()
    logits = of_text(ids).logits
    loss = loss_of(logits, ids)
    loss.backward()
    result = {"ids": ids, "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    for key, p in model.named_parameters():
        if not to.name.endswith("mxfp4") and p.grad is not None:  # images have no gradient
            result["gradient." + key] = p.grad.contiguous()
    with torch.no_grad():
        text = ids[:1]
        for _ in range(GREEDY):
            text = torch.cat([text, of_text(text).logits[:, -1].argmax(-1, keepdim=True)], 1)
    result["greedy"] = text[0, LENGTH:].contiguous()
    save_file(result, to / "expected.safetensors")
    print(to.name, "loss", loss.item(), "parameters", sum(p.numel() for p in model.parameters()))
    if not to.name.endswith("mxfp4"):
        ten_steps(of_text, [named for named in model.named_parameters() if named[1].grad is not None], ids, to)


def ten_steps(model, parameters, ids, to):
    """Writes the loss before each of ten steps of AdamW, and two weighted sums of each parameter after the last step.
    The weights of element i are cos(i + 1) and cos(2 (i + 1)). The rows are sorted by the names of the parameters."""
    optimizer = torch.optim.AdamW([p for _, p in parameters], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(model(ids).logits, ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    sums = []
    for _, p in sorted(parameters):
        angle = torch.arange(1, p.numel() + 1, dtype=torch.float64)
        sums.append(torch.stack([(p.detach().flatten() * torch.cos(k * angle)).sum() for k in (1, 2)]))
    save_file({"losses": torch.tensor(losses, dtype=torch.float64), "sums": torch.stack(sums)},
              to / "adamw.safetensors")


def write_all(names):
    models = [make(name) for name in names]
    in_double()
    for model, to in models:
        expected(model, to)


if __name__ == "__main__":
    write_all(sys.argv[1:] or MODELS)
