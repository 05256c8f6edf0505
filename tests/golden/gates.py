"""Gates: parameters, and weights [N, E] of the mixture (0 where an expert is not picked), with auxiliary losses."""

import torch

from common import far_apart



def top_k(rank, k):
    """The k largest, ties to the lower index (a stable descending sort); close calls that are no ties are refused."""
    far_apart(rank)
    order = rank.detach().sort(dim=1, descending=True, stable=True).indices
    return order[:, :k]


def as_mask(picked, like):
    return torch.zeros_like(like, dtype=torch.bool).scatter(1, picked, True)


def renormalised(q, chosen):
    kept = q * chosen
    return kept / kept.sum(dim=1, keepdim=True)


class LinearScores:
    def __init__(self, model, experts, bias=True):
        self.model, self.experts, self.bias = model, experts, bias

    def parameters(self, random):
        return {
            "weight": random.uniform(self.model, self.experts),
            "bias": random.uniform(self.experts if self.bias else 0),
        }

    def logits(self, p, h):
        return h @ p["weight"] + (p["bias"] if self.bias else 0)


def balance(chosen, q, per_pick=False):
    """Switch (arXiv:2101.03961), eq. (4)-(6), for K picks; per_pick: the reference code of papers 001 and 002."""
    items, experts = q.shape
    picks = chosen.sum()
    share = chosen.sum(dim=0) / picks
    return experts * (share * q.sum(dim=0) / (picks if per_pick else items)).sum()


def z_loss(logits):
    """ST-MoE (arXiv:2202.08906), eq. (5)."""
    return logits.logsumexp(dim=1).square().mean()
