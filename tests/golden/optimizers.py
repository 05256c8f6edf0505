"""Five steps of torch.optim.AdamW and torch.optim.SGD: parameters and moments after each.

The equations are the library's: SGD begins with m = g + decay p, which is m <- momentum m + g + decay p at m = 0; AdamW
multiplies p by 1 - lr decay before the step, which takes lr decay p. Clipping and schedule are written out:
torch.nn.utils.clip_grad_norm_ divides by |g| + 1e-6.
"""

import math

import torch

from common import Random, under

STEPS = 5
SHAPES = {"weight": (1, 3, 2), "bias": (1, 2)}  # of one expert Linear{3, 2}
ADAMW = {
    "plain": {"lr": 0.01},
    "decay": {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "decay": 0.1},
    "schedule": {"lr": 0.2, "decay": 0.01, "warmup": 2, "total": 4, "floor": 0.1},
    "clipped": {"lr": 0.1, "beta1": 0.5, "decay": 0.3, "warmup": 3, "total": 9, "floor": 0.0, "norm": 0.7},
}
SGD = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "decay": {"lr": 0.2, "momentum": 0.5, "decay": 0.1},
    "schedule": {"lr": 0.3, "momentum": 0.7, "warmup": 2, "total": 4, "floor": 0.1},
    "clipped": {"lr": 0.1, "momentum": 0.9, "decay": 0.2, "warmup": 1, "total": 5, "floor": 0.2, "norm": 0.7},
}


def adamw(params, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, decay=0):
    return torch.optim.AdamW(params, lr, (beta1, beta2), epsilon, decay)


def sgd(params, lr, momentum=0, decay=0):
    return torch.optim.SGD(params, lr, momentum, weight_decay=decay)


MOMENTS = {adamw: {"m": "exp_avg", "v": "exp_avg_sq"}, sgd: {"m": "momentum_buffer"}}


def factor(t, warmup, total, floor):
    """Loshchilov and Hutter 2016 (arXiv:1608.03983), eq. (5), after a linear warm-up."""
    if t < warmup:
        return t / warmup
    return floor + (1 - floor) * (1 + math.cos(math.pi * (min(t, total) - warmup) / (total - warmup))) / 2


def clip(params, norm):
    """Pascanu et al. 2012 (arXiv:1211.5063), algorithm 1: all tensors together."""
    total = sum((p.grad**2).sum() for p in params).sqrt()
    for p in params:
        p.grad *= min(1, norm / total)


def case(make, options, seed):
    random = Random(seed)
    params = {name: random.uniform(*shape).requires_grad_() for name, shape in SHAPES.items()}
    tensors = under("options", options) | under("params", {name: p.detach().clone() for name, p in params.items()})
    schedule = {name: options[name] for name in ("warmup", "total", "floor") if name in options}
    own = {name: v for name, v in options.items() if name not in schedule and name != "norm"}
    optimizer = make(list(params.values()), **own)
    for t in range(1, STEPS + 1):
        for name, p in params.items():
            p.grad = random.uniform(*SHAPES[name])
            tensors[f"{t}.grads.{name}"] = p.grad.clone()
        if "norm" in options:
            clip(params.values(), options["norm"])
        if schedule:
            optimizer.param_groups[0]["lr"] = options["lr"] * factor(t, **schedule)
        optimizer.step()
        for name, p in params.items():
            tensors[f"{t}.params.{name}"] = p.detach().clone()
            for moment, theirs in MOMENTS[make].items():
                kept = optimizer.state[p].get(theirs)
                tensors[f"{t}.state.{moment}.{name}"] = (p.grad if kept is None else kept).clone()  # None: m = g
    return tensors


def files():
    for make, cases in ((adamw, ADAMW), (sgd, SGD)):
        yield f"optim/{make.__name__}", {
            name: case(make, options, i) for i, (name, options) in enumerate(cases.items())
        }
