"""Paper 002 (Graph of Tokens): gates whose items share their probabilities.

mix(p, x, r, context, trace) -> q. Items of a sequence see each other, of others nothing; padding is seen by nobody.
"""

import torch

from common import Random, TooClose, clear, far_apart, part, record, under
from experts import SQUARE, Linear
from gates import LINEAR, SHAZEER_LOSSES, Context, Gate, Part, ShazeerTopK, TopK, mixture, parameters, ties


def entropy(probabilities):
    return torch.special.entr(probabilities.detach()).sum(dim=-1)


def seen_by(sequence, x, r, context, causal, only_confident):
    """allowed[i, j] within a sequence; J_i = {j : H(r_j) <= H(r_i)} of proposition 1."""
    items = list(sequence)
    allowed = context.items(x)[items][None, :].repeat(len(items), 1)
    if causal:
        allowed = allowed & (torch.ones_like(allowed).tril() > 0)
    if only_confident:
        h = entropy(r[items])
        far_apart(h)
        allowed = allowed & (h[None, :] <= h[:, None])
    return allowed


class TokenSimilarity(Part):
    """Eq. (7), (8): S[i, j] = softmax_j(u_i^T W_s u_j / tau), q_i = sum_j S[i, j] r_j."""

    only_confident, learned_metric, called_with_tau = False, False, 0

    def parameters(self, random, model, experts):
        size = model if self.learned_metric else 0
        return {"metric": random.uniform(size, size)}

    def mix(self, p, x, r, context, trace):
        tau, rows = self.called_with_tau or self.tau, []
        for sequence in context.sequences(x):
            u = x[list(sequence)]
            scores = (u @ p["metric"] if self.learned_metric else u) @ u.T / tau
            allowed = seen_by(sequence, x, r, context, self.causal, self.only_confident)
            # A row that sees nobody keeps its own r.
            lonely = ~allowed.any(dim=1)
            allowed = allowed | torch.diag(lonely)
            rows.append(scores.masked_fill(~allowed, float("-inf")).softmax(dim=1) @ r[list(sequence)])
        return torch.cat(rows)


LOWEST, LOWEST_OF_SEQUENCE, EVERY = range(3)  # as the library counts them


class AttentionPosterior(Part):
    """Lemma 1 and eq. (14)-(16), as printed: A prior, L likelihood. trace: of every sequence, A_h [L, L] and W_h x_j
    [L, D].

    lowest entropy under a causal attention: of the tokens up to the item itself, as otherwise the choice would look
    ahead.
    """

    only_confident, padding_matters = False, False

    def followed(self, of_tokens):
        """The head of each token; of_tokens: entropies [H, L]. The mean of none is left to argmin's first."""
        so_far = self.causal and self.head == LOWEST
        total = of_tokens.cumsum(dim=1) if so_far else of_tokens.sum(dim=1, keepdim=True).expand_as(of_tokens)
        far_apart(total[:, 1:] if so_far else total, dim=0)  # a first token alone follows itself under every head
        return total.argmin(dim=0)

    def mix(self, p, x, r, context, trace):
        rows = []
        for sequence, (attention, means) in zip(context.sequences(x), trace):
            items = list(sequence)
            u, real = x[items], context.items(x)[items]
            allowed = seen_by(sequence, x, r, context, self.causal, self.only_confident)
            joint = []  # A_h L_h
            for a, m in zip(attention, means):
                likelihood = (-(u[:, None, :] - m[None, :, :]).square().sum(dim=2) / (2 * self.sigma**2)).exp()
                joint.append(a * likelihood * allowed)
            joint = torch.stack(joint)  # [H, L, L]
            if self.head == EVERY:
                head_posterior = joint.sum(dim=2) / joint.sum(dim=(0, 2))
            else:
                of_all = torch.stack([entropy(a) for a in attention])
                followed = self.followed(of_all * real)
                self.padding_matters |= bool((followed != self.followed(of_all))[real].any())
                head_posterior = torch.nn.functional.one_hot(followed, len(joint)).T.to(r.dtype)
            token_posterior = joint / joint.sum(dim=2, keepdim=True)
            rows.append(torch.einsum("hi,hij,je->ie", head_posterior, token_posterior, r[items]))
        return torch.cat(rows)


def attend(p, x, heads, causal, context, mean_of_heads):
    """U, and for every sequence A_h and W_h x_j, where U = (1/H) sum_h A_h X W_h: W_h is H times the usual product of
    value and output, unless mean_of_heads is false. Padding sees nobody: its row of U is 0."""
    out, traces, width = [], [], x.shape[1] // heads
    for sequence in context.sequences(x):
        items = list(sequence)
        tokens, hidden = x[items], ~context.items(x)[items]
        attention, context_of_heads, means = [], [], []
        for h in range(heads):
            own = slice(h * width, (h + 1) * width)
            scores = (tokens @ p["query"])[:, own] @ (tokens @ p["key"])[:, own].T / width**0.5
            masked = hidden[None, :].repeat(len(items), 1)
            if causal:
                masked = masked | (torch.ones_like(scores).triu(1) > 0)
            attention.append(scores.masked_fill(masked, float("-inf")).softmax(dim=1))
            value = (tokens @ p["value"])[:, own]
            means.append(value @ p["output"][own] * (heads if mean_of_heads else 1))
            context_of_heads.append(attention[-1] @ value)
        out.append(torch.cat(context_of_heads, dim=1) @ p["output"] * ~hidden[:, None])
        traces.append((attention, means))
    return torch.cat(out), traces


def similarity_case(seed, mixing, items, model, experts, context=None, tied=False, noisy=False):
    random, context = Random(seed), context or Context()
    selection = ShazeerTopK(k=2, epsilon=0.0) if noisy else TopK(k=2, renormalise=experts % 2 == 0)
    gate = Gate(LINEAR, selection, SHAZEER_LOSSES if noisy else (), mixing)
    expert = Linear(model_dim=model, output_dim=2, bias=True)
    params = parameters(gate, random, model, experts, expert)
    x, dy = random.uniform(items, model), random.uniform(items, 2)
    if tied:
        ties(x, params)

    def run(p, x, carry):
        y, _, losses = mixture(gate, p, x, experts, expert, context)
        return y, {}, losses

    options = {"model_dim": model, "experts": experts} | mixing.options() | selection.options() | context.options()
    return record(options, x, dy, run, params, given=context.given())


def attention_case(seed, mixing, items, heads, width, experts, context=None):
    """Attention without residual, then x + SMoE(x)."""
    random, context, model = Random(seed), context or Context(), heads * width
    gate = Gate(LINEAR, TopK(k=2, renormalise=True), (), mixing)
    expert = Linear(model_dim=model, output_dim=model, bias=True)
    params = {f"attention.{name}": random.uniform(model, model) for name in SQUARE}
    params |= under("layer.branch", parameters(gate, random, model, experts, expert))

    def run(p, x, carry):
        u, trace = attend(part(p, "attention"), x, heads, mixing.causal, context, mixing.mean_of_heads)
        y, _, losses = mixture(gate, part(p, "layer.branch"), u, experts, expert, context, trace)
        return u + y, {}, losses

    options = {"model_dim": model, "experts": experts, "heads": heads} | mixing.options() | context.options()
    x, dy = random.uniform(items, model, low=-2, high=2), random.uniform(items, model)
    mixing.padding_matters = False
    out = record(options, x, dy, run, params, given=context.given())
    if context.valid is not None and mixing.head != EVERY and not mixing.padding_matters:
        raise TooClose  # padding counted in the entropies would go unnoticed
    return out


def similarity(**options):
    return TokenSimilarity(
        **{"tau": 1.0, "causal": True, "learned_metric": False, "only_confident": False, "called_with_tau": 0} | options
    )


def posterior(**options):
    return AttentionPosterior(
        **{"sigma": 1.0, "head": LOWEST, "causal": True, "mean_of_heads": True, "only_confident": False} | options
    )


PADDED = Context(length=5, valid=torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 0, 0.0]))
FILES = {
    "similarity": (
        similarity_case,
        {
            "one": (similarity(), 1, 3, 2),
            "odd": (similarity(tau=0.7), 7, 3, 5),
            "more": (similarity(causal=False, tau=0.5), 12, 4, 4, Context(length=4)),
            "called": (similarity(tau=3.0, called_with_tau=0.25), 6, 3, 3, Context(length=3)),
            "padded": (similarity(tau=0.6), 10, 3, 3, PADDED),
            "ties": (similarity(tau=0.5), 8, 2, 4, None, True),
        },
    ),
    "similarity_metric": (
        similarity_case,
        {
            "one": (similarity(learned_metric=True), 1, 2, 2),
            "odd": (similarity(learned_metric=True, tau=0.4), 7, 3, 3),
            "more": (similarity(learned_metric=True, causal=False), 12, 4, 4, Context(length=6)),
        },
    ),
    "similarity_confident": (
        similarity_case,
        {
            "one": (similarity(only_confident=True), 1, 2, 2),
            "odd": (similarity(only_confident=True, causal=False), 7, 3, 5),
            "more": (similarity(only_confident=True, learned_metric=True, tau=0.6), 10, 4, 4, Context(length=5)),
            "padded": (similarity(only_confident=True, causal=False), 10, 3, 3, PADDED),
        },
    ),
    "similarity_noisy": (
        lambda *given: similarity_case(*given, noisy=True),
        {
            "one": (similarity(), 1, 3, 2, Context(random=(3, 0))),
            "odd": (similarity(tau=0.5), 7, 3, 5, Context(random=(77, 2))),
            "more": (similarity(causal=False), 8, 4, 4, Context(length=4, random=(78, 3))),
        },
    ),
    "posterior_lowest": (
        attention_case,
        {
            "one": (posterior(), 1, 1, 2, 2),
            "odd": (posterior(sigma=1.5), 7, 3, 1, 5),
            "more": (posterior(causal=False), 12, 2, 2, 4, Context(length=4)),
            "causal": (posterior(sigma=0.8, mean_of_heads=False), 10, 2, 2, 3, Context(length=5)),
            "confident": (posterior(only_confident=True), 8, 2, 1, 3, Context(length=4)),
            "padded": (posterior(), 10, 2, 2, 3, PADDED),
        },
    ),
    "posterior_lowest_of_sequence": (
        attention_case,
        {
            "one": (posterior(head=LOWEST_OF_SEQUENCE), 1, 2, 1, 2),
            "odd": (posterior(head=LOWEST_OF_SEQUENCE, mean_of_heads=False), 7, 3, 1, 3),
            "more": (posterior(head=LOWEST_OF_SEQUENCE, sigma=2.0), 12, 2, 2, 4, Context(length=4)),
            "padded": (posterior(head=LOWEST_OF_SEQUENCE, causal=False), 10, 2, 2, 3, PADDED),
        },
    ),
    "posterior_every": (
        attention_case,
        {
            "one": (posterior(head=EVERY), 1, 2, 1, 2),
            "odd": (posterior(head=EVERY, sigma=1.3), 7, 3, 1, 3),
            "more": (posterior(head=EVERY, causal=False, sigma=2.0), 12, 2, 2, 4, Context(length=4)),
            "confident": (
                posterior(head=EVERY, only_confident=True, mean_of_heads=False),
                8,
                2,
                2,
                3,
                Context(length=4),
            ),
            "padded": (posterior(head=EVERY), 10, 2, 2, 3, PADDED),
        },
    ),
}


def files():
    for name, (make, cases) in FILES.items():
        file = f"gate/{name}"
        yield file, {size: clear(lambda seed: make(seed, *given), f"{file} {size}") for size, given in cases.items()}
