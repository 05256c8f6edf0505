"""Compares published figures (the rows of published.json) with the prediction of the plan for their setup.

A row names a quantity (a function below), the machine, network and model, the ranks and the options. `stages` is the
number of stages of a pipeline, and `ranks` the number of ranks of one stage. Bandwidths are "logical", as DeepEP counts
them: rows that a rank sends within its own node count, too.
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
    """Returns the GB/s of rows that are sent one way, with `bytes_of_value` bytes per value. It counts one row for each
    node that an item needs, or for each rank if there is only one node."""
    p = planned(row)
    bytes_of_row = p.model.dim * row["bytes_of_value"]
    needed = sum(p.routing.node_needed if p.nodes > 1 else p.routing.needed)
    return p.model.items * needed * bytes_of_row / p.rows(bytes_of_row) / 1e9


def slots_us(row):
    """Returns the microseconds to send a row for each slot, one way."""
    p = planned(row)
    return p.slots(p.model.dim * row["bytes_of_value"]) * 1e6


def all_to_all_us(row):
    """Returns the microseconds if each rank sends `bytes_of_rank` bytes, an equal part to each rank."""
    network, ranks = inputs.network(row["network"]), row["ranks"]
    per_node, _ = network.per_node(ranks)
    part = row["bytes_of_rank"] / ranks
    return network.all_to_all(ranks, Volume((per_node - 1) * part, (ranks - per_node) * part)) * 1e6


def items_per_s(row):
    """Returns the items per second of one rank."""
    p = planned(row)
    return p.model.items * p.model.micro_batches / p.step().seconds / row.get("stages", 1)


def samples_per_s(row):
    """Returns the sequences per second of all ranks."""
    return items_per_s(row) * row["ranks"] / planned(row).model.sequence


def speedup(row):
    """Returns the speed of a layer with `options`, divided by its speed with the options `over`."""
    layer = {part: 0.0 for part in ("gradients", "optimizer")}
    seconds = [sum((planned(row, **o).step().parts | layer).values()) for o in (row["over"], {})]
    return seconds[0] / seconds[1]


def rows():
    for row in inputs.read(inputs.HERE / "published.json")["rows"]:
        yield row, globals()[row["quantity"]](row)
