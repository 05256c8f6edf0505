"""The layer of the reference code of papers 001 and 002 (MomentumSMoE, TransformerSeqLayer): attention to a window of
relative places with a memory of the segment before, norms after the residual connections, momentum that is subtracted.
"""

import torch
import torch.nn.functional as F

from common import Random, clear, part, record, under
from experts import Mlp
from gates import Context, Gate, LinearScores, TopK, mixture, parameters

DEPTH, K, EPSILON = 2, 2, 1e-5
# sequences, items of each, remembered items, model, heads, window, hidden, experts, itself
SIZES = {
    "one": (1, 1, 1, 4, 1, 1, 2, 2, False),
    "odd": (3, 5, 2, 6, 2, 4, 3, 3, True),
    "past": (2, 3, 5, 6, 3, 5, 3, 3, False),
}
MOMENTUM = {"layer/reference": None, "layer/reference_momentum": (0.7, 1.5)}  # mu, gamma


def attention(p, places, x, past, heads, window, itself):
    """One sequence x [M, D] after past [P, D]; places [window, D/H]: score = (q . k + q . e) / sqrt(D/H)."""
    width = x.shape[1] // heads
    every = torch.cat([past.detach(), x])
    q, k, v = x @ p["query"], every @ p["key"], every @ p["value"]
    offset = torch.arange(len(every))[None, :] - (len(past) + torch.arange(len(x)))[:, None]
    place = offset + window - (1 if itself else 0)
    seen = (0 <= place) & (place < window)
    context = []
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        of_place = (q[:, own] @ places.T).gather(1, place.clamp(0, window - 1))
        score = ((q[:, own] @ k[:, own].T + of_place) / width**0.5).masked_fill(~seen, float("-inf"))
        nobody = ~seen.any(dim=1, keepdim=True)
        a = score.masked_fill(nobody, 0).softmax(dim=1).masked_fill(nobody, 0)
        context.append(a @ v[:, own])
    return torch.cat(context, dim=1) @ p["output"]


def layer_norm(p, x):
    return F.layer_norm(x, x.shape[1:], p["gain"], p["bias"], EPSILON)


def case(size, momentum, seed):
    sequences, length, past, model, heads, window, hidden, experts, itself = size
    random = Random(seed)
    expert = Mlp(model_dim=model, hidden_dim=hidden, activation=F.relu, bias=True)
    gate = Gate(LinearScores(), TopK(k=K, renormalise=True))
    before = random.uniform(DEPTH, sequences * past, model)
    params = {"relative": random.uniform(window, model // heads)}

    def norm(at):
        params[at + "norm.gain"] = random.uniform(model, low=0.5, high=1.5)
        params[at + "norm.bias"] = random.uniform(model)

    for layer in range(DEPTH):
        at = f"layer.layers.{layer}.layers."
        for name in ("query", "key", "value", "output"):
            params[at + "0.layer.branch." + name] = random.uniform(model, model)
        norm(at + "0.")
        params |= under(at + "1.layer.layer.branch", parameters(gate, random, model, experts, expert))
        norm(at + "1.layer.")
        norm(at + "1.")

    def run(p, x, carry):
        h = x
        m = momentum[1] * carry["states.1.p"] if momentum else None
        for layer in range(DEPTH):
            here = part(p, f"layer.layers.{layer}.layers")
            rows = [
                attention(part(here, "0.layer.branch"), p["relative"], of_x, of_past, heads, window, itself)
                for of_x, of_past in zip(h.split(length), before[layer].split(past))
            ]
            h1 = layer_norm(part(here, "0.norm"), h + torch.cat(rows))
            c, _, _ = mixture(gate, part(here, "1.layer.layer.branch"), h1, experts, expert, Context())
            if momentum:
                m = momentum[0] * m + momentum[1] * c
                s = h1 - m
            else:
                s = h1 + c
            h = layer_norm(part(here, "1.norm"), h1 + layer_norm(part(here, "1.layer.norm"), s))
        return h, {"states.1.p": m / momentum[1]} if momentum else {}, []

    names = ("sequences", "length", "past", "model_dim", "heads", "window", "hidden_dim", "experts", "itself")
    options = dict(zip(names, size)) | {"k": K, "depth": DEPTH}
    items, carry, dafter = sequences * length, {}, {}
    if momentum:
        options |= {"mu": momentum[0], "gamma": momentum[1]}
        carry, dafter = ({"states.1.p": random.uniform(items, model)} for _ in range(2))
    x, dy = random.uniform(items, model), random.uniform(items, model)
    return record(options, x, dy, run, params, carry, dafter, {"before": before})


def files():
    for file, momentum in MOMENTUM.items():
        yield file, {
            name: clear(lambda seed: case(size, momentum, seed), f"{file} {name}") for name, size in SIZES.items()
        }
