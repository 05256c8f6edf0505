"""Files of experts: each stands in a mixture of three, of which the two best are taken with their probabilities."""

import torch.nn.functional as F

from common import Random, clear, part, record, under
from experts import (
    AttentionExpert,
    Experts,
    GatedMlp,
    GptOssExpert,
    Linear,
    MergedTransformer,
    Mlp,
    MultiHeadExpert,
    NormExpert,
    PatchCnn,
    PatchMlp,
    RmsNorm,
    TransformerExpert,
    cube,
    gated_mlp,
    gelu_tanh,
    mlp,
)
from gates import LINEAR, Context, Gate, TopK, mixture, parameters


def sequences(kind, **more):
    """Sizes of an expert on sequences: one position, odd numbers, more."""
    return {
        "one": (2, kind(model_dim=2, length=1, **{"heads": 1} | more)),
        "odd": (5, kind(model_dim=3, length=3, **{"heads": 3} | more)),
        "more": (6, kind(model_dim=4, length=5, **{"heads": 2} | more)),
    }


def flat(kind, **more):
    return {
        size: (items, kind(model_dim=d, hidden_dim=h, **more))
        for size, (items, d, h) in {"one": (1, 3, 2), "odd": (7, 3, 5), "more": (9, 4, 3)}.items()
    }


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
    "mlp_relu2": flat(Mlp, activation=lambda z: F.relu(z) ** 2, bias=True),
    "gated_mlp_gelu": flat(GatedMlp, activation=F.gelu),
    "gated_mlp_gpt_oss": flat(GptOssExpert, bias=True),
    "patch_mlp": patched(PatchMlp),
    "patch_cnn": patched(PatchCnn),
    "attention_expert": {
        "one": (2, AttentionExpert(model_dim=2, length=1, outputs=1)),
        "odd": (5, AttentionExpert(model_dim=3, length=3, outputs=3)),
        "more": (7, AttentionExpert(model_dim=4, length=5, outputs=2)),
    },
    "merged_transformer": {
        "one": (2, MergedTransformer(model_dim=2, length=1, heads=1, filters=2, activation=F.relu)),
        "odd": (5, MergedTransformer(model_dim=3, length=3, heads=3, filters=6, activation=F.relu)),
        "more": (6, MergedTransformer(model_dim=4, length=5, heads=2, filters=4, activation=F.relu)),
    },
    "multi_head_expert": sequences(MultiHeadExpert, causal=False),
    "multi_head_expert_causal": sequences(MultiHeadExpert, causal=True),
    "norm_expert": {
        size: (items, NormExpert(model_dim=d, epsilon=eps))
        for size, (items, d, eps) in {"one": (1, 2, 1e-5), "odd": (5, 3, 1e-2), "more": (8, 6, 1e-5)}.items()
    },
    "rms_norm": {
        size: (items, RmsNorm(model_dim=d, epsilon=eps))
        for size, (items, d, eps) in {"one": (1, 2, 1e-6), "odd": (5, 3, 1e-2), "more": (8, 6, 1e-6)}.items()
    },
    "transformer_expert": sequences(
        TransformerExpert, hidden_dim=3, causal=False, bias=True, epsilon=1e-5, activation=F.gelu
    ),
    "transformer_expert_causal": sequences(
        TransformerExpert, hidden_dim=2, causal=True, bias=False, epsilon=1e-3, activation=F.gelu
    ),
    "experts": {
        "one": (1, mixed(3, 2, 1, (1, 1, 1))),
        "odd": (7, mixed(3, 4, 2, (0, 2, 1))),
        "more": (9, mixed(2, 1, 3, (1, 0, 2))),
    },
}


def case(expert, items, seed, shared=None, count=3):
    """shared: DeepSeekMoE (arXiv:2401.06066), eq. (9), the residual left to the layer."""
    random = Random(seed)
    gate = Gate(LINEAR, TopK(k=2, renormalise=False))
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


SHARED = {
    "one": (mlp(3, 2), 1, (gated_mlp(3, 2), 1.0)),
    "odd": (mlp(3, 1), 5, (gated_mlp(3, 4), 0.5)),
    "more": (mlp(4, 3), 8, (gated_mlp(4, 2), -2.0)),
}


def files():
    for name, sizes in ALONE.items():
        file = f"expert/{name}"
        yield file, {
            size: clear(lambda seed: case(expert, items, seed), f"{file} {size}")
            for size, (items, expert) in sizes.items()
        }
    file = "expert/with_shared"
    yield file, {
        size: clear(lambda seed: case(routed, items, seed, shared), f"{file} {size}")
        for size, (routed, items, shared) in SHARED.items()
    }
