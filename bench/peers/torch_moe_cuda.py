#!/usr/bin/env python3
"""The same layer in PyTorch on a GPU, float32 without TF32: a loop over experts, as Transformers writes it.

Prints microseconds for each forward pass, the median of 30 after a warm-up, for the shapes of bench/cuda/layer.cu.
"""
import statistics

import torch

SHAPES = {  # items, dim, hidden, experts, picks
    "tokens_16384": (16384, 1024, 4096, 8, 2),
    "tokens_4096": (4096, 512, 2048, 8, 2),
    "papers_medium": (4096, 352, 352, 16, 2),
    "experts_64": (16384, 1024, 2048, 64, 2),
    "small_experts": (65536, 64, 128, 64, 2),
    "decode_16": (16, 1024, 4096, 8, 2),
    "decode_1": (1, 1024, 4096, 8, 2),
}


def layer(x, gate, up, down, picks):
    weight, expert = torch.softmax(x @ gate, -1).topk(picks, -1)
    weight = weight / weight.sum(-1, keepdim=True)
    y = x.clone()
    for e in range(up.shape[0]):
        item, place = torch.where(expert == e)
        h = torch.nn.functional.gelu(x[item] @ up[e], approximate="tanh") @ down[e]
        y.index_add_(0, item, h * weight[item, place, None])
    return y


@torch.inference_mode()
def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name, (items, dim, hidden, experts, picks) in SHAPES.items():
        x = torch.randn(items, dim, device="cuda")
        gate = torch.randn(dim, experts, device="cuda") / dim**0.5
        up = torch.randn(experts, dim, hidden, device="cuda") / dim**0.5
        down = torch.randn(experts, hidden, dim, device="cuda") / hidden**0.5
        times = []
        for i in range(35):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            layer(x, gate, up, down, picks)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        print(f"{name}: {statistics.median(times[5:]):.1f} us")


if __name__ == "__main__":
    main()
