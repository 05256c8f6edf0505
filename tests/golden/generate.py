"""Golden files of tests/layer/golden_test.cpp: stacks of MoE layers in PyTorch, float64, gradients by autograd.

    apt-get install python3-torch && /usr/bin/python3 tests/golden/generate.py

Written from the equations of the papers, not from the library. A file is a list of tensors, each a line
`name rank extents…` and a line of values (17 digits); rank 0 are options. Scalar of all gradients:

    f = <y, dy> + <carry after, dcarry.after> + auxiliary losses
"""

import pathlib

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
HERE = pathlib.Path(__file__).parent
DEPTH, K, EPSILON = 2, 2, 1e-5
SIZES = {"one": (1, 5, 3, 2), "odd": (7, 3, 4, 3), "more": (13, 6, 9, 5)}  # items, model, hidden, experts
# name: momentum (mu, gamma) or None, renormalise, gated experts, losses (balance, per pick, z) or None
VARIANTS = {
    "plain_mlp": (None, False, False, None),
    "plain_mlp_renormalised": (None, True, False, None),
    "heavy_ball_mlp_renormalised": ((0.7, 1.0), True, False, None),
    "heavy_ball_mlp_losses": ((0.5, 1.5), True, False, (0.3, False, 0.2)),
    "plain_gated_losses": (None, False, True, (0.4, True, 0.1)),
    "heavy_ball_gated_renormalised": ((0.9, 0.8), True, True, None),
    "heavy_ball_gated_losses": ((-0.3, 1.0), False, True, (0.3, False, 0.2)),
}


def uniform(generator, *shape, low=-1.0, high=1.0):
    return low + (high - low) * torch.rand(shape, generator=generator)


def make_parameters(generator, model, hidden, experts, gated):
    """Named as the library's packs are; first extent of expert tensors is the expert."""
    p = {}
    for layer in range(DEPTH):
        at = f"layers.{layer}.branch."
        p[at + "norm.gain"] = uniform(generator, model, low=0.5, high=1.5)
        p[at + "norm.bias"] = uniform(generator, model)
        p[at + "branch.gate.scores.weight"] = uniform(generator, model, experts)
        p[at + "branch.gate.scores.bias"] = uniform(generator, experts)
        expert = at + "branch.expert."
        if gated:
            p[expert + "gate"] = uniform(generator, experts, model, hidden)
            p[expert + "up"] = uniform(generator, experts, model, hidden)
            p[expert + "down"] = uniform(generator, experts, hidden, model)
        else:
            p[expert + "up"] = uniform(generator, experts, model, hidden)
            p[expert + "up_bias"] = uniform(generator, experts, hidden)
            p[expert + "down"] = uniform(generator, experts, hidden, model)
            p[expert + "down_bias"] = uniform(generator, experts, model)
    return p


def expert_output(p, at, e, h, gated):
    if gated:  # Shazeer 2020, eq. (6): (Swish(x W) * x V) W2
        return (F.silu(h @ p[at + "gate"][e]) * (h @ p[at + "up"][e])) @ p[at + "down"][e]
    return F.gelu(h @ p[at + "up"][e] + p[at + "up_bias"][e]) @ p[at + "down"][e] + p[at + "down_bias"][e]


def mixture(p, at, h, renormalise, gated, losses):
    logits = h @ p[at + "gate.scores.weight"] + p[at + "gate.scores.bias"]
    items, experts = logits.shape
    ordered = logits.detach().sort(dim=1, descending=True).values
    if experts > K and (ordered[:, K - 1] - ordered[:, K]).min() < 1e-3:
        raise ValueError("a choice is too close: another seed")
    picked = logits.topk(K, dim=1).indices
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, picked, True)
    if renormalise:  # Shazeer 2017, eq. (3) and (5): softmax(KeepTopK(z))
        weights = logits.masked_fill(~chosen, float("-inf")).softmax(dim=1)
    else:  # V-MoE: TopK(softmax(z))
        weights = logits.softmax(dim=1) * chosen
    u = sum(weights[:, e : e + 1] * expert_output(p, at + "expert.", e, h, gated) for e in range(experts))
    if not losses:
        return u, []
    balance, per_pick, z = losses
    share = chosen.sum(dim=0) / (items * K)
    mean = logits.softmax(dim=1).sum(dim=0) / (items * K if per_pick else items)
    return u, [balance * experts * (share * mean).sum(), z * logits.logsumexp(dim=1).square().mean()]


def run(p, x, carry, momentum, renormalise, gated, losses):
    auxiliary = []
    for layer in range(DEPTH):
        at = f"layers.{layer}.branch."
        h = F.layer_norm(x, x.shape[1:], p[at + "norm.gain"], p[at + "norm.bias"], EPSILON)
        u, values = mixture(p, at + "branch.", h, renormalise, gated, losses)
        auxiliary += values
        if momentum:
            mu, gamma = momentum
            carry = mu * carry + u
            x = x + gamma * carry
        else:
            x = x + u
    return x, carry, auxiliary


def write(path, tensors):
    with open(path, "w") as file:
        for name, value in tensors.items():
            t = torch.as_tensor(value, dtype=torch.float64).detach()
            file.write(" ".join([name, str(t.dim()), *map(str, t.shape)]) + "\n")
            file.write(" ".join(repr(v) for v in t.flatten().tolist()) + "\n")


def main():
    for number, (variant, (momentum, renormalise, gated, losses)) in enumerate(VARIANTS.items()):
        for size, (items, model, hidden, experts) in SIZES.items():
            generator = torch.Generator().manual_seed(100 * number + items)
            p = make_parameters(generator, model, hidden, experts, gated)
            x, dy = uniform(generator, items, model), uniform(generator, items, model)
            carry, dcarry = uniform(generator, items, model), uniform(generator, items, model)
            for t in [x, carry, *p.values()]:
                t.requires_grad_()
            y, after, auxiliary = run(p, x, carry, momentum, renormalise, gated, losses)
            f = (y * dy).sum() + sum(auxiliary)
            if momentum:
                f = f + (after * dcarry).sum()
            f.backward()

            out = {
                "options.model_dim": model,
                "options.hidden_dim": hidden,
                "options.experts": experts,
                "options.k": K,
                "options.renormalise": renormalise,
                "options.epsilon": EPSILON,
                "options.depth": DEPTH,
            }
            if momentum:
                out |= {"options.mu": momentum[0], "options.gamma": momentum[1]}
            if losses:
                out |= {"options.balance": losses[0], "options.per_pick": losses[1], "options.z": losses[2]}
            out |= {"x": x, "dy": dy, "y": y, "dx": x.grad}
            if momentum:
                out |= {"carry.p": carry, "after.p": after, "dafter.p": dcarry, "dcarry.p": carry.grad}
            if losses:
                out["auxiliary"] = torch.stack(auxiliary)
            out |= {"params." + name: t for name, t in p.items()}
            out |= {"grads." + name: t.grad for name, t in p.items()}
            write(HERE / f"{variant}_{size}.txt", out)


main()
