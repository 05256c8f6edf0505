"""Makes tiny decoders with random sizes and options, with the results of transformers in float64.

    venv/bin/python tests/golden/decoders/random_decoders.py FOLDER SEED COUNT
    GATEFOLD_DECODERS=FOLDER build/test/tests/test_train -tc='load_decoder: lo*,golden: ten*,decoder_map: a saved*'

The tests with these names then compare the decoders in FOLDER, at least ten, instead of tests/golden/decoders. The
script needs the packages of make.py.
"""

import pathlib
import random
import sys

import make
import transformers as t


def positions(head_dim, choose):
    kind = choose(["default", "default", "linear", "yarn", "factor", "llama3"])
    theta = dict(rope_theta=choose([1e3, 1e4, 5e5]))
    return {
        "default": dict(rope_type="default"),
        "linear": dict(rope_type="linear", factor=choose([2.0, 3.5])),
        "yarn": dict(rope_type="yarn", factor=choose([2.0, 4.0]), beta_fast=choose([32.0, 8.0]), beta_slow=1.0,
                     original_max_position_embeddings=choose([16, 32])),
        "factor": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.3),
        "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=choose([16, 64])),
    }[kind] | theta


def latent(choose, interleaved, mscales):
    """Options of DeepSeek-V2 and V3."""
    heads, plain, rotary = choose([1, 2]), choose([2, 4]), choose([2, 4])
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=choose(mscales),
                mscale_all_dim=choose(mscales))
    return dict(hidden_size=choose([6, 8]), num_attention_heads=heads, num_key_value_heads=heads, intermediate_size=5,
                moe_intermediate_size=choose([3, 6]), n_shared_experts=choose([1, 2]),
                first_k_dense_replace=choose([0, 1, 2]), q_lora_rank=choose([None, 5]), kv_lora_rank=choose([4, 8]),
                qk_nope_head_dim=plain, qk_rope_head_dim=rotary, qk_head_dim=plain + rotary,
                v_head_dim=choose([2, 5]), attention_bias=choose([True, False]), rope_interleave=choose(interleaved),
                rope_parameters=choose([dict(rope_type="default"), yarn]) | dict(rope_theta=1e4))


def options(name, choose):
    key_heads, group, head_dim, experts = (choose(c) for c in ([1, 2, 3], [1, 2, 3], [4, 6, 8], [2, 4, 6, 8]))
    heads, flag = key_heads * group, [True, False]
    picks = choose(range(1, min(experts, 3) + 1))
    shared = dict(vocab_size=choose([11, 23, 40]), num_hidden_layers=choose([1, 2, 3]),
                  tie_word_embeddings=choose(flag), rms_norm_eps=choose([1e-5, 1e-6, 1e-3]),
                  num_attention_heads=heads, num_key_value_heads=key_heads, num_experts_per_tok=picks)
    wide = dict(head_dim=head_dim, hidden_size=choose([6, 8, 12]), rope_parameters=positions(head_dim, choose))
    narrow = dict(hidden_size=heads * choose([2, 4]), rope_parameters=positions(2, choose))
    qwen = dict(intermediate_size=5, moe_intermediate_size=choose([3, 6]), num_experts=experts,
                norm_topk_prob=choose(flag), use_sliding_window=choose(flag), sliding_window=choose([2, 5]),
                decoder_sparse_step=choose([1, 2]), mlp_only_layers=choose([[], [0]]))
    groups, each = choose([1, 2]), choose([2, 3, 4])
    return shared | {
        "mixtral": lambda: wide | dict(intermediate_size=choose([3, 7]), num_local_experts=experts,
                                       sliding_window=choose([None, 1, 3, 7])),
        "qwen2_moe": lambda: narrow | qwen | dict(shared_expert_intermediate_size=choose([4, 9]),
                                                  qkv_bias=choose(flag), max_window_layers=choose([0, 1, 2])),
        "qwen3_moe": lambda: wide | qwen | dict(attention_bias=choose(flag)),
        "olmoe": lambda: narrow | dict(intermediate_size=choose([3, 6]), num_experts=experts, pad_token_id=None,
                                       eos_token_id=2, norm_topk_prob=choose(flag), attention_bias=choose(flag)),
        "gpt_oss": lambda: wide | dict(intermediate_size=choose([3, 6]), num_local_experts=experts, pad_token_id=None,
                                       eos_token_id=2, sliding_window=choose([1, 4, 9])),
        "deepseek_v2": lambda: latent(choose, [True], [0.707]) | dict(
            n_routed_experts=groups * each, topk_method=choose(["greedy", "group_limited_greedy"]), n_group=groups,
            topk_group=choose([1, groups]), num_experts_per_tok=choose([1, 2]),
            routed_scaling_factor=choose([1.0, 2.5]), norm_topk_prob=False),
        "deepseek_v3": lambda: latent(choose, flag, [0.0, 0.707, 1.0]) | dict(
            n_routed_experts=groups * each, n_group=groups, topk_group=choose([1, groups]),
            num_experts_per_tok=choose([1, 2]), norm_topk_prob=choose(flag),
            routed_scaling_factor=choose([1.0, 2.5])),
    }[name]()


CLASSES = {
    "mixtral": (t.MixtralConfig, t.MixtralForCausalLM), "qwen2_moe": (t.Qwen2MoeConfig, t.Qwen2MoeForCausalLM),
    "qwen3_moe": (t.Qwen3MoeConfig, t.Qwen3MoeForCausalLM), "olmoe": (t.OlmoeConfig, t.OlmoeForCausalLM),
    "gpt_oss": (t.GptOssConfig, t.GptOssForCausalLM), "deepseek_v2": (t.DeepseekV2Config, t.DeepseekV2ForCausalLM),
    "deepseek_v3": (t.DeepseekV3Config, t.DeepseekV3ForCausalLM),
}

if __name__ == "__main__":
    make.FOLDER = pathlib.Path(sys.argv[1])
    choice = random.Random(int(sys.argv[2])).choice
    make.MODELS.clear()
    while len(make.MODELS) < int(sys.argv[3]):
        name = choice(list(CLASSES))
        made = options(name, choice)
        if made["hidden_size"] % made["num_attention_heads"] == 0:  # transformers requires it of DeepSeek
            make.MODELS[f"{name}_{sys.argv[2]}_{len(make.MODELS)}"] = (*CLASSES[name], made)
    make.write_all(list(make.MODELS))
