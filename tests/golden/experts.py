"""Experts: parameters named as the library's packs are (first extent: the expert), and the output of expert e."""

import torch.nn.functional as F


class Mlp:
    def __init__(self, model, hidden, activation=F.gelu):
        self.model, self.hidden, self.activation = model, hidden, activation

    def parameters(self, random, experts):
        return {
            "up": random.uniform(experts, self.model, self.hidden),
            "up_bias": random.uniform(experts, self.hidden),
            "down": random.uniform(experts, self.hidden, self.model),
            "down_bias": random.uniform(experts, self.model),
        }

    def output(self, p, e, h):
        return self.activation(h @ p["up"][e] + p["up_bias"][e]) @ p["down"][e] + p["down_bias"][e]


class GatedMlp:
    """Shazeer 2020 (arXiv:2002.05202), eq. (6): (Swish(x W) * x V) W2."""

    def __init__(self, model, hidden):
        self.model, self.hidden = model, hidden

    def parameters(self, random, experts):
        return {
            "gate": random.uniform(experts, self.model, self.hidden),
            "up": random.uniform(experts, self.model, self.hidden),
            "down": random.uniform(experts, self.hidden, self.model),
        }

    def output(self, p, e, h):
        return (F.silu(h @ p["gate"][e]) * (h @ p["up"][e])) @ p["down"][e]
