"""Compares measured steps of one layer on this machine (rows of steps.sh) with the prediction of the plan.

A file is a JSON list, or one object per line, of {"ranks": R, "shards": C, "items": N, "dim": D, "hidden": H,
"experts": E, "k": K, "seconds": s, "seconds_exchange": s, "bytes": b}: R processes with C/R shards each (C = 0: one
process and no shards), and a batch of N items in all. "seconds" is the time of forward, backward and a step of Sgd on
the slowest shard. "seconds_exchange" is the time inside exchanges, the mean over the shards. "bytes" are the bytes that
all shards together send to other shards in a step. A row may also have "bytes_floor", a lower bound of these bytes
without gradients, and "skew" (s of Zipf's law) or "loads" (picks of each expert).
"""
import json
import pathlib
from dataclasses import replace

import inputs
from model import Options, Planned

FIELDS = ["ranks", "shards", "items", "dim", "hidden", "experts", "k", "seconds", "seconds_exchange", "bytes"]
EXCHANGES = ("logits", "dispatch", "combine", "gradients")


def read(path):
    text = pathlib.Path(path).read_text()
    a_line = [line for line in text.splitlines() if line.strip()]
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in a_line]
    for number, row in enumerate(rows):
        missing = [f for f in FIELDS if f not in row]
        if missing:
            raise ValueError(f"{path}: row {number} lacks {', '.join(missing)}")
        if row["shards"] % row["ranks"]:
            raise ValueError(f"{path}: row {number}: {row['shards']} shards on {row['ranks']} processes are uneven")
    return rows


def predict(row, machine, network):
    """Returns the predicted seconds, seconds in exchanges, bytes and least bytes of a row. All shards share the
    machine's rates."""
    shards = max(row["shards"], 1)
    model = inputs.model("bench_layer", items=row["items"] / shards,
                         **{f: row[f] for f in ("dim", "hidden", "experts", "k")})
    one = replace(machine, rates=tuple(r / shards for r in machine.rates), dense_rate=machine.dense_rate / shards,
                  memory=machine.memory / shards, selection=machine.selection * shards, whole_node=False)
    options = Options(skew=row.get("skew", 0.0), loads=tuple(row.get("loads", ())))
    step = Planned(model, one, replace(network, ranks_per_node=shards // row["ranks"]), shards, options).step()
    gradients = 2 * (shards - 1) * model.replicated_parameters() * model.gradient_bytes
    return {"seconds": step.seconds, "seconds_exchange": sum(step.parts[p] for p in EXCHANGES),
            "bytes": shards * step.moved, "bytes_floor": shards * step.floor - gradients}


def compare(path, machine, network):
    """Returns (row, prediction) for each row of a file."""
    return [(row, predict(row, machine, network)) for row in read(path)]
