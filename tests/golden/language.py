"""Steps of torch.optim.AdamW of a small language model: an embedding (of places too), a linear layer, and an output
layer with cross-entropy whose padding is ignored. Its embedding is of its own, tied to the output layer, or has a
sparse gradient and torch.optim.SparseAdam, whose epsilon is added before the second moment is corrected.
"""

import math

import torch
import torch.nn.functional as F

from common import Random, under

STEPS, ITEMS, VOCABULARY, MODEL, PADDING = 4, 9, 11, 3, -1
CASES = {
    "apart": {"lr": 0.05, "decay": 0.1, "epsilon": 1e-8, "tied": 0, "sparse": 0, "bias": 1, "places": 0},
    "tied": {"lr": 0.05, "decay": 0.02, "epsilon": 1e-3, "tied": 1, "sparse": 0, "bias": 1, "places": 4},
    "tied_without_bias": {"lr": 0.02, "decay": 0, "epsilon": 1e-8, "tied": 1, "sparse": 0, "bias": 0, "places": 0},
    "sparse": {"lr": 0.05, "decay": 0, "epsilon": 1e-3, "tied": 0, "sparse": 1, "bias": 1, "places": 3},
}


def case(options, seed):
    random = Random(seed)
    tied, sparse, bias, places = (options[name] for name in ("tied", "sparse", "bias", "places"))
    params = {
        "model.layers.0.weight": random.uniform(VOCABULARY, MODEL),
        "model.layers.0.place": random.uniform(places, MODEL),
        "model.layers.1.weight": random.uniform(MODEL, MODEL),
        "model.layers.1.bias": random.uniform(MODEL),
        "loss.weight": random.uniform(0 if tied else VOCABULARY, MODEL),
        "loss.bias": random.uniform(VOCABULARY if bias else 0),
    }
    for p in params.values():
        p.requires_grad_()
    table, place, weight, weight_bias, output, output_bias = params.values()
    tensors = under("options", options) | under("params", {name: p.detach().clone() for name, p in params.items()})
    dense = [p for p in params.values() if not (sparse and p is table)]
    settings = {"lr": options["lr"], "eps": options["epsilon"]}
    optimizers = [torch.optim.AdamW(dense, weight_decay=options["decay"], **settings)]
    if sparse:
        optimizers.append(torch.optim.SparseAdam([table], **settings))
    for t in range(1, STEPS + 1):
        ids = random.uniform(ITEMS, low=0, high=VOCABULARY / 2).long()  # some occur twice, half of them never
        target = random.uniform(ITEMS, low=0, high=VOCABULARY).long()
        target[t::4] = PADDING
        h = F.embedding(ids, table, sparse=bool(sparse))
        if places:
            h = h + place[torch.arange(ITEMS) % places]
        h = h @ weight + weight_bias
        z = F.linear(h, table if tied else output, output_bias if bias else None)
        value = F.cross_entropy(z, target, ignore_index=PADDING)
        for optimizer in optimizers:
            optimizer.zero_grad()
        value.backward()
        for p in params.values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        here = {"ids": ids, "target": target, "value": value.reshape(1)}
        here |= under("grads", {name: p.grad.to_dense().clone() for name, p in params.items()})
        if sparse:
            optimizers[1].param_groups[0]["eps"] = options["epsilon"] * math.sqrt(1 - 0.999**t)
        for optimizer in optimizers:
            optimizer.step()
        here |= under("params", {name: p.detach().clone() for name, p in params.items()})
        tensors |= under(str(t), here)
    return tensors


def files():
    yield "train/language", {name: case(options, i) for i, (name, options) in enumerate(CASES.items())}
