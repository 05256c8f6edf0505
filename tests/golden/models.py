"""Language models of papers 001 and 002, loss and all gradients: an embedding, layers of attention and a mixture (with
pairs: then of attention and a dense network), an output layer with cross-entropy. Momentum, where there is some, goes
from mixture to mixture.
"""

import torch
import torch.nn.functional as F

from common import Random, clear, part, under
from experts import Mlp
from gates import Context, Gate, LinearScores, TopK, mixture, parameters
from windows import attention, layer_norm

SEQUENCES, LENGTH, VOCABULARY, MODEL, HEADS, WINDOW, DEPTH = 2, 4, 8, 4, 2, 3, 2
EXPERTS, HIDDEN, K = 3, 2, 2
EXPERT = Mlp(model_dim=MODEL, hidden_dim=HIDDEN, activation=F.relu, bias=True)
GATE = Gate(LinearScores(), TopK(k=K, renormalise=True))
# pairs of layers, momentum (mu, gamma) or None, the form of the code (norms after, momentum subtracted)
CASES = {
    "switch_plain": (False, None, False),
    "switch_heavy_ball": (False, (0.7, 1.2), False),
    "glam_plain": (True, None, False),
    "glam_heavy_ball": (True, (0.6, 0.9), False),
    "glam_heavy_ball_reference": (True, (0.7, 1.1), True),
}


# Where a form of a layer has its attention or dense network, its mixture, and their norms.
PRE_NORM = {
    "branch": "branch.branch",
    "norms": ["branch.norm"],
    "mixture": "branch.branch",
    "mixture_norms": ["branch.norm"],
}
REFERENCE = {
    "branch": "layer.branch",
    "norms": ["norm"],
    "mixture": "layer.layer.branch",
    "mixture_norms": ["layer.norm", "norm"],
}


def initial(random, pairs, reference):
    form = REFERENCE if reference else PRE_NORM

    def norms(*at):
        of = {f"{a}.gain": random.uniform(MODEL, low=0.5, high=1.5) for a in at}
        return of | {f"{a}.bias": random.uniform(MODEL) for a in at}

    def attention_and(at, network, network_norms, tensors):
        matrices = {name: random.uniform(MODEL, MODEL) for name in ("query", "key", "value", "output")}
        first = under(form["branch"], matrices) | norms(*form["norms"])
        second = under(network, tensors) | norms(*network_norms)
        return under(at + "layers.0", first) | under(at + "layers.1", second)

    params = {"layers.0.weight": random.uniform(VOCABULARY, MODEL), "layers.0.place": torch.zeros(0, MODEL)}
    params["layers.1.relative"] = random.uniform(WINDOW, MODEL // HEADS)
    for layer in range(DEPTH):
        at = f"layers.1.layer.layers.{layer}."
        of_mixture = parameters(GATE, random, MODEL, EXPERTS, EXPERT)
        params |= attention_and(at + "layers.0." * pairs, form["mixture"], form["mixture_norms"], of_mixture)
        if pairs:
            params |= attention_and(at + "layers.1.", form["branch"], form["norms"], EXPERT.parameters(random, 1))
    if not reference:
        params |= norms("layers.2")
    return under("model", params) | {
        "loss.weight": random.uniform(VOCABULARY, MODEL),
        "loss.bias": random.uniform(VOCABULARY),
    }


def attend(p, places, x, itself):
    """Each sequence after nothing, or, in the code's attention, after a window of zeros, which are keys like others."""
    past = torch.zeros(0 if itself else WINDOW, MODEL)
    return torch.cat([attention(p, places, of_x, past, HEADS, WINDOW, itself) for of_x in x.split(LENGTH)])


def pre_norm_pass(p, x, pairs, momentum):
    """x + attention(norm x);  m <- mu m + u(norm x), x + gamma m;  x + mlp(norm x)."""
    places = p["layers.1.relative"]
    m = torch.zeros_like(x)
    for layer in range(DEPTH):
        here = part(p, f"layers.1.layer.layers.{layer}" + (".layers.0" if pairs else ""))

        def attended(x, at):
            h = layer_norm(part(at, "layers.0.branch.norm"), x)
            return x + attend(part(at, "layers.0.branch.branch"), places, h, True)

        x = attended(x, here)
        h = layer_norm(part(here, "layers.1.branch.norm"), x)
        u, _, _ = mixture(GATE, part(here, "layers.1.branch.branch"), h, EXPERTS, EXPERT, Context())
        m = momentum[0] * m + u if momentum else u
        x = x + (momentum[1] if momentum else 1) * m
        if pairs:
            dense = part(p, f"layers.1.layer.layers.{layer}.layers.1")
            x = attended(x, dense)
            h = layer_norm(part(dense, "layers.1.branch.norm"), x)
            x = x + EXPERT.output(part(dense, "layers.1.branch.branch"), 0, h)
    return layer_norm(part(p, "layers.2"), x)


def reference_pass(p, x, pairs, momentum):
    """The code: h1 = LN1(h + attention h);  m <- mu m + gamma c, s = LN_in(h1 - m), h = LN2(h1 + s);  of a dense layer
    h = LN3(h1 + mlp h1)."""
    places = p["layers.1.relative"]
    m = torch.zeros_like(x)
    for layer in range(DEPTH):
        here = part(p, f"layers.1.layer.layers.{layer}" + (".layers.0" if pairs else ""))

        def attended(x, at):
            a = attend(part(at, "layers.0.layer.branch"), places, x, False)
            return layer_norm(part(at, "layers.0.norm"), x + a)

        h1 = attended(x, here)
        c, _, _ = mixture(GATE, part(here, "layers.1.layer.layer.branch"), h1, EXPERTS, EXPERT, Context())
        m = momentum[0] * m + momentum[1] * c
        x = layer_norm(part(here, "layers.1.norm"), h1 + layer_norm(part(here, "layers.1.layer.norm"), h1 - m))
        if pairs:
            dense = part(p, f"layers.1.layer.layers.{layer}.layers.1")
            h1 = attended(x, dense)
            u = EXPERT.output(part(dense, "layers.1.layer.branch"), 0, h1)
            x = layer_norm(part(dense, "layers.1.norm"), h1 + u)
    return x


def case(pairs, momentum, reference, seed):
    random = Random(seed)
    params = initial(random, pairs, reference)
    for p in params.values():
        p.requires_grad_()
    ids, target = (random.uniform(SEQUENCES * LENGTH, low=0, high=VOCABULARY).long() for _ in range(2))
    model = part(params, "model")
    h = F.embedding(ids, model["layers.0.weight"])
    h = (reference_pass if reference else pre_norm_pass)(model, h, pairs, momentum)
    log_p = F.log_softmax(F.linear(h, params["loss.weight"], params["loss.bias"]), dim=1)
    value = F.nll_loss(log_p, target)
    value.backward()
    mu, gamma = momentum or (0, 1)
    tensors = under("options", {"pairs": pairs, "mu": mu, "gamma": gamma})
    tensors |= {"ids": ids, "target": target, "h": h, "log_probabilities": log_p, "value": value.reshape(1)}
    tensors |= under("params", params)
    return tensors | under("grads", {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in params.items()})


def files():
    yield "model/language", {
        name: clear(lambda seed: case(*of, seed), f"model/language {name}") for name, of in CASES.items()
    }
