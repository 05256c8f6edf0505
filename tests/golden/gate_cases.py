"""Files of gates that mix no items: each stands in a mixture of linear experts."""

import torch

from common import Random, clear, part, record, under
from experts import Linear
from gates import (
    FASTMOE,
    Capacity,
    Context,
    CosineScores,
    Dense,
    ExpertChoice,
    Frozen,
    Gate,
    Jitter,
    LINEAR,
    LinearScores,
    NoisyTop1,
    PatchScores,
    SHAZEER_LOSSES,
    ShazeerTopK,
    SigmoidBias,
    TopK,
    VMoeTopK,
    as_mask,
    balance,
    gshard,
    importance,
    load_shazeer,
    load_vmoe,
    mixture,
    one_gumbel,
    parameters,
    ties,
    z_loss,
)
from philox import mix64


def violation(routing, real, experts):
    """Alg. 1 of Wang et al.: mean load − load, times E so that it is a whole number."""
    load = as_mask(routing.picked, routing.q)[real].sum(dim=0).to(torch.float64)
    return experts * (load.mean() - load)


def case(gate, items, model, experts, seed, context=None, tied=False):
    random, context = Random(seed), context or Context()
    expert = Linear(model_dim=model, output_dim=2, bias=True)
    params = parameters(gate, random, model, experts, expert)
    x, dy = random.uniform(items, model), random.uniform(items, 2)
    if tied:
        ties(x, params)
    last = {}

    def run(p, x, carry):
        y, last["routing"], losses = mixture(gate, p, x, experts, expert, context)
        return y, {}, losses

    options = (
        {"model_dim": model, "experts": experts} | gate.scores.options() | gate.selection.options() | context.options()
    )
    out = record(options, x, dy, run, params, given=context.given())
    if isinstance(gate.selection, SigmoidBias):
        out["grads.gate.selection.bias"] = violation(last["routing"], context.items(x), experts)
    return out


SIZES = {"one": (1, 3, 2), "odd": (7, 3, 5), "more": (12, 4, 4)}  # items, model, experts
TIES = {"ties": (9, 2, 4)}
PADDING = {"odd": Context(valid=torch.tensor([1, 0, 1, 1, 0, 1, 1.0]))}
NOISE = {
    "one": Context(random=(3, 0)),
    "odd": Context(random=(2**52 + 5, 7)),
    "more": Context(random=(12345678901, 2**40)),
}
LOSSES = ((0.7, importance), (0.4, gshard), (0.3, balance), (0.2, z_loss))
FASTMOE_LOSSES = ((0.1, lambda r: importance(r, FASTMOE)), (0.1, lambda r: load_shazeer(r, FASTMOE)))
VMOE_LOSSES = ((0.005, importance), (0.005, load_vmoe))


def sizes(make, contexts=None, also=None, **more):
    """name: arguments of `case`. make(experts) gives the gate."""
    chosen = SIZES | (also or {}) | more
    return {
        name: (make(extents[2]), *extents, (contexts or {}).get(name), name.startswith("ties"))
        for name, extents in chosen.items()
    }


def switch(epsilon, factor):
    """Switch, sec. 2: no router bias, jitter, K = 1 with the weight of the balance loss of 0.01."""
    return Gate(
        Jitter(scores=LinearScores(bias=False), epsilon=epsilon),
        Capacity(selection=TopK(k=1, renormalise=False), factor=factor, multiple_of=1),
        ((0.01, balance),),
    )


def capacity(**options):
    return Capacity(selection=TopK(k=2, renormalise=False), **options)


FILES = {
    "dense": sizes(lambda experts: Gate(LINEAR, Dense())),
    "top_k_losses": sizes(lambda experts: Gate(LINEAR, TopK(k=2, renormalise=experts % 2 == 0), LOSSES), PADDING, TIES),
    "noisy_top_1": sizes(lambda experts: Gate(LINEAR, NoisyTop1(scale=0.8, noisy_weight=False)), NOISE, TIES),
    "noisy_top_1_reference": sizes(lambda experts: Gate(LINEAR, NoisyTop1(scale=1.0, noisy_weight=True)), NOISE, TIES),
    "noisy_top_1_shared": {
        "one": (
            Gate(LinearScores(length=2, bias=False), NoisyTop1(scale=1.0, noisy_weight=False)),
            1,
            4,
            3,
            NOISE["one"],
        ),
        "odd": (
            Gate(LinearScores(length=3, bias=True), NoisyTop1(scale=0.5, noisy_weight=False)),
            5,
            6,
            4,
            NOISE["odd"],
        ),
        "more": (
            Gate(LinearScores(length=1, bias=False), NoisyTop1(scale=2.0, noisy_weight=False)),
            8,
            3,
            3,
            NOISE["more"],
        ),
    },
    "noisy_top_1_gumbel": sizes(
        lambda experts: Gate(LINEAR, NoisyTop1(scale=1.0, noisy_weight=False, law=one_gumbel)), NOISE
    ),
    "patch_noisy_top_1": {
        "one": (Gate(PatchScores(length=2), NoisyTop1(scale=1.0, noisy_weight=False)), 1, 4, 3, NOISE["one"]),
        "odd": (Gate(PatchScores(length=3), NoisyTop1(scale=1.0, noisy_weight=False)), 7, 9, 5, NOISE["odd"]),
        "more": (Gate(PatchScores(length=4), NoisyTop1(scale=0.5, noisy_weight=False)), 9, 8, 4, NOISE["more"]),
    },
    "shazeer": sizes(
        lambda experts: Gate(LinearScores(bias=False), ShazeerTopK(k=2, epsilon=0.0), SHAZEER_LOSSES), NOISE, TIES
    ),
    "fastmoe": sizes(
        lambda experts: Gate(LINEAR, ShazeerTopK(k=2, epsilon=0.01), FASTMOE_LOSSES),
        NOISE | {"padded": Context(valid=PADDING["odd"].valid, random=(5, 6))},
        padded=(7, 2, 4),
    ),
    "vmoe": {
        name: (
            Gate(
                LinearScores(bias=False), Capacity(selection=VMoeTopK(k=k), factor=factor, multiple_of=4), VMOE_LOSSES
            ),
            items,
            3,
            experts,
            context,
            name == "ties",
        )
        for name, k, factor, items, experts, context in (
            ("one", 1, 1.05, 1, 2, NOISE["one"]),
            ("odd", 2, 0.3, 13, 5, NOISE["odd"]),
            ("more", 2, 1.05, 12, 4, NOISE["more"]),
            ("all", 3, 4.0, 7, 3, NOISE["odd"]),
            ("evaluated", 2, 4.0, 7, 5, None),
            ("ties", 2, 0.5, 12, 4, None),
        )
    },
    "switch": {
        name: (switch(0.01, factor), items, 3, experts, context, name == "ties")
        for name, factor, items, experts, context in (
            ("one", 1.25, 1, 2, NOISE["one"]),
            ("odd", 1.25, 11, 3, NOISE["odd"]),
            ("more", 1.0, 12, 4, NOISE["more"]),
            ("ties", 1.25, 9, 4, None),
        )
    },
    "gshard": {
        name: (
            Gate(
                LinearScores(bias=False),
                Capacity(selection=TopK(k=2, renormalise=True), factor=1.0, multiple_of=1),
                ((0.01, gshard),),
            ),
            items,
            3,
            experts,
            context,
            name == "ties",
        )
        for name, items, experts, context in (
            ("one", 1, 2, None),
            ("odd", 7, 5, PADDING["odd"]),
            ("more", 16, 4, None),
            ("ties", 9, 4, None),
        )
    },
    "capacity": {
        name: (Gate(LINEAR, capacity(**options)), items, 3, experts, context, name.startswith("ties"))
        for name, items, experts, context, options in (
            ("one", 1, 2, None, {"factor": 1.0, "multiple_of": 1}),
            ("odd", 13, 3, None, {"factor": 0.6, "multiple_of": 1}),
            ("more", 14, 4, None, {"factor": 0.5, "multiple_of": 1, "batch_priority": True}),
            ("multiple", 15, 3, None, {"factor": 0.41, "multiple_of": 4}),
            ("slots", 11, 4, None, {"factor": 1.0, "multiple_of": 1, "slots": 2, "batch_priority": True}),
            ("groups", 13, 3, None, {"factor": 0.7, "multiple_of": 1, "group": 5, "batch_priority": True}),
            ("padded", 7, 3, PADDING["odd"], {"factor": 0.6, "multiple_of": 1, "batch_priority": True}),
            ("ties", 10, 4, None, {"factor": 0.5, "multiple_of": 1, "batch_priority": True}),
        )
    },
    "expert_choice": {
        name: (Gate(LINEAR, ExpertChoice(factor=factor)), items, 3, experts, context, name.startswith("ties"))
        for name, items, experts, factor, context in (
            ("one", 1, 3, 2.0, None),
            ("odd", 7, 5, 1.2, None),
            ("more", 12, 4, 1.0, Context(length=6)),
            ("few", 5, 6, 0.1, None),
            ("many", 4, 2, 9.0, None),
            ("padded", 10, 3, 1.3, Context(length=5, valid=torch.tensor([1, 1, 0, 1, 1, 0, 1, 1, 1, 0.0]))),
            ("ties", 8, 4, 1.5, None),
        )
    },
    "sigmoid_bias": {
        name: (
            Gate(LINEAR, SigmoidBias(k=k, renormalise=renormalise, scale=scale)),
            items,
            3,
            experts,
            context,
            name == "ties",
        )
        for name, k, renormalise, scale, items, experts, context in (
            ("one", 2, True, 1.0, 1, 3, None),
            ("odd", 3, True, 2.5, 7, 5, None),
            ("more", 2, False, 1.0, 12, 4, None),
            ("ties", 2, True, 1.0, 9, 4, None),
            ("padded", 2, True, 1.0, 7, 3, PADDING["odd"]),
        )
    },
    "aux_loss_free": sizes(
        lambda experts: Gate(LinearScores(bias=False), SigmoidBias(k=2, renormalise=False, scale=1.0))
    ),
    "deepseek_v3": sizes(
        lambda experts: Gate(LinearScores(bias=False), SigmoidBias(k=min(3, experts), renormalise=True, scale=2.5))
    ),
    "cosine": sizes(
        lambda experts: Gate(CosineScores(dim=experts, reference=False), TopK(k=2, renormalise=experts % 2 == 0))
    ),
    "cosine_reference": sizes(lambda experts: Gate(CosineScores(dim=8, reference=True), TopK(k=2, renormalise=True))),
    "smoe_dropout": {
        "one": (Gate(Frozen(scores=LINEAR), TopK(k=1, renormalise=False)), 1, 3, 2),
        "odd": (Gate(Frozen(scores=LINEAR), TopK(k=3, renormalise=True)), 7, 3, 5),
        "more": (Gate(Frozen(scores=LINEAR), TopK(k=2, renormalise=True)), 12, 4, 4),
        "ties": (Gate(Frozen(scores=LINEAR), TopK(k=2, renormalise=False)), 9, 2, 4, None, True),
    },
}


# Gates that are no scores and selection


def hash_case(items, model, experts, k, key, seed):
    """Roller et al. 2021 (arXiv:2106.04426): experts by a random hash of the token; chained for K, without
    repetition."""
    random = Random(seed)
    expert = Linear(model_dim=model, output_dim=2, bias=True)
    ids = torch.randint(-1, 40, (items,), generator=random.generator)
    weights = torch.zeros(items, experts)
    for n, token in enumerate(ids.tolist()):
        left, h = list(range(experts)), mix64(key ^ mix64(token % 2**64))
        for _ in range(k if token >= 0 else 0):
            weights[n, left.pop(h % len(left))] = 1 / k
            h = mix64(h)

    def run(p, x, carry):
        return sum(weights[:, e : e + 1] * expert.output(part(p, "expert"), e, x) for e in range(experts)), {}, []

    options = {"model_dim": model, "experts": experts, "k": k, "seed": key}
    return record(
        options,
        random.uniform(items, model),
        random.uniform(items, 2),
        run,
        under("expert", expert.parameters(random, experts)),
        given={"ids": ids},
    )


def soft_moe_case(form, items, model, experts, slots, context, seed):
    """Puigcerver et al. 2023 (arXiv:2308.00951), alg. 1 and 2; form: how its listing, google-research/vmoe and
    bwconrad/soft-moe keep norms away from 0 (the last mixes the normalised items)."""
    random = Random(seed)
    expert = Linear(model_dim=model, output_dim=2, bias=True)

    def unit(v):
        square = v.square().sum(dim=-1, keepdim=True)
        if form == "vmoe":
            return v / (square + 1e-6).sqrt()
        return v / (square.sqrt() + 1e-6) if form == "paper" else v / square.sqrt()

    def run(p, x, carry):
        y = torch.zeros(items, 2)
        for sequence in context.sequences(x):
            real = [n for n in sequence if context.items(x)[n]]
            if not real:
                continue
            tokens = x[real]
            phi = p["gate.scale"] * unit(p["gate.phi"].reshape(experts * slots, model))
            logits = unit(tokens) @ phi.T
            dispatch, combine = logits.softmax(dim=0), logits.softmax(dim=1)
            inputs = dispatch.T @ (unit(tokens) if form == "reference" else tokens)
            outputs = torch.cat(
                [expert.output(part(p, "expert"), e, inputs[e * slots : (e + 1) * slots]) for e in range(experts)]
            )
            y = y.index_add(0, torch.tensor(real), combine @ outputs)
        return y, {}, []

    params = {"gate.phi": random.uniform(experts, slots, model), "gate.scale": random.uniform(1, low=0.5, high=2.0)}
    params |= under("expert", expert.parameters(random, experts))
    options = {"model_dim": model, "experts": experts, "slots": slots} | context.options()
    return record(options, random.uniform(items, model), random.uniform(items, 2), run, params, given=context.given())


HASHED = {"one": (1, 2, 3, 1, 0), "odd": (7, 3, 5, 3, 2**53 - 111), "more": (16, 2, 4, 2, 77)}
SOFT = {
    "one": (1, 3, 2, 1, Context()),
    "odd": (7, 3, 3, 2, Context()),
    "more": (12, 4, 2, 3, Context(length=4)),
    "padded": (8, 2, 3, 1, Context(length=4, valid=torch.tensor([1, 1, 0, 1, 0, 1, 1, 0.0]))),
}


def files():
    for name, cases in FILES.items():
        file = f"gate/{name}"
        yield file, {
            size: clear(lambda seed: case(gate, items, model, experts, seed, *rest), f"{file} {size}")
            for size, (gate, items, model, experts, *rest) in cases.items()
        }
    file = "gate/hash"
    yield file, {size: clear(lambda seed: hash_case(*given, seed), f"{file} {size}") for size, given in HASHED.items()}
    for form in ("paper", "vmoe", "reference"):
        file = f"gate/soft_moe_{form}"
        yield file, {
            size: clear(lambda seed: soft_moe_case(form, *given, seed), f"{file} {size}")
            for size, given in SOFT.items()
        }
