#!/usr/bin/env python3
"""Times inference of layers of experts in bfloat16 on a GPU with a fused Triton kernel, as in servers of language
models. Slots are sorted by expert and padded to whole tiles on the device. The first product gathers its rows, the
second multiplies by the weights of slots, and then the slots of an item are added up. Also times PyTorch's grouped
products.

    triton_moe_cuda.py [WORD]   rows whose name contains WORD, in microseconds and TFLOP/s: those of bench/cuda/layer.cu
                                (a GELU by tanh) and bench/cuda/gated.cu (gated by SiLU)
    triton_moe_cuda.py --check  compares small layers with loops over experts; TRITON_INTERPRET=1 needs no GPU
"""
import sys

import torch
import triton
import triton.language as tl

from torch_moe_cuda import SHAPES, activate, grouped, loop, microseconds, route

GATED = {  # items, dim, hidden, experts, picks
    "wide": (32768, 4096, 2048, 64, 4),
    "narrow": (32768, 768, 256, 128, 8),
    "memory": (32768, 4096, 1024, 64, 4),
}
TILES = [  # rows, columns, depth, warps, stages
    (16, 64, 128, 4, 4), (64, 128, 64, 4, 4), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3)
]


@triton.jit
def product_kernel(a, b, c, slots, experts, weight, columns, depth, count, picks_of_a: tl.constexpr,
                   scale: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """Computes c[slot] = (weight[slot]) a[slot / picks_of_a] b[expert]. All slots of a tile have the same expert."""
    column_tiles = tl.cdiv(columns, COLUMNS)
    tile = tl.program_id(0) // column_tiles
    expert = tl.load(experts + tile).to(tl.int64)
    if expert < 0:
        return
    slot = tl.load(slots + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    exists = slot < count
    column = tl.program_id(0) % column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    of_a = a + (slot // picks_of_a)[:, None] * depth + k[None, :]
    of_b = b + expert * depth * columns + k[:, None].to(tl.int64) * columns + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, depth, DEPTH):
        left = depth - first
        rows = tl.load(of_a, mask=exists[:, None] & (k[None, :] < left), other=0.0)
        weights = tl.load(of_b, mask=(k[:, None] < left) & (column[None, :] < columns), other=0.0)
        total = tl.dot(rows, weights, total)
        of_a += DEPTH
        of_b += DEPTH * columns
    if scale:
        total *= tl.load(weight + slot, mask=exists, other=0.0).to(tl.float32)[:, None]
    to = c + slot[:, None] * columns + column[None, :]
    tl.store(to, total.to(c.dtype.element_ty), mask=exists[:, None] & (column[None, :] < columns))


def sort_slots(expert, experts, rows):
    """Sorts slots by expert, and pads each expert to whole tiles of rows. Also returns the expert of each tile, or -1
    if the tile is unused. The number of tiles is an upper bound, so that the host does not wait for the device."""
    slots = expert.numel()
    tiles = triton.cdiv(slots, rows) + min(experts, slots)
    order = expert.argsort(stable=True)
    sorted_expert = expert[order]
    counts = torch.zeros(experts, dtype=torch.int64, device=expert.device).scatter_add_(
        0, expert, torch.ones_like(expert))
    of_expert = (counts + rows - 1) // rows
    ends = of_expert.cumsum(0)
    place = (ends - of_expert)[sorted_expert] * rows + torch.arange(
        slots, device=expert.device) - (counts.cumsum(0) - counts)[sorted_expert]
    padded = torch.full((tiles * rows,), slots, dtype=torch.int64, device=expert.device)
    padded[place] = order
    tile = torch.arange(tiles, device=expert.device)
    owner = torch.searchsorted(ends, tile, right=True)
    return padded, torch.where(owner < experts, owner, -1)


def product(a, b, slots, experts, weight, count, picks_of_a, scale, tile):
    rows, columns_each, depth_each, warps, stages = tile
    depth, columns = b.shape[1:]
    c = torch.empty((count, columns), dtype=a.dtype, device=a.device)
    grid = (experts.numel() * triton.cdiv(columns, columns_each),)
    product_kernel[grid](a, b, c, slots, experts, weight, columns, depth, count, picks_of_a, scale, rows, columns_each,
                         depth_each, num_warps=warps, num_stages=stages)
    return c


def by_triton(x, gate, up, down, picks, activate, tile):
    weight, expert = route(x, gate, picks)
    count = expert.numel()
    slots, experts = sort_slots(expert.flatten(), up.shape[0], tile[0])
    h = product(x, up, slots, experts, weight, count, picks, False, tile)
    z = product(activate(h), down, slots, experts, weight.flatten(), count, 1, True, tile)
    return x + z.view(x.shape[0], picks, -1).sum(1)


def gate_by_silu(h):
    gate, up = h.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def layer(items, dim, hidden, experts, gated, device, dtype):
    width = 2 * hidden if gated else hidden
    shapes = (items, dim), (dim, experts), (experts, dim, width), (experts, hidden, dim)
    return [torch.randn(s, device=device, dtype=dtype) / d**0.5 for s, d in zip(shapes, (1, dim, dim, hidden))]


def as_graph(run):
    """Captures `run` as a CUDA graph, which the host launches in one call, as servers do."""
    for _ in range(2):  # compiles the kernels before the capture
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def check():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    for items, dim, hidden, experts, picks in ((70, 48, 40, 5, 2), (33, 16, 72, 3, 3), (1, 64, 32, 8, 2)):
        for gated in (False, True):
            tensors = layer(items, dim, hidden, experts, gated, device, torch.float32)
            act = gate_by_silu if gated else activate
            expected = loop(*tensors, picks, act)
            for tile in ((16, 16, 16, 4, 2), (16, 32, 32, 4, 2), (64, 64, 32, 4, 2)):
                off = (by_triton(*tensors, picks, act, tile) - expected).abs().max().item()
                assert off < 1e-2 if device == "cuda" else off < 1e-4, (items, dim, hidden, experts, gated, tile, off)
    print("as loops over the experts")


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "--check":
        return check()
    print(f"Triton {triton.__version__}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name, (items, dim, hidden, experts, picks) in {**SHAPES, **GATED}.items():
        if word not in name:
            continue
        gated = name in GATED
        act = gate_by_silu if gated else activate
        tensors = layer(items, dim, hidden, experts, gated, "cuda", torch.bfloat16)
        flop = 2 * items * picks * dim * hidden * (3 if gated else 2)
        runs = {}
        for tile in TILES:
            if tile[0] <= max(16, 2 * items * picks // experts):
                name_of_tile = "Triton as a graph, tiles of {} x {} x {}".format(*tile)
                runs[name_of_tile] = lambda tile=tile: by_triton(*tensors, picks, act, tile)
        runs["grouped products"] = lambda: grouped(*tensors, picks, act)
        for what, run in runs.items():
            try:
                with torch.inference_mode():
                    us = microseconds(as_graph(run) if "graph" in what else run)
                print(f"{name}: {what}: {us:.1f} us, {flop / us * 1e-6:.0f} TFLOP/s", flush=True)
            except (RuntimeError, triton.runtime.errors.OutOfResources) as error:
                print(f"{name}: {what}: {str(error).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
