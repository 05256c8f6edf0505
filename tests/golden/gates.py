"""Gates: scores, selections and auxiliary losses, and their mixtures.

Weights of the mixture are [N, E], 0 where an expert is not picked or had no room; padding (valid = 0) goes nowhere and
is counted nowhere. Ties are made of numbers that are exact in binary.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch

from common import far_apart, part, under
from philox import draw, one_normal, one_uniform


def top_k(rank, k):
    """The k largest, ties to the lower index (a stable descending sort)."""
    far_apart(rank)
    order = rank.detach().sort(dim=1, descending=True, stable=True).indices
    return order[:, :k]


def as_mask(picked, like):
    return torch.zeros_like(like, dtype=torch.bool).scatter(1, picked, True)


@dataclass
class Context:
    """What a gate is given beside its items."""

    valid: torch.Tensor = None  # [N] of 0 and 1
    length: int = 0  # items of a sequence, 0: all
    random: tuple = None  # seed, step

    def items(self, like):
        return torch.ones(len(like), dtype=torch.bool) if self.valid is None else self.valid > 0

    def sequences(self, like):
        length = self.length or max(len(like), 1)
        return [range(first, first + length) for first in range(0, len(like), length)]

    def options(self):
        options = {"length": self.length} if self.length else {}
        if self.random:
            options |= {"seed": self.random[0], "step": self.random[1]}
        return options

    def given(self):
        return {} if self.valid is None else {"valid": self.valid}


@dataclass
class Routing:
    """What auxiliary losses see."""

    logits: torch.Tensor
    q: torch.Tensor
    rank: torch.Tensor
    weights: torch.Tensor
    picked: torch.Tensor = None  # [N, K] best first, whether there was room or not
    value: torch.Tensor = None  # with noise
    deviation: torch.Tensor = None


class Part:
    def __init__(self, **options):
        self.given = options
        self.__dict__.update(options)

    def options(self):
        return dict(self.given)

    def parameters(self, random, model, experts):
        return {}


# Scores


class LinearScores(Part):
    """z = sum_p x^(p) Theta + b; Shazeer 2017 (arXiv:1701.06538), eq. (4), and Chen et al. 2022 for several patches."""

    length = 1
    bias = True

    def parameters(self, random, model, experts):
        return {
            "weight": random.uniform(model // self.length, experts),
            "bias": random.uniform(experts if self.bias else 0),
        }

    def logits(self, p, x, context):
        patches = x.reshape(len(x), self.length, -1)
        return (patches @ p["weight"]).sum(dim=1) + (p["bias"] if self.bias else 0)


class PatchScores(Part):
    """Paper 003, sec. 3: h = sum_p Theta_p^T x^(p)."""

    def parameters(self, random, model, experts):
        return {"weight": random.uniform(self.length, model // self.length, experts)}

    def logits(self, p, x, context):
        patches = x.reshape(len(x), self.length, -1)
        return sum(patches[:, l] @ p["weight"][l] for l in range(self.length))


class CosineScores(Part):
    """X-MoE (arXiv:2204.09179), sec. 3.2: cosine of the projected item and the embedding over tau. Its code (the sheet,
    2.9): no norm of the item, no temperature."""

    def parameters(self, random, model, experts):
        return {
            "projection": random.uniform(model, self.dim),
            "embedding": random.uniform(experts, self.dim),
            "temperature": random.uniform(0 if self.reference else 1, low=0.2, high=0.9),
        }

    def logits(self, p, x, context):
        r = x @ p["projection"]
        embedding = p["embedding"] / p["embedding"].norm(dim=1, keepdim=True)
        if self.reference:
            return r @ embedding.T
        return r / r.norm(dim=1, keepdim=True) @ embedding.T / p["temperature"]


class Frozen(Part):
    """SMoE-Dropout (arXiv:2303.01610): a random router that is not trained. Items still are."""

    def parameters(self, random, model, experts):
        return self.scores.parameters(random, model, experts)

    def options(self):
        return self.scores.options()

    def logits(self, p, x, context):
        return self.scores.logits({name: t.detach() for name, t in p.items()}, x, context)


class Jitter(Part):
    """Switch (arXiv:2101.03961): the router's input times U[1 − epsilon, 1 + epsilon]."""

    def parameters(self, random, model, experts):
        return self.scores.parameters(random, model, experts)

    def options(self):
        return self.scores.options() | {"epsilon": self.epsilon}

    def logits(self, p, x, context):
        if context.random:
            low, high = 1 - self.epsilon, 1 + self.epsilon
            x = x * (low + (high - low) * draw(one_uniform, *context.random, *x.shape))
        return self.scores.logits(p, x, context)


# Selections: route(p, x, logits, q, rank, context) -> Routing


def take(q, picked, renormalise):
    kept = q * as_mask(picked, q)
    return kept / kept.sum(dim=1, keepdim=True) if renormalise else kept


class Dense(Part):
    def route(self, p, x, logits, q, rank, context):
        return Routing(logits, q, rank, q)


class TopK(Part):
    """Shazeer 2017, eq. (3), (5) without noise (renormalise); V-MoE (arXiv:2106.05974): TopK(softmax)."""

    def route(self, p, x, logits, q, rank, context):
        picked = top_k(rank, self.k)
        return Routing(logits, q, rank, take(q, picked, self.renormalise), picked)


def one_gumbel(seed, step, i):
    """Maddison et al. 2014 (arXiv:1411.0030)."""
    return -math.log(-math.log(one_uniform(seed, step, i)))


class NoisyTop1(Part):
    """Papers 000 and 003: argmax of h + r, r ~ U[0, 1), weighted by the softmax of h. noisy_weight: by h + r itself, as
    in uclaml/MoE."""

    def options(self):
        return {"scale": self.scale, "noisy_weight": self.noisy_weight}

    def route(self, p, x, logits, q, rank, context):
        value = rank
        if context.random:
            value = rank + self.scale * draw(getattr(self, "law", one_uniform), *context.random, *rank.shape)
        picked = top_k(value, 1)
        return Routing(logits, q, rank, (value if self.noisy_weight else q) * as_mask(picked, q), picked)


class ShazeerTopK(Part):
    """Shazeer 2017, eq. (3)-(5): H = x Wg + StandardNormal() Softplus(x Wnoise), softmax(KeepTopK(H, k)). epsilon:
    FastMoE."""

    def parameters(self, random, model, experts):
        return {"noise": random.uniform(model, experts)}

    def route(self, p, x, logits, q, rank, context):
        if not context.random:
            return TopK(k=self.k, renormalise=True).route(p, x, logits, q, rank, context)
        deviation = torch.nn.functional.softplus(x @ p["noise"]) + self.epsilon
        value = rank + draw(one_normal, *context.random, *rank.shape) * deviation
        picked = top_k(value, self.k)
        weights = value.masked_fill(~as_mask(picked, value), float("-inf")).softmax(dim=1)
        return Routing(logits, q, rank, weights, picked, value, deviation)


class VMoeTopK(Part):
    """V-MoE: TOP_k(softmax(W x + epsilon)), epsilon ~ N(0, 1/E^2)."""

    def parameters(self, random, model, experts):
        return {"noise": torch.zeros(0, 0)}

    def route(self, p, x, logits, q, rank, context):
        if not context.random:
            return TopK(k=self.k, renormalise=False).route(p, x, logits, q, rank, context)
        deviation = torch.full_like(rank, 1 / rank.shape[1])
        value = rank + draw(one_normal, *context.random, *rank.shape) * deviation
        picked = top_k(value, self.k)
        return Routing(logits, q, rank, take(value.softmax(dim=1), picked, False), picked, value, deviation)


class Capacity(Part):
    """Switch, eq. (3), and V-MoE: room for S K factor / E picks of S items, rounded up, to multiples in V-MoE's code.
    All first choices come before any second; batch priority: in the order of the first choice's probability."""

    slots, group, batch_priority = 0, 0, False

    def options(self):
        own = {name: v for name, v in self.given.items() if name != "selection"}
        return own | self.selection.options()

    def parameters(self, random, model, experts):
        return self.selection.parameters(random, model, experts)

    def route(self, p, x, logits, q, rank, context):
        routing = self.selection.route(p, x, logits, q, rank, context)
        items, k = routing.picked.shape
        experts, real = q.shape[1], context.items(x)
        keep = torch.zeros_like(q, dtype=torch.bool)
        size = self.group or items
        for first in range(0, items, size):
            group = [n for n in range(first, min(first + size, items)) if real[n]]
            room = self.slots
            if not room:
                room = min(len(group), math.ceil(len(group) * k * Fraction(str(self.factor)) / experts))
                room = math.ceil(room / self.multiple_of) * self.multiple_of
            if self.batch_priority:
                seen = q if routing.value is None else routing.value.softmax(dim=1)
                best = seen.detach().gather(1, routing.picked)[:, 0]
                far_apart(best[group])
                group.sort(key=lambda n: -best[n].item())  # stable
            used = [0] * experts
            for choice in range(k):
                for n in group:
                    e = routing.picked[n, choice].item()
                    used[e] += 1
                    keep[n, e] = used[e] <= room
        routing.weights = routing.weights * keep
        return routing


class ExpertChoice(Part):
    """Zhou et al. 2022 (arXiv:2202.09368), eq. (1), (2): every expert takes its n c / e best items of softmax
    scores."""

    def route(self, p, x, logits, q, rank, context):
        keep = torch.zeros_like(q, dtype=torch.bool)
        for sequence in context.sequences(x):
            items = [n for n in sequence if context.items(x)[n]]
            room = min(max(round(len(items) * self.factor / q.shape[1]), 1), len(items))
            far_apart(q[items], dim=0)
            for e in range(q.shape[1]):
                for n in sorted(items, key=lambda n: -q[n, e].item())[:room]:  # stable
                    keep[n, e] = True
        return Routing(logits, q, rank, q * keep)


class SigmoidBias(Part):
    """Wang et al. 2024 (arXiv:2408.15664), eq. (3) and alg. 1; DeepSeek-V3 (arXiv:2412.19437), eq. (13)-(16)."""

    def parameters(self, random, model, experts):
        return {"bias": random.uniform(experts, low=-0.5, high=0.5), "speed": random.uniform(1, low=0.0)}

    def route(self, p, x, logits, q, rank, context):
        s = torch.sigmoid(rank)
        picked = top_k(s + p["bias"].detach(), self.k)
        return Routing(logits, q, rank, self.scale * take(s, picked, self.renormalise), picked)


# Auxiliary losses: loss(routing of the real items)


VMOE, SHAZEER, FASTMOE = range(3)


def cv_squared(v, form):
    """(std / mean)^2. The codes of V-MoE and of Shazeer (tensor2tensor) have the population's variance, FastMoE the
    unbiased one; the latter two add 1e-10 below."""
    return v.var(unbiased=form == FASTMOE) / (v.mean() ** 2 + (0 if form == VMOE else 1e-10))


def importance(routing, form=VMOE):
    """V-MoE, appendix: of the softmax without noise."""
    return cv_squared(routing.q.sum(dim=0), form)


def normal_cdf(z):
    return 0.5 * (1 + torch.erf(z / math.sqrt(2)))


def load_vmoe(routing):
    """V-MoE, appendix: probability that an expert is above the k-th largest noisy logit under new noise."""
    if routing.value is None:
        return routing.q.sum() * 0
    k = routing.picked.shape[1]
    threshold = routing.value.sort(dim=1, descending=True).values[:, k - 1 : k]
    return cv_squared((1 - normal_cdf((threshold - routing.rank) / routing.deviation)).sum(dim=0), VMOE)


def load_shazeer(routing, form=SHAZEER):
    """Shazeer 2017, eq. (8)-(11): kth_excluding(H(x), k, i)."""
    if routing.value is None:
        return routing.q.sum() * 0
    experts, k = routing.value.shape[1], routing.picked.shape[1]
    if k == experts:
        return routing.q.sum() * 0
    columns = []
    for e in range(experts):
        others = torch.cat([routing.value[:, :e], routing.value[:, e + 1 :]], dim=1)
        threshold = others.sort(dim=1, descending=True).values[:, k - 1]
        columns.append(normal_cdf((routing.rank[:, e] - threshold) / routing.deviation[:, e]))
    return cv_squared(torch.stack(columns, dim=1).sum(dim=0), form)


def gshard(routing):
    """GShard (arXiv:2006.16668), algorithm 1: mean over experts of (c_e/S) m_e, c_e of first choices; times E^2, as in
    FastMoE."""
    items, experts = routing.q.shape
    first = as_mask(routing.picked[:, :1], routing.q).sum(dim=0) / items
    return (first * routing.q.mean(dim=0)).mean() * experts**2


def balance(routing, per_pick=False):
    """Switch, eq. (4)-(6), for K picks; per_pick: the reference code of papers 001 and 002."""
    items, experts = routing.q.shape
    k = routing.picked.shape[1]
    share = as_mask(routing.picked, routing.q).sum(dim=0) / (items * k)
    return experts * (share * routing.q.sum(dim=0) / (items * k if per_pick else items)).sum()


def z_loss(routing):
    """ST-MoE (arXiv:2202.08906), eq. (5)."""
    return routing.logits.logsumexp(dim=1).square().mean()


def seen(routing, real):
    """What losses see: padding counts nowhere."""
    return Routing(*(None if t is None else t[real] for t in vars(routing).values()))


# Gates in a mixture


@dataclass
class Gate:
    scores: Part
    selection: Part
    losses: tuple = ()  # (weight, loss)
    mixing: Part = None


def softmax(logits):
    return logits.softmax(dim=1), logits


def mixture(gate, p, x, experts, expert, context, trace=None):
    """Weighted experts, and the losses. p: gate.…, expert.…"""
    real = context.items(x)
    logits = gate.scores.logits(part(p, "gate.scores"), x, context)
    if gate.mixing:
        q = gate.mixing.mix(part(p, "gate.mixing"), x, logits.softmax(dim=1), context, trace)
        rank = q.log()
    else:
        q, rank = softmax(logits)
    routing = gate.selection.route(part(p, "gate.selection"), x, logits, q, rank, context)
    weights = routing.weights * real[:, None]
    y = sum(weights[:, e : e + 1] * expert.output(part(p, "expert"), e, x) for e in range(experts))
    return y, routing, [weight * loss(seen(routing, real)) for weight, loss in gate.losses]


def ties(x, params):
    """Halves and quarters, so that sums are exact. The last items are as the first; all experts but the second score
    alike, so that two or three picks of four cannot spare a choice among equals."""
    x.copy_((x * 4).round() / 4)
    x[len(x) // 2 :] = x[: len(x) - len(x) // 2].clone()
    for name, t in params.items():
        if name.startswith("gate.scores") or name == "gate.selection.bias":
            t.copy_((t * 2).round() / 2)
            t[..., 2:] = t[..., :1].clone()


def parameters(gate, random, model, experts, expert):
    p = under("gate.scores", gate.scores.parameters(random, model, experts))
    if gate.mixing:
        p |= under("gate.mixing", gate.mixing.parameters(random, model, experts))
    p |= under("gate.selection", gate.selection.parameters(random, model, experts))
    return p | under("expert", expert.parameters(random, experts))


LINEAR = LinearScores()
SHAZEER_LOSSES = ((0.1, lambda r: importance(r, SHAZEER)), (0.1, load_shazeer))
