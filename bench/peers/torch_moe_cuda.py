#!/usr/bin/env python3
"""Times one layer in PyTorch on a GPU: in float32 without TF32 and in bfloat16 with a loop over experts, as in
Transformers, and in bfloat16 with grouped products.

    torch_moe_cuda.py [WORD]   rows whose name contains WORD

Prints microseconds, the median of 30 after a warm-up, for the shapes of bench/cuda/layer.cu: of a forward pass, and of
a forward and a backward pass.
"""
import statistics
import sys

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


def route(x, gate, picks):
    weight, expert = torch.softmax((x @ gate).float(), -1).topk(picks, -1)
    return (weight / weight.sum(-1, keepdim=True)).to(x.dtype), expert


def activate(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def loop(x, gate, up, down, picks, activate=activate):
    weight, expert = route(x, gate, picks)
    y = x.clone()
    for e in range(up.shape[0]):
        item, place = torch.where(expert == e)
        h = activate(x[item] @ up[e]) @ down[e]
        y.index_add_(0, item, h * weight[item, place, None])
    return y


def grouped(x, gate, up, down, picks, activate=activate):
    product = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    weight, expert = route(x, gate, picks)
    expert = expert.flatten()
    order = expert.argsort(stable=True)
    ends = torch.bincount(expert, minlength=up.shape[0]).cumsum(0).int()
    item = order // picks
    h = activate(product(x[item], up, offs=ends))
    z = product(h, down, offs=ends)
    return x.clone().index_add_(0, item, z * weight.flatten()[order, None])


def microseconds(run):
    times = []
    for _ in range(35):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[5:])


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name, (items, dim, hidden, experts, picks) in SHAPES.items():
        if word not in name:
            continue
        for what, layer, dtype in (("float32 loop", loop, torch.float32), ("bfloat16 loop", loop, torch.bfloat16),
                                   ("bfloat16 grouped", grouped, torch.bfloat16)):
            tensors = (torch.randn(items, dim), torch.randn(dim, experts) / dim**0.5,
                       torch.randn(experts, dim, hidden) / dim**0.5, torch.randn(experts, hidden, dim) / hidden**0.5)
            tensors = [t.to("cuda", dtype).requires_grad_() for t in tensors]
            adjoint = torch.randn(items, dim, device="cuda", dtype=dtype)

            def infer():
                with torch.inference_mode():
                    layer(*tensors, picks)

            def train():
                for t in tensors:
                    t.grad = None
                layer(*tensors, picks).backward(adjoint)

            try:
                print(f"{name}: {what}: forward {microseconds(infer):.1f} us, forward + backward "
                      f"{microseconds(train):.1f} us", flush=True)
            except RuntimeError as error:
                print(f"{name}: {what}: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
