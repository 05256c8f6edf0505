"""Vision transformers of papers 001 and 002, loss and all gradients, down to the pixels: patches, a class token or the
mean of the tokens, layers of attention and a dense network or a mixture. Momentum goes from mixture to mixture.
"""

import torch
import torch.nn.functional as F

from common import Random, clear, part, under
from experts import Mlp
from gates import Context, Gate, LinearScores, TopK, mixture, parameters
from mixings import TokenSimilarity

IMAGES, SIDE, CHANNELS, PATCH, MODEL, HEADS, DEPTH, CLASSES = 2, 4, 2, 2, 4, 2, 4, 3
MEAN, DEVIATION, EPSILON = 0.3, 0.7, 1e-6
EXPERTS, HIDDEN, K, TAU = 3, 3, 2, 2.0
TOKENS, PATCH_DIM = (SIDE // PATCH) ** 2, PATCH**2 * CHANNELS
EXPERT = Mlp(model_dim=MODEL, hidden_dim=HIDDEN, activation=F.gelu, bias=True)
VMOE = Gate(LinearScores(bias=False), TopK(k=K, renormalise=False))
SIMILAR = Gate(LinearScores(bias=False), TopK(k=K, renormalise=True), (), TokenSimilarity(tau=TAU, causal=False))
SOFT = None

# Where the layers are, at which place their two parts begin, and whether they have a mixture: the last of every second
# one, every second one, the second half.
LAST = [("0.layers.0", 0, 0), ("0.layers.1", 0, 0), ("1.layers.0", 0, 0), ("1.layers.0", 2, 1)]
EVERY = [("0", 0, 0), ("0", 2, 1), ("1", 0, 0), ("1", 2, 1)]
HALF = [("0.layers.0", 0, 0), ("0.layers.1", 0, 0), ("1.layers.0", 0, 1), ("1.layers.1", 0, 1)]
# layers, gate, heavy ball (mu, gamma) or robust momentum (p, k, l) or neither, class token, the form of the code
CASES = {
    "last_heavy_ball": (LAST, VMOE, (0.7, 1.2), True, False),
    "every_2_robust_reference": (EVERY, VMOE, (0.3, 1.5, 1.1), True, True),
    "every_2_similar": (EVERY, SIMILAR, (0.6, 0.9), False, False),
    "soft_plain": (HALF, SOFT, None, False, False),
    "soft_heavy_ball": (HALF, SOFT, (0.7, 1.2), False, False),
}


def of_mixture(gate, random):
    if gate is not SOFT:
        return parameters(gate, random, MODEL, EXPERTS, EXPERT)
    own = {"gate.phi": random.uniform(EXPERTS, 1, MODEL), "gate.scale": random.uniform(1, low=0.5, high=2.0)}
    return own | under("expert", EXPERT.parameters(random, EXPERTS))


def initial(random, layers, gate, class_token, reference):
    length = TOKENS + class_token

    def norm(at):
        of = {"gain": random.uniform(MODEL, low=0.5, high=1.5).reshape(1, -1), "bias": random.uniform(1, MODEL)}
        return under(at, of)

    params = under("layers.1", {"weight": random.uniform(1, PATCH_DIM, MODEL), "bias": random.uniform(1, MODEL)})
    params |= {"layers.2.place": random.uniform(length, MODEL),
               "layers.2.first": random.uniform(int(class_token), MODEL)}
    for at, first, mixed in layers:
        matrices = {name: random.uniform(MODEL, MODEL) for name in ("query", "key", "value", "output")}
        of = norm(f"{first}.branch.norm") | under(f"{first}.branch.branch", matrices)
        network, second = of_mixture(gate, random) if mixed else EXPERT.parameters(random, 1), first + 1
        if reference:
            of |= norm(f"{second}.layer.norm") | under(f"{second}.layer.layer.branch", network) | norm(f"{second}.norm")
        else:
            of |= norm(f"{second}.branch.norm") | under(f"{second}.branch.branch", network)
        params |= under(f"layers.3.layers.0.layers.{at}.layers", of)
    params |= norm("layers.3.layers.1")
    return params | under("layers.5", {"weight": random.uniform(1, MODEL, CLASSES), "bias": random.uniform(1, CLASSES)})


def norm(p, x):
    return F.layer_norm(x, x.shape[-1:], p["gain"][0], p["bias"][0], EPSILON)


def attention(p, x):
    """Every token of an image attends to all of them."""
    width, context = MODEL // HEADS, []
    q, k, v = x @ p["query"], x @ p["key"], x @ p["value"]
    for h in range(HEADS):
        own = slice(h * width, (h + 1) * width)
        context.append((q[..., own] @ k[..., own].transpose(1, 2) / width**0.5).softmax(dim=2) @ v[..., own])
    return torch.cat(context, dim=2) @ p["output"]


def soft_moe(p, x):
    """One image: Puigcerver et al. 2023, alg. 1 and 2, one slot of each expert."""

    def unit(v):
        return v / (v.norm(dim=1, keepdim=True) + 1e-6)

    logits = unit(x) @ (p["gate.scale"] * unit(p["gate.phi"][:, 0])).T
    inputs = logits.softmax(dim=0).T @ x
    outputs = torch.cat([EXPERT.output(part(p, "expert"), e, inputs[e : e + 1]) for e in range(EXPERTS)])
    return logits.softmax(dim=1) @ outputs


def mixed_output(gate, p, x):
    if gate is SOFT:
        return torch.stack([soft_moe(p, image) for image in x])
    rows = x.reshape(-1, MODEL)
    u, _, _ = mixture(gate, p, rows, EXPERTS, EXPERT, Context(length=x.shape[1]))
    return u.reshape(x.shape)


def coefficients(momentum):
    """mu, gamma, and how far ahead of the stream a mixture is evaluated; paper 001, eq. (10), (17), (18)."""
    if momentum is None:
        return 0, 1, 0
    if len(momentum) == 2:
        return *momentum, 0
    p, k, l = momentum
    gamma = k * (1 - p) ** 2 * (1 + p) / l
    alpha = p**3 / ((k - 1) * (1 - p) ** 2 * (1 + p))
    return k * p**3 / (k - 1), gamma, alpha * gamma


def forward(p, images, layers, gate, momentum, class_token, reference):
    mu, gamma, ahead = coefficients(momentum)
    x = ((images - MEAN) / DEVIATION).reshape(IMAGES, SIDE, SIDE, CHANNELS)
    patches = [
        x[:, top : top + PATCH, left : left + PATCH].reshape(IMAGES, -1)
        for top in range(0, SIDE, PATCH)
        for left in range(0, SIDE, PATCH)
    ]
    x = torch.stack(patches, dim=1) @ p["layers.1.weight"][0] + p["layers.1.bias"][0]
    if class_token:
        x = torch.cat([p["layers.2.first"].expand(IMAGES, 1, MODEL), x], dim=1)
    x = x + p["layers.2.place"]
    q = torch.zeros_like(x)
    for at, first, mixed in layers:
        attending = part(p, f"layers.3.layers.0.layers.{at}.layers.{first}.branch")
        here = part(p, f"layers.3.layers.0.layers.{at}.layers.{first + 1}")
        x = x + attention(part(attending, "branch"), norm(part(attending, "norm"), x))
        if reference:
            network = part(here, "layer.layer.branch")
            point = norm(part(here, "layer.norm"), x) + ahead * q
        else:
            network = part(here, "branch.branch")
            point = norm(part(here, "branch.norm"), x + ahead * q if mixed else x)
        if mixed:
            q = mu * q + mixed_output(gate, network, point)
            x = x + gamma * q
        else:
            x = x + EXPERT.output(network, 0, point)
        if reference:
            x = norm(part(here, "norm"), x)
    x = norm(part(p, "layers.3.layers.1"), x)
    x = x[:, 0] if class_token else x.mean(dim=1)
    return x @ p["layers.5.weight"][0] + p["layers.5.bias"][0]


def case(layers, gate, momentum, class_token, reference, seed):
    random = Random(seed)
    params = initial(random, layers, gate, class_token, reference)
    images = random.uniform(IMAGES, SIDE * SIDE * CHANNELS, low=0.0)
    for t in [images, *params.values()]:
        t.requires_grad_()
    labels = random.uniform(IMAGES, low=0, high=CLASSES).long()
    y = forward(params, images, layers, gate, momentum, class_token, reference)
    value = F.cross_entropy(y, labels)
    value.backward()
    options = dict(zip(("p", "k", "l") if momentum and len(momentum) == 3 else ("mu", "gamma"), momentum or (0, 1)))
    tensors = under("options", options) | {"x": images, "labels": labels, "y": y, "value": value.reshape(1)}
    tensors |= {"dx": images.grad} | under("params", params)
    return tensors | under("grads", {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in params.items()})


def files():
    yield "model/vision", {
        name: clear(lambda seed: case(*of, seed), f"model/vision {name}") for name, of in CASES.items()
    }
