"""Update rules (paper 001), written with its f = −(SMoE output), in stacks of layers around a small mixture.

A rule has options, parameters and a carry, and step(t, p, x, carry, f) -> x of the next layer, carry;
t = 1 in the first layer.
"""

import torch
import torch.nn.functional as F

from common import Random, clear, part, record, under
from experts import mlp
from gates import Context, Gate, LinearScores, TopK, mixture, parameters

SWITCH = Gate(LinearScores(), TopK(k=1, renormalise=False))
SIZES = {"one": (1, 2, 2), "odd": (3, 3, 2), "more": (5, 2, 3)}  # items, model, experts


class Rule:
    carry = ("p",)
    depth = 3

    def __init__(self, **options):
        self.__dict__.update(options)
        self.given = options

    def options(self):
        return self.given

    def parameters(self, random, model):
        return {}

    def begin(self, random, items, model):
        """Anything a layer before may have left; averages of squares are positive."""
        low = {"v": 0.1}
        return {name: random.uniform(items, model, low=low.get(name, -1.0)) for name in self.carry}


class HeavyBall(Rule):
    """Eq. (10)."""

    def step(self, t, p, x, carry, f):
        after = -f(x) + self.mu * carry["p"]
        return x + self.gamma * after, {"p": after}


class Adam(Rule):
    """Sec. 4.1. reference: the code, as the sheet restates it: no x remains, epsilon inside the root. corrected: Kingma
    and Ba 2015, algorithm 1."""

    carry = ("p", "v")

    def step(self, t, p, x, carry, f):
        fx = f(x)
        first = self.beta1 * carry["p"] + (1 - self.beta1) * -fx
        second = self.beta2 * carry["v"] + (1 - self.beta2) * fx * fx
        moved, squares = first, second
        if self.bias_correction:
            moved, squares = first / (1 - self.beta1**t), second / (1 - self.beta2**t)
        root = (squares + self.epsilon).sqrt() if self.epsilon_inside else squares.sqrt() + self.epsilon
        return x + self.gamma / root * moved - self.kappa * x, {"p": first, "v": second}


class RmsProp(Rule):
    """App. E.4."""

    def begin(self, random, items, model):
        return {"p": random.uniform(items, model, low=0.1)}

    def step(self, t, p, x, carry, f):
        fx = f(x)
        after = self.mu * carry["p"] + (1 - self.mu) * fx**2
        return x - self.gamma / (after + self.epsilon).sqrt() * fx, {"p": after}


class First(Rule):
    """App. D.1: one rule in the first layer, another after it. warm: the reference code, which lets the momentum begin
    in the first layer."""

    def __init__(self, first, rest, warm):
        self.first, self.rest, self.warm = first, rest, warm

    def options(self):
        return under("first", self.first.options()) | under("rest", self.rest.options()) | {"warm": self.warm}

    def parameters(self, random, model):
        return under("first", self.first.parameters(random, model)) | under("rest", self.rest.parameters(random, model))

    def begin(self, random, items, model):
        return under("first", self.first.begin(random, items, model)) | under(
            "rest", self.rest.begin(random, items, model)
        )

    def step(self, t, p, x, carry, f):
        first, rest = part(carry, "first"), part(carry, "rest")
        if t == 1:
            y, first = self.first.step(t, part(p, "first"), x, first, f)
            if self.warm:
                _, rest = self.rest.step(t, part(p, "rest"), x, rest, f)
        else:
            y, rest = self.rest.step(t, part(p, "rest"), x, rest, f)
        return y, under("first", first) | under("rest", rest)


class Robust(Rule):
    """Eq. (17), (18) in x_t and p_t."""

    def step(self, t, p, x, carry, f):
        k, s = self.k, self.p
        gamma = k * (1 - s) ** 2 * (1 + s) / self.l
        mu = k * s**3 / (k - 1)
        alpha = s**3 / ((k - 1) * (1 - s) ** 2 * (1 + s))
        y = x + alpha * gamma * carry["p"]
        after = -f(y) + mu * carry["p"]
        return x + gamma * after, {"p": after}


class Nesterov(Rule):
    """App. E.4, where the momentum holds the step size: its p is gamma times the library's. ahead: Nesterov's own
    sign."""

    def step(self, t, p, x, carry, f):
        before = self.gamma * carry["p"]
        point = x + self.mu * before if self.ahead else x - self.mu * before
        after = -self.gamma * f(point) + self.mu * before
        return x + after, {"p": after / self.gamma}


class TimeVarying(Rule):
    """App. E.1: mu = (t − 1)/(t + 2)."""

    def step(self, t, p, x, carry, f):
        after = -f(x) + (t - 1) / (t + 2) * carry["p"]
        return x + self.gamma * after, {"p": after}


class ScheduledRestart(Rule):
    """App. E.4: mu = (t mod 3)/(t mod 3 + 3). offset: where t begins; −1 restarts after layer 3."""

    depth = 4

    def step(self, t, p, x, carry, f):
        r = (t + self.offset) % self.period
        after = -f(x) + r / (r + 3) * carry["p"]
        return x + self.gamma * after, {"p": after}


class SharpnessAware(Rule):
    """App. E.4; norm of each item, or (reference code) of all items."""

    carry = ()

    def step(self, t, p, x, carry, f):
        fx = f(x)
        norm = fx.norm() if self.batch else fx.norm(dim=1, keepdim=True)
        return x - self.gamma * f(x + self.rho * fx / norm), {}


class ComplexMomentum(Rule):
    """Eq. (21)."""

    carry = ("re", "im")

    def step(self, t, p, x, carry, f):
        mu = torch.polar(torch.tensor(self.modulus), torch.tensor(self.phase))
        after = -f(x) + mu * torch.complex(carry["re"], carry["im"])
        return x + self.gamma * after.real, {"re": after.real, "im": after.imag}


class LearnedHeavyBall(Rule):
    """App. E.1, Table 6: (i) learn_mu and step "learned", (ii) the latter alone, (iii) gamma = sigmoid(linear(x))."""

    STEPS = ("fixed", "learned", "per_item")

    def options(self):
        others = {name: v for name, v in self.given.items() if name != "step_size"}
        return others | {"step": self.STEPS.index(self.step_size)}

    def parameters(self, random, model):
        linear = self.step_size == "per_item"
        return {
            "mu": random.uniform(1 if self.learn_mu else 0),
            "gamma": random.uniform(1 if self.step_size == "learned" else 0),
            "linear.weight": random.uniform(model if linear else 0, 1),
            "linear.bias": random.uniform(1 if linear else 0),
        }

    def step(self, t, p, x, carry, f):
        mu = p["mu"] if self.learn_mu else self.mu
        gamma = p["gamma"] if self.step_size == "learned" else self.gamma
        if self.step_size == "per_item":
            gamma = torch.sigmoid(x @ p["linear.weight"] + p["linear.bias"])
        after = -f(x) + mu * carry["p"]
        return x + gamma * after, {"p": after}


class ZeroOrderHold(Rule):
    """App. E.1: Delta = softplus(learned), mu learned, gamma a linear network."""

    def parameters(self, random, model):
        return {
            "step": random.uniform(1),
            "mu": random.uniform(1),
            "linear.weight": random.uniform(model, 1),
            "linear.bias": random.uniform(1),
        }

    def step(self, t, p, x, carry, f):
        delta, gamma = F.softplus(p["step"]), x @ p["linear.weight"] + p["linear.bias"]
        mu_t = (delta * p["mu"]).exp()
        gamma_t = (mu_t - 1) / (delta * p["mu"]) * delta * gamma
        after = -f(x) + mu_t * carry["p"]
        return x + gamma_t * after, {"p": after}


ADAM = {
    "beta1": 0.8,
    "beta2": 0.9,
    "gamma": 0.7,
    "kappa": 0.1,
    "epsilon": 0.05,
    "epsilon_inside": False,
    "bias_correction": False,
}
RULES = {
    "heavy_ball": HeavyBall(mu=0.7, gamma=1.3),
    "negative_momentum": HeavyBall(mu=-0.4, gamma=0.8),
    "adam": Adam(**ADAM),
    "adam_reference": Adam(
        **ADAM | {"beta1": 0.9, "beta2": 0.999, "kappa": 1.0, "gamma": 1.0, "epsilon": 1e-8, "epsilon_inside": True}
    ),
    "adam_corrected": Adam(**ADAM | {"bias_correction": True}),
    "rms_prop": RmsProp(mu=0.9, gamma=0.6, epsilon=0.03),
    "first_adam_warm": First(Adam(**ADAM), HeavyBall(mu=0.7, gamma=0.9), True),
    "first_adam_cold": First(Adam(**ADAM), HeavyBall(mu=0.7, gamma=0.9), False),
    "first_rms_prop": First(RmsProp(mu=0.8, gamma=0.6, epsilon=0.05), HeavyBall(mu=0.5, gamma=1.1), True),
    "robust": Robust(p=0.2, k=1.25, l=1.0),
    "robust_other": Robust(p=0.4, k=2.0, l=1.6),
    "nesterov": Nesterov(mu=0.7, gamma=0.8, ahead=False),
    "nesterov_classical": Nesterov(mu=0.7, gamma=0.8, ahead=True),
    "time_varying": TimeVarying(gamma=0.9),
    "scheduled_restart": ScheduledRestart(period=3, offset=-1, gamma=0.9),
    "scheduled_restart_offset": ScheduledRestart(period=3, offset=0, gamma=1.1),
    "sharpness_aware": SharpnessAware(rho=0.3, gamma=0.9, batch=False),
    "sharpness_aware_batch": SharpnessAware(rho=0.3, gamma=0.9, batch=True),
    "complex_momentum": ComplexMomentum(modulus=0.8, phase=0.6, gamma=0.9),
    "learned_heavy_ball": LearnedHeavyBall(mu=0.5, gamma=0.5, learn_mu=True, step_size="learned"),
    "learned_step": LearnedHeavyBall(mu=0.6, gamma=0.5, learn_mu=False, step_size="learned"),
    "learned_mu": LearnedHeavyBall(mu=0.5, gamma=0.8, learn_mu=True, step_size="fixed"),
    "learned_step_per_item": LearnedHeavyBall(mu=0.7, gamma=0.5, learn_mu=False, step_size="per_item"),
    "learned_mu_step_per_item": LearnedHeavyBall(mu=0.5, gamma=0.5, learn_mu=True, step_size="per_item"),
    "zero_order_hold": ZeroOrderHold(),
}


def smoe(p, experts, expert, x):
    """The best expert of two or three, weighted by its probability (Switch)."""
    return mixture(SWITCH, p, x, experts, expert, Context())[0]


def case(rule, items, model, experts, seed):
    random = Random(seed)
    expert = mlp(model, 2)
    params = {}
    for layer in range(rule.depth):
        at = f"layers.{layer}."
        params |= under(at + "rule", rule.parameters(random, model))
        params |= under(at + "branch", parameters(SWITCH, random, model, experts, expert))
    carry = rule.begin(random, items, model)
    dafter = {name: random.uniform(items, model) for name in carry}

    def run(p, x, carry):
        for layer in range(rule.depth):
            here = part(p, f"layers.{layer}")
            x, carry = rule.step(
                layer + 1,
                part(here, "rule"),
                x,
                carry,
                lambda point: -smoe(part(here, "branch"), experts, expert, point),
            )
        return x, carry, []

    options = rule.options() | {"model_dim": model, "experts": experts, "depth": rule.depth}
    return record(options, random.uniform(items, model), random.uniform(items, model), run, params, carry, dafter)


def files():
    for name, rule in RULES.items():
        file = f"update/{name}"
        yield file, {
            size: clear(lambda seed: case(rule, *extents, seed), f"{file} {size}") for size, extents in SIZES.items()
        }
