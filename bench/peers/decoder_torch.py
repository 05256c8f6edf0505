"""Times the rows of bench/decoder.cpp with transformers and PyTorch in bfloat16: two layers of published decoders with
their true sizes and random weights. The experts are those of transformers with the best of its implementations.

    python3 decoder_torch.py OUTPUT.json [--quick]
"""
import json
import statistics
import sys
import time

import moe
import torch
import transformers

torch.set_num_threads(moe.THREADS)
torch.set_default_dtype(torch.bfloat16)
PROMPT, STEPS = 512, 16
SHARED = dict(vocab_size=1024, hidden_size=2048, num_hidden_layers=2, num_experts_per_tok=8, pad_token_id=None)
MODELS = {
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM,
              dict(intermediate_size=1024, num_attention_heads=16, num_key_value_heads=16, num_experts=64,
                   norm_topk_prob=False)),
    "qwen3": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM,
              dict(moe_intermediate_size=768, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
                   num_experts=128, norm_topk_prob=True)),
}


def median_ms(sample, rounds):
    sample()
    return statistics.median(sample() for _ in range(rounds)) * 1e3


def timed(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def times(name, implementation, rounds):
    config_class, model_class, options = MODELS[name]
    torch.manual_seed(1)
    model = model_class(config_class(**SHARED, **options, experts_implementation=implementation))
    ids = (torch.arange(PROMPT) * 7919 % 1024)[None]
    following = (torch.arange(PROMPT) * 104729 % 1024)[None]

    @torch.no_grad()
    def prefill():
        return model.model(ids, use_cache=True).past_key_values

    @torch.no_grad()
    def decode():
        cache = prefill()
        begin = time.perf_counter()
        for _ in range(STEPS):
            model.model(ids[:, 3:4], past_key_values=cache, use_cache=True)
        return (time.perf_counter() - begin) / STEPS

    model.eval()
    rows = {"prefill": median_ms(lambda: timed(prefill), rounds), "decode": median_ms(decode, rounds)}
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits[0].float(), following[0]).backward()
        optimizer.step()

    rows["train"] = median_ms(lambda: timed(step), rounds)
    return rows


if __name__ == "__main__":
    rows = []
    for name in MODELS:
        best = {}
        for implementation in ("eager", "grouped_mm"):
            try:
                for row, ms in times(name, implementation, 2 if "--quick" in sys.argv else 5).items():
                    best[row] = min(ms, best.get(row, ms))
                    print(f"{implementation}: decoder_{row}/{name}  {ms:.1f} ms", flush=True)
            except Exception as error:  # this version of transformers or PyTorch does not have the implementation
                print(f"{implementation}: {error}", file=sys.stderr)
        for row, ms in best.items():
            for backend in ("Cpu", "CpuBf16"):
                rows.append({"name": f"peer_torch/decoder_{row}/{name}/{backend}", "real_time": ms, "time_unit": "ms"})
    with open(sys.argv[1], "w") as file:
        json.dump({"context": {"version": torch.__version__}, "benchmarks": rows}, file)
