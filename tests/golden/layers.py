"""Stacks of pre-norm MoE layers: plain residuals and heavy ball (paper 001), MLP and gated experts, auxiliary
losses."""

import torch.nn.functional as F

from common import Random, clear, part, record, under
from experts import gated_mlp, mlp
from gates import Context, Gate, LinearScores, TopK, balance, mixture, parameters, z_loss

DEPTH, K, EPSILON = 2, 2, 1e-5
SIZES = {"one": (1, 5, 3, 2), "odd": (7, 3, 4, 3), "more": (13, 6, 5, 4)}  # items, model, hidden, experts
# name: momentum (mu, gamma) or None, renormalise, expert, losses (balance, per pick, z) or None
VARIANTS = {
    "plain_mlp": (None, False, mlp, None),
    "plain_mlp_renormalised": (None, True, mlp, None),
    "heavy_ball_mlp_renormalised": ((0.7, 1.0), True, mlp, None),
    "heavy_ball_mlp_losses": ((0.5, 1.5), True, mlp, (0.3, False, 0.2)),
    "plain_gated_losses": (None, False, gated_mlp, (0.4, True, 0.1)),
    "heavy_ball_gated_renormalised": ((0.9, 0.8), True, gated_mlp, None),
    "heavy_ball_gated_losses": ((-0.3, 1.0), False, gated_mlp, (0.3, False, 0.2)),
}


def case(variant, items, model, hidden, experts, seed):
    momentum, renormalise, expert, losses = variant
    random = Random(seed)
    expert = expert(model, hidden)
    gate = Gate(LinearScores(), TopK(k=K, renormalise=renormalise))
    if losses:
        gate.losses = ((losses[0], lambda routing: balance(routing, losses[1])), (losses[2], z_loss))
    params = {}
    for layer in range(DEPTH):
        at = f"layers.{layer}.branch."
        params[at + "norm.gain"] = random.uniform(model, low=0.5, high=1.5)
        params[at + "norm.bias"] = random.uniform(model)
        params |= under(at + "branch", parameters(gate, random, model, experts, expert))

    def run(p, x, carry):
        auxiliary = []
        for layer in range(DEPTH):
            here = part(p, f"layers.{layer}.branch")
            h = F.layer_norm(x, x.shape[1:], here["norm.gain"], here["norm.bias"], EPSILON)
            u, _, values = mixture(gate, part(here, "branch"), h, experts, expert, Context())
            auxiliary += values
            if momentum:
                carry = {"p": momentum[0] * carry["p"] + u}
                x = x + momentum[1] * carry["p"]
            else:
                x = x + u
        return x, carry, auxiliary

    options = {
        "model_dim": model,
        "hidden_dim": hidden,
        "experts": experts,
        "k": K,
        "renormalise": renormalise,
        "epsilon": EPSILON,
        "depth": DEPTH,
    }
    carry, dafter = {}, {}
    if momentum:
        options |= {"mu": momentum[0], "gamma": momentum[1]}
        carry, dafter = {"p": random.uniform(items, model)}, {"p": random.uniform(items, model)}
    if losses:
        options |= {"balance": losses[0], "per_pick": losses[1], "z": losses[2]}
    return record(options, random.uniform(items, model), random.uniform(items, model), run, params, carry, dafter)


def files():
    for name, variant in VARIANTS.items():
        file = f"layer/{name}"
        yield file, {
            size: clear(lambda seed: case(variant, *extents, seed), f"{file} {size}") for size, extents in SIZES.items()
        }
