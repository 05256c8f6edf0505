"""Steps of gradient descent of a mixture whose router and experts learn from two losses, by autograd.

f[n] is the output of the experts that item n goes to, pi f[n] the same times the weights of its picks.
"""

import torch
import torch.nn.functional as F

from common import Random, clear, under
from experts import AttentionExpert, PatchCnn, PatchMlp, cube
from gates import Context, Gate, LinearScores, NoisyTop1, PatchScores, mixture, parameters

STEPS, ITEMS, EXPERTS, MODEL, LENGTH, LR, SEED = 3, 6, 3, 3, 2, 0.5, 5
TOP_1 = NoisyTop1(scale=1.0, noisy_weight=False)
CASES = {
    # Paper 000: experts learn from l(t f), the router from l(t f pi).
    "transformers": (
        Gate(LinearScores(length=LENGTH, bias=False), TOP_1),
        AttentionExpert(model_dim=MODEL, length=LENGTH, outputs=1),
        False,
    ),
    # Paper 003: both from l(t f pi).
    "patches": (
        Gate(PatchScores(length=LENGTH), TOP_1),
        PatchMlp(model_dim=MODEL, patches=LENGTH, filters=2, outputs=1, bias=False, activation=cube),
        True,
    ),
    # Two classes.
    "classes": (
        Gate(LinearScores(length=LENGTH, bias=True), TOP_1),
        PatchCnn(model_dim=MODEL, patches=LENGTH, filters=2, outputs=2, bias=True, activation=cube),
        False,
    ),
}


def case(gate, expert, weighted, seed):
    random = Random(seed)
    params = parameters(gate, random, LENGTH * MODEL, EXPERTS, expert)
    tensors = under("options", {"lr": LR, "seed": SEED, "steps": STEPS})
    tensors |= under("params", {name: p.clone() for name, p in params.items()})
    for p in params.values():
        p.requires_grad_()
    optimizer = torch.optim.SGD(params.values(), LR)
    for t in range(1, STEPS + 1):
        x = random.uniform(ITEMS, LENGTH * MODEL)
        labels = random.uniform(ITEMS, low=0, high=2).long()
        signs = (2.0 * labels - 1).reshape(ITEMS, 1)

        def loss(y):
            return F.cross_entropy(y, labels) if expert.outputs > 1 else -F.logsigmoid(signs * y).mean()

        y, routing, _ = mixture(gate, params, x, EXPERTS, expert, Context(random=(SEED, t)))
        experts = {name[len("expert.") :]: p for name, p in params.items() if name.startswith("expert.")}
        f = torch.cat([expert.output(experts, e, x[n : n + 1]) for n, e in enumerate(routing.picked[:, 0].tolist())])
        router_loss, expert_loss = loss(y), loss(y if weighted else f)
        for name, p in params.items():
            of = expert_loss if name.startswith("expert.") else router_loss
            p.grad = torch.autograd.grad(of, p, retain_graph=True)[0] if p.numel() else torch.zeros_like(p)
        here = {"x": x, "target": labels if expert.outputs > 1 else signs, "y": y, "f": f}
        here["losses"] = torch.stack([router_loss, expert_loss])
        here |= under("grads", {name: p.grad for name, p in params.items()})
        optimizer.step()
        here |= under("params", {name: p.detach().clone() for name, p in params.items()})
        tensors |= under(str(t), here)
    return tensors


def files():
    yield "train/routed_trainer", {
        name: clear(lambda seed: case(*parts, seed), f"train/{name}") for name, parts in CASES.items()
    }
