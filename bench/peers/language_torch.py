"""Times a training step of the character model of bench/language.cpp in PyTorch, eager and compiled. Experts are
written as in transformers (a loop, index_add for the sum). Prints the tokens per second of the median step.

    python3 language_torch.py OUTPUT.json [--quick]
"""
import json
import statistics
import sys
import time

import moe
import torch
import torch.nn.functional as F

torch.set_num_threads(moe.THREADS)
VOCABULARY, DIM, HEADS, LENGTH, DEPTH, BATCH, HIDDEN, EXPERTS, PICKS, MU = 90, 128, 4, 64, 4, 16, 256, 8, 2, 0.7


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(DIM)
        self.qkv = torch.nn.Linear(DIM, 3 * DIM, bias=False)
        self.output = torch.nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):  # [B, L, D]
        split = self.qkv(self.norm(x)).view(BATCH, LENGTH, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        u = F.scaled_dot_product_attention(*split, is_causal=True)
        return x + self.output(u.transpose(1, 2).reshape(BATCH, LENGTH, DIM))


class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(DIM)
        self.gate = torch.nn.Linear(DIM, EXPERTS, bias=False)
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, DIM, HIDDEN) * DIM**-0.5)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, DIM) * HIDDEN**-0.5)

    def forward(self, x, momentum):
        items = self.norm(x).view(-1, DIM)
        top, chosen = torch.topk(self.gate(items), PICKS, dim=-1)
        weight = torch.softmax(top, dim=-1)
        u = torch.zeros_like(items)
        for e in range(EXPERTS):
            item, pick = torch.where(chosen == e)
            hidden = F.gelu(items[item] @ self.up[e], approximate="tanh")
            u.index_add_(0, item, (hidden @ self.down[e]) * weight[item, pick, None])
        momentum = MU * momentum + u.view_as(x)
        return x + momentum, momentum


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, DIM)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, DIM))
        self.attention = torch.nn.ModuleList(Attention() for _ in range(DEPTH))
        self.mixture = torch.nn.ModuleList(Mixture() for _ in range(DEPTH))
        self.norm = torch.nn.LayerNorm(DIM)
        self.output = torch.nn.Linear(DIM, VOCABULARY)

    def forward(self, ids, following):
        x = self.embedding(ids) + self.places
        momentum = torch.zeros_like(x)
        for attention, mixture in zip(self.attention, self.mixture):
            x, momentum = mixture(attention(x), momentum)
        return F.cross_entropy(self.output(self.norm(x)).view(-1, VOCABULARY), following.view(-1))


def tokens_per_second(compiled, seconds):
    torch.manual_seed(1)
    model = Model()
    loss_of = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids, following = torch.randint(VOCABULARY, (2, BATCH, LENGTH))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(ids, following)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    first = step()
    for _ in range(20):
        last = step()
    assert last < first, "the loss does not fall"
    times, begin = [], time.perf_counter()
    while len(times) < 10 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return BATCH * LENGTH / statistics.median(times)


if __name__ == "__main__":
    rows = []
    for name in ("eager", "compiled"):
        try:
            rate = tokens_per_second(name == "compiled", 2 if "--quick" in sys.argv else 10)
        except Exception as error:  # for example if inductor finds no compiler
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(f"peer_torch_{name}/language_train/characters  {rate:.0f} tokens/s")
        rows.append({"name": f"peer_torch_{name}/language_train/characters", "real_time": BATCH * LENGTH / rate * 1e3,
                     "time_unit": "ms"})
    with open(sys.argv[1], "w") as file:
        json.dump({"context": {"version": torch.__version__}, "benchmarks": rows}, file)
