"""Figures that others published, beside what the plan gives for their setup: the rows of published.json.

A row names a quantity below, the machine, network and model, the ranks and the options. `stages`: of a pipeline, of
which a rank has one; `ranks` are those of a stage. Bandwidths are "logical", as DeepEP counts them: rows for the own
node count too.
"""
from dataclasses import replace

import inputs
from model import Options, Planned
from network import Volume


def model_of(row):
    m = inputs.model(row["model"], **row.get("set", {}))
    s = row.get("stages", 1)
    return replace(m, layers=m.layers / s, dense_parameters=m.dense_parameters / s,
                   other_parameters=m.other_parameters / s, attention_width=m.attention_width / s)


def planned(row, **options):
    return Planned(model_of(row), inputs.machine(row.get("machine", "h100_bf16")), inputs.network(row["network"]),
                   row["ranks"], Options(**(row.get("options", {}) | options)))


def bandwidth(row):
    """GB/s of one way of rows, of `bytes_of_value`: nodes that an item needs, or ranks where there is one node."""
    p = planned(row)
    bytes_of_row = p.model.dim * row["bytes_of_value"]
    needed = sum(p.routing.node_needed if p.nodes > 1 else p.routing.needed)
    return p.model.items * needed * bytes_of_row / p.rows(bytes_of_row) / 1e9


def slots_us(row):
    """Microseconds of one way of a row for each slot."""
    p = planned(row)
    return p.slots(p.model.dim * row["bytes_of_value"]) * 1e6


def all_to_all_us(row):
    """Microseconds of `bytes_of_rank`, an equal part for each rank."""
    network, ranks = inputs.network(row["network"]), row["ranks"]
    per_node, _ = network.per_node(ranks)
    part = row["bytes_of_rank"] / ranks
    return network.all_to_all(ranks, Volume((per_node - 1) * part, (ranks - per_node) * part)) * 1e6


def items_per_s(row):
    """Of a rank."""
    p = planned(row)
    return p.model.items * p.model.micro_batches / p.step().seconds / row.get("stages", 1)


def samples_per_s(row):
    """Of all ranks."""
    return items_per_s(row) * row["ranks"] / planned(row).model.sequence


def speedup(row):
    """Of a layer with `options` over the same with `over`."""
    layer = {part: 0.0 for part in ("gradients", "optimizer")}
    seconds = [sum((planned(row, **o).step().parts | layer).values()) for o in (row["over"], {})]
    return seconds[0] / seconds[1]


def rows():
    for row in inputs.read(inputs.HERE / "published.json")["rows"]:
        yield row, globals()[row["quantity"]](row)
