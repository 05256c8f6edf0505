"""Experts: parameters named as the library's packs are (first extent: the expert), and the output of expert e."""

import torch
import torch.nn.functional as F

from common import part, under


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


class GptOssExpert(Expert):
    """One expert at a time of transformers' GptOssExperts; gate_up_proj has the outputs of gate and up in turns."""

    def parameters(self, random, experts):
        wide, d, h = 8.0, self.model_dim, self.hidden_dim  # so wide that many values pass the limits -7 and 7
        return {
            "gate": random.uniform(experts, d, h, low=-wide, high=wide),
            "up": random.uniform(experts, d, h, low=-wide, high=wide),
            "down": random.uniform(experts, h, d),
            "gate_bias": random.uniform(experts, h),
            "up_bias": random.uniform(experts, h),
            "down_bias": random.uniform(experts, d),
        }

    def output(self, p, e, h):
        from transformers import GptOssConfig
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

        experts = GptOssExperts(
            GptOssConfig(
                hidden_size=self.model_dim, intermediate_size=self.hidden_dim, num_local_experts=len(p["gate"])
            )
        )
        weights = {
            "gate_up_proj": torch.stack([p["gate"], p["up"]], dim=-1).flatten(-2),
            "gate_up_proj_bias": torch.stack([p["gate_bias"], p["up_bias"]], dim=-1).flatten(-2),
            "down_proj": p["down"],
            "down_proj_bias": p["down_bias"],
        }
        picks = torch.full((len(h), 1), e)
        return torch.func.functional_call(experts, weights, (h, picks, torch.ones(len(h), 1)))


def cube(z):
    return z**3


class PatchMlp(Expert):
    """Paper 003, sec. 3: sum over filters j and patches p of act(<w_{m,j,p}, x^(p)>). Output o sums its share of
    filters, as in uclaml/MoE: the first J/O make the first logit."""

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
            rows.append(
                sum(
                    p["value"][e].T @ x @ torch.softmax(x.T @ p["key_query"][e] @ x[:, l], dim=0)
                    for l in range(self.length)
                )
            )
        return torch.stack(rows) if rows else h.new_zeros(0, self.outputs)


class MergedTransformer(Expert):
    """Paper 000, fig. 1(b): heads of eq. (4)'s attention, summed, below neurons of which half count as -1."""

    def out_dim(self):
        return 1

    def parameters(self, random, experts):
        return {
            "key_query": random.uniform(experts, self.model_dim, self.heads * self.model_dim),
            "weight": random.uniform(experts, self.model_dim, self.filters),
        }

    def output(self, p, e, h):
        signs = torch.ones(self.filters, dtype=h.dtype)
        signs[self.filters // 2 :] = -1
        rows = []
        for item in h:
            x = item.reshape(self.length, self.model_dim).T  # d x L
            columns = []
            for l in range(self.length):
                context = sum(
                    x @ torch.softmax(x.T @ key_query @ x[:, l], dim=0)
                    for key_query in p["key_query"][e].chunk(self.heads, dim=1)
                )
                columns.append(self.activation(p["weight"][e].T @ context) @ signs)
            rows.append(sum(columns).reshape(1))
        return torch.stack(rows)


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
        rows = [
            multi_head(
                item.reshape(self.length, self.model_dim), *(p[name][e] for name in SQUARE), self.heads, self.causal
            )[0].flatten()
            for item in h
        ]
        return torch.stack(rows)


class NormExpert(Expert):
    """Ba et al. 2016 (arXiv:1607.06450)."""

    def parameters(self, random, experts):
        return {"gain": random.uniform(experts, self.model_dim), "bias": random.uniform(experts, self.model_dim)}

    def output(self, p, e, h):
        return F.layer_norm(h, h.shape[-1:], p["gain"][e], p["bias"][e], self.epsilon)


class RmsNorm(Expert):
    """Zhang and Sennrich 2019 (arXiv:1910.07467), eq. (4)."""

    def parameters(self, random, experts):
        return {"gain": random.uniform(experts, self.model_dim)}

    def output(self, p, e, h):
        return h / (h.square().mean(dim=-1, keepdim=True) + self.epsilon).sqrt() * p["gain"][e]


class TransformerExpert(Expert):
    """Paper 000, sec. 3, as the pre-norm block of a ViT (arXiv:2010.11929), eq. (2), (3)."""

    def parts(self):
        norm = NormExpert(model_dim=self.model_dim, epsilon=self.epsilon)
        return {
            "attention_norm": norm,
            "attention": MultiHeadExpert(**self.given),
            "mlp_norm": norm,
            "mlp": Mlp(**self.given),
        }

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
