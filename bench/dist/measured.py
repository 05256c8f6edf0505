"""Measured rows of training steps of one layer on this machine, beside what the plan gives for them.

A file is a list of {"ranks": R, "shards": C, "items": N, "dim": D, "hidden": H, "experts": E, "k": K, "seconds": s,
"seconds_exchange": s, "bytes": b}: R processes with C/R shards each, a batch of N items in all, forward and backward
and the sum of the gate's gradients; of the seconds of the slowest shard those inside exchanges; bytes that cross from
process to process in a step, all together. A row may say "skew": s of Zipf's law, or "loads": picks of each expert.
"""
import json
import pathlib
from dataclasses import replace

import inputs
from model import Options, Planned

FIELDS = ["ranks", "shards", "items", "dim", "hidden", "experts", "k", "seconds", "seconds_exchange", "bytes"]
EXCHANGES = ("logits", "dispatch", "combine", "gradients")


def read(path):
    rows = json.loads(pathlib.Path(path).read_text())
    for number, row in enumerate(rows):
        missing = [f for f in FIELDS if f not in row]
        if missing:
            raise ValueError(f"{path}: row {number} lacks {', '.join(missing)}")
        if row["shards"] % row["ranks"]:
            raise ValueError(f"{path}: row {number}: {row['shards']} shards on {row['ranks']} processes are uneven")
    return rows


def predict(row, machine, network):
    """Seconds, of them in exchanges, and bytes. The machine's rates are shared by all shards."""
    shards, per_process = row["shards"], row["shards"] // row["ranks"]
    model = inputs.model("bench_layer", items=row["items"] / shards,
                         **{f: row[f] for f in ("dim", "hidden", "experts", "k")})
    one = replace(machine, rates=tuple(r / shards for r in machine.rates), dense_rate=machine.dense_rate / shards,
                  memory=machine.memory / shards, selection=machine.selection * shards, whole_node=False)
    options = Options(skew=row.get("skew", 0.0), loads=tuple(row.get("loads", ())))
    step = Planned(model, one, replace(network, ranks_per_node=per_process), shards, options).step()
    pairs = (shards - per_process) / (shards - 1) if shards > 1 else 0.0
    return {"seconds": step.seconds, "seconds_exchange": sum(step.parts[p] for p in EXCHANGES),
            "bytes": shards * step.moved * pairs}


def compare(path, machine, network):
    """(row, predicted) for each."""
    return [(row, predict(row, machine, network)) for row in read(path)]
