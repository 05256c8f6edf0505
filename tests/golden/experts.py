"""Experts: parameters named as the library's packs are (first extent: the expert), and the output of expert e.

Alone in a file each stands in a mixture of three, of which the two best are taken with their probabilities.
"""

import torch
import torch.nn.functional as F

from common import Random, clear, part, record, under


class Expert:
    def __init__(self, **options):
        self.given = options
        self.__dict__.update(options)

    def options(self):
        return {name: v for name, v in self.given.items() if not callable(v)}

    def in_dim(self):
        return self.model_dim * getattr(self, "length", 1)

    def out_dim(self):
        return self.in_dim()


class Linear(Expert):
    def out_dim(self):
        return self.output_dim

    def parameters(self, random, experts):
        return {
            "weight": random.uniform(experts, self.model_dim, self.output_dim),
            "bias": random.uniform(experts, self.output_dim if self.bias else 0),
        }

    def output(self, p, e, h):
        return h @ p["weight"][e] + (p["bias"][e] if self.bias else 0)


class Mlp(Expert):
    def parameters(self, random, experts):
        return {
            "up": random.uniform(experts, self.model_dim, self.hidden_dim),
            "up_bias": random.uniform(experts, self.hidden_dim if self.bias else 0),
            "down": random.uniform(experts, self.hidden_dim, self.model_dim),
            "down_bias": random.uniform(experts, self.model_dim if self.bias else 0),
        }

    def output(self, p, e, h):
        inner, outer = h @ p["up"][e], p["down"][e]
        if not self.bias:
            return self.activation(inner) @ outer
        return self.activation(inner + p["up_bias"][e]) @ outer + p["down_bias"][e]


def mlp(model, hidden, activation=F.gelu, bias=True):
    return Mlp(model_dim=model, hidden_dim=hidden, activation=activation, bias=bias)


class GatedMlp(Expert):
    """Shazeer 2020 (arXiv:2002.05202), eq. (6): (Swish(x W) * x V) W2; (5) with GELU."""

    def parameters(self, random, experts):
        return {
            "gate": random.uniform(experts, self.model_dim, self.hidden_dim),
            "up": random.uniform(experts, self.model_dim, self.hidden_dim),
            "down": random.uniform(experts, self.hidden_dim, self.model_dim),
        }

    def output(self, p, e, h):
        return (self.activation(h @ p["gate"][e]) * (h @ p["up"][e])) @ p["down"][e]


def gated_mlp(model, hidden):
    return GatedMlp(model_dim=model, hidden_dim=hidden, activation=F.silu)


def cube(z):
    return z**3


class PatchMlp(Expert):
    """Paper 003, sec. 3: sum over filters j and patches p of act(<w_{m,j,p}, x^(p)>). Output o sums its share of filters, as
    in uclaml/MoE: the first J/O make the first logit."""

    def in_dim(self):
        return self.patches * self.model_dim

    def out_dim(self):
        return self.outputs

    def parameters(self, random, experts):
        return {
            "weight": random.uniform(experts, self.patches, self.model_dim, self.filters),
            "bias": random.uniform(experts, self.patches, self.filters if self.bias else 0),
        }

    def filter(self, p, e, patch):
        return p["weight"][e, patch], (p["bias"][e, patch] if self.bias else 0)

    def output(self, p, e, h):
        patches = h.reshape(len(h), self.patches, self.model_dim)
        total = 0
        for patch in range(self.patches):
            weight, bias = self.filter(p, e, patch)
            total = total + self.activation(patches[:, patch] @ weight + bias)
        return torch.stack([filters.sum(dim=1) for filters in total.chunk(self.outputs, dim=1)], dim=1)


class PatchCnn(PatchMlp):
    """Chen et al. 2022 (arXiv:2208.02813): the filters are shared by all patches."""

    def parameters(self, random, experts):
        return {
            "weight": random.uniform(experts, self.model_dim, self.filters),
            "bias": random.uniform(experts, self.filters if self.bias else 0),
        }

    def filter(self, p, e, patch):
        return p["weight"][e], (p["bias"][e] if self.bias else 0)


class AttentionExpert(Expert):
    """Paper 000, eq. (4): f = sum_l W^T X softmax(X^T W_KQ X_l), X in R^{d x L}."""

    def out_dim(self):
        return self.outputs

    def parameters(self, random, experts):
        return {
            "key_query": random.uniform(experts, self.model_dim, self.model_dim),
            "value": random.uniform(experts, self.model_dim, self.outputs),
        }

    def output(self, p, e, h):
        rows = []
        for item in h:
            x = item.reshape(self.length, self.model_dim).T  # d x L
            rows.append(sum(p["value"][e].T @ x @ torch.softmax(x.T @ p["key_query"][e] @ x[:, l], dim=0) for l in range(self.length)))
        return torch.stack(rows) if rows else h.new_zeros(0, self.outputs)


def multi_head(tokens, query, key, value, output, heads, causal):
    """Vaswani et al. 2017 (arXiv:1706.03762), eq. (1), of one sequence [L, D]; also the probabilities of each head."""
    width = tokens.shape[1] // heads
    context, attention = [], []
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        scores = (tokens @ query)[:, own] @ (tokens @ key)[:, own].T / width**0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
        attention.append(scores.softmax(dim=1))
        context.append(attention[-1] @ (tokens @ value)[:, own])
    return torch.cat(context, dim=1) @ output, attention


SQUARE = ("query", "key", "value", "output")


class MultiHeadExpert(Expert):
    def parameters(self, random, experts):
        return {name: random.uniform(experts, self.model_dim, self.model_dim) for name in SQUARE}

    def output(self, p, e, h):
        rows = [multi_head(item.reshape(self.length, self.model_dim), *(p[name][e] for name in SQUARE), self.heads, self.causal)[0].flatten()
                for item in h]
        return torch.stack(rows)


class NormExpert(Expert):
    """Ba et al. 2016 (arXiv:1607.06450)."""

    def parameters(self, random, experts):
        return {"gain": random.uniform(experts, self.model_dim), "bias": random.uniform(experts, self.model_dim)}

    def output(self, p, e, h):
        return F.layer_norm(h, h.shape[-1:], p["gain"][e], p["bias"][e], self.epsilon)


class TransformerExpert(Expert):
    """Paper 000, sec. 3, as the pre-norm block of a ViT (arXiv:2010.11929), eq. (2), (3)."""

    def parts(self):
        norm = NormExpert(model_dim=self.model_dim, epsilon=self.epsilon)
        return {"attention_norm": norm, "attention": MultiHeadExpert(**self.given), "mlp_norm": norm, "mlp": Mlp(**self.given)}

    def parameters(self, random, experts):
        p = {}
        for name, layer in self.parts().items():
            p |= under(name, layer.parameters(random, experts))
        return p

    def output(self, p, e, h):
        def apply(name, x):
            return self.parts()[name].output(part(p, name), e, x)

        tokens = h.reshape(-1, self.model_dim)
        middle = tokens + apply("attention", apply("attention_norm", tokens).reshape(h.shape)).reshape(tokens.shape)
        return (middle + apply("mlp", apply("mlp_norm", middle))).reshape(h.shape)


class Experts(Expert):
    """The first counts[0] experts are of the first kind, and so on."""

    def __init__(self, *kinds, counts):
        self.kinds, self.counts = kinds, counts

    def options(self):
        options = {f"counts.{i}": n for i, n in enumerate(self.counts)}
        for i, kind in enumerate(self.kinds):
            options |= under(f"kinds.{i}", kind.options())
        return options

    def in_dim(self):
        return self.kinds[0].in_dim()

    def out_dim(self):
        return self.kinds[0].out_dim()

    def parameters(self, random, experts):
        assert experts == sum(self.counts)
        p = {}
        for i, (kind, count) in enumerate(zip(self.kinds, self.counts)):
            p |= under(f"kinds.{i}", kind.parameters(random, count))
        return p

    def output(self, p, e, h):
        for i, (kind, count) in enumerate(zip(self.kinds, self.counts)):
            if e < count:
                return kind.output(part(p, f"kinds.{i}"), e, h)
            e -= count


def gelu_tanh(x):
    """Hendrycks and Gimpel 2016 (arXiv:1606.08415), sec. 2."""
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def sequences(kind, **more):
    """Sizes of an expert on sequences: one position, odd numbers, more."""
    return {
        "one": (2, kind(model_dim=2, length=1, **{"heads": 1} | more)),
        "odd": (5, kind(model_dim=3, length=3, **{"heads": 3} | more)),
        "more": (6, kind(model_dim=4, length=5, **{"heads": 2} | more)),
    }


def flat(kind, **more):
    return {size: (items, kind(model_dim=d, hidden_dim=h, **more)) for size, (items, d, h) in
            {"one": (1, 3, 2), "odd": (7, 3, 5), "more": (9, 4, 3)}.items()}


def patched(kind):
    options = {"activation": cube}
    return {
        "one": (1, kind(model_dim=2, patches=1, filters=1, outputs=1, bias=False, **options)),
        "odd": (5, kind(model_dim=3, patches=3, filters=6, outputs=3, bias=True, **options)),
        "more": (8, kind(model_dim=4, patches=4, filters=4, outputs=2, bias=False, **options)),
    }


def mixed(d, h0, h1, counts):
    return Experts(mlp(d, h0), gated_mlp(d, h1), Linear(model_dim=d, output_dim=d, bias=True), counts=counts)


ALONE = {
    "linear": {
        "one": (1, Linear(model_dim=3, output_dim=2, bias=True)),
        "odd": (7, Linear(model_dim=3, output_dim=5, bias=False)),
        "more": (9, Linear(model_dim=4, output_dim=4, bias=True)),
    },
    "mlp_relu": flat(Mlp, activation=F.relu, bias=True),
    "mlp_gelu_tanh": flat(Mlp, activation=gelu_tanh, bias=False),
    "mlp_cubic": flat(Mlp, activation=cube, bias=True),
    "gated_mlp_gelu": flat(GatedMlp, activation=F.gelu),
    "patch_mlp": patched(PatchMlp),
    "patch_cnn": patched(PatchCnn),
    "attention_expert": {
        "one": (2, AttentionExpert(model_dim=2, length=1, outputs=1)),
        "odd": (5, AttentionExpert(model_dim=3, length=3, outputs=3)),
        "more": (7, AttentionExpert(model_dim=4, length=5, outputs=2)),
    },
    "multi_head_expert": sequences(MultiHeadExpert, causal=False),
    "multi_head_expert_causal": sequences(MultiHeadExpert, causal=True),
    "norm_expert": {size: (items, NormExpert(model_dim=d, epsilon=eps)) for size, (items, d, eps) in
                    {"one": (1, 2, 1e-5), "odd": (5, 3, 1e-2), "more": (8, 6, 1e-5)}.items()},
    "transformer_expert": sequences(TransformerExpert, hidden_dim=3, causal=False, bias=True, epsilon=1e-5, activation=F.gelu),
    "transformer_expert_causal": sequences(TransformerExpert, hidden_dim=2, causal=True, bias=False, epsilon=1e-3, activation=F.gelu),
    "experts": {
        "one": (1, mixed(3, 2, 1, (1, 1, 1))),
        "odd": (7, mixed(3, 4, 2, (0, 2, 1))),
        "more": (9, mixed(2, 1, 3, (1, 0, 2))),
    },
}


def case(expert, items, seed, shared=None, count=3):
    """shared: DeepSeekMoE (arXiv:2401.06066), eq. (9), the residual left to the layer."""
    from gates import Context, Gate, LinearScores, TopK, mixture, parameters

    random = Random(seed)
    gate = Gate(LinearScores(), TopK(k=2, renormalise=False))
    options = expert.options()
    if shared:
        options = under("branch", options) | under("shared", shared[0].options()) | {"weight": shared[1]}
    params = parameters(gate, random, expert.in_dim(), count, expert)
    if shared:
        params = under("branch", params) | under("shared", shared[0].parameters(random, 1))

    def run(p, x, carry):
        y = mixture(gate, part(p, "branch") if shared else p, x, count, expert, Context())[0]
        if shared:
            y = y + shared[1] * shared[0].output(part(p, "shared"), 0, x)
        return y, {}, []

    return record(options, random.uniform(items, expert.in_dim()), random.uniform(items, expert.out_dim()), run, params)


def files():
    seed = 2000
    for name, sizes in ALONE.items():
        cases = {}
        for size, (items, expert) in sizes.items():
            seed += 1
            cases[size] = clear(lambda s: case(expert, items, s), seed)
        yield f"expert/{name}", cases
    shared = {"one": (1, mlp(3, 2), gated_mlp(3, 2), 1.0), "odd": (5, mlp(3, 1), gated_mlp(3, 4), 0.5), "more": (8, mlp(4, 3), gated_mlp(4, 2), -2.0)}
    yield "expert/with_shared", {
        size: clear(lambda s: case(routed, items, s, (always, weight)), seed + 10 + items) for size, (items, routed, always, weight) in shared.items()
    }
