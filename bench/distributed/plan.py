"""Predicts the seconds of a training step on a cluster, by part: see bench/distributed/README.md.

    python3 bench/distributed/plan.py --machine h100_bf16 --network h100_ndr --model deepseek_v3 --expert-ranks 64
    python3 bench/distributed/plan.py --published            # published figures next to those of the plan
    python3 bench/distributed/plan.py --check rows.json      # measured rows next to those of the plan
"""
import argparse
import json
import pathlib
import sys
from dataclasses import replace

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import draw  # noqa: E402
import inputs  # noqa: E402
import measured  # noqa: E402
import published  # noqa: E402
from model import PARTS, Options, Planned  # noqa: E402
from table import number, table  # noqa: E402

RANKS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
ALL = {"gate": "own", "combine": "sums", "exchange": "forwarded", "collectives": "hierarchical", "overlap": "chunks",
       "placement": "replicated"}
VARIANTS = {"as given": {}, "gate own": {"gate": "own"}, "sums back": {"combine": "sums"},
            "hierarchical": {"exchange": "hierarchical", "collectives": "hierarchical"},
            "forwarded": {"exchange": "forwarded", "collectives": "hierarchical"}, "overlap": {"overlap": "chunks"},
            "balanced": {"placement": "balanced"}, "replicated": {"placement": "replicated"}, "all": ALL}


def step(model, machine, network, ranks, options):
    """Predicts a step. If options.expert_ranks is larger than `ranks`, all ranks share one set of experts."""
    if options.expert_ranks > ranks:
        options = replace(options, expert_ranks=0)
    return Planned(model, machine, network, ranks, options).step()


def ms(seconds):
    return number(1e3 * seconds)


def parts_table(model, machine, network, ranks, options):
    lines = []
    for r in ranks:
        s = step(model, machine, network, r, options)
        lines.append([str(r)] + [ms(s.parts[p]) for p in PARTS] +
                     [ms(s.seconds), number(model.items * model.micro_batches / s.seconds), number(s.ranks_of_item),
                      number(s.moved), number(s.moved / s.floor) if s.floor else "", number(s.busiest),
                      number(s.parameters)])
    return table(["ranks"] + [f"{p}, ms" for p in PARTS] +
                 ["step, ms", "items/s a rank", "ranks an item needs", "bytes a rank gives", "over the floor",
                  "busiest rank's load", "parameters of a rank"], lines)


def variants_table(model, machine, network, ranks, options):
    lines = []
    for r in ranks:
        times = [step(model, machine, network, r, replace(options, **v)).seconds for v in VARIANTS.values()]
        lines.append([str(r)] + [ms(t) for t in times])
    return table(["ranks, ms a step"] + list(VARIANTS), lines)


def published_table():
    def plain(v):
        return f"{v:,.0f}" if v >= 100 else number(v)

    lines = [[row["what"], f"{plain(row['published'])} {row['unit']}", plain(value),
              number(value / row["published"]), row["source"]] for row, value in published.rows()]
    return table(["published", "figure", "plan", "plan ÷ figure", "source"], lines)


def measured_table(path, machine, network):
    compared = measured.compare(path, machine, network)
    lines, wanted = [], ["seconds", "seconds_exchange", "bytes"]
    wanted += ["bytes_floor"] if all("bytes_floor" in row for row, _ in compared) else []
    for row, predicted in compared:
        line = ["/".join(str(row[f]) for f in measured.FIELDS[:7])]
        for w in wanted:
            line += [number(row[w]), number(predicted[w]), number(predicted[w] / row[w]) if row[w] else ""]
        lines.append(line)
    return table(["ranks/shards/N/D/H/E/K"] + [h for w in wanted for h in (w, "plan", "plan ÷ measured")], lines)


def setting(text):
    """Parses "name=number"."""
    name, _, value = text.partition("=")
    return name, float(value) if "." in value or "e" in value else int(value)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine",
                        help="name in bench/distributed/machines, or a file (h100_float; xeon_2cores with --check)")
    parser.add_argument("--network",
                        help="name in bench/distributed/networks, or a file (h100_ndr; one_machine with --check)")
    parser.add_argument("--model", default="language",
                        help="name in bench/distributed/models, or a file (language)")
    parser.add_argument("--set", nargs="*", default=[], type=setting, metavar="NAME=NUMBER",
                        help="numbers of the model to change: items=2048 experts=4096 …")
    parser.add_argument("--ranks", nargs="*", type=int, default=RANKS)
    parser.add_argument("--exchange", choices=["flat", "hierarchical", "forwarded"], default="flat")
    parser.add_argument("--collectives", choices=["flat", "hierarchical"], default="flat")
    parser.add_argument("--combine", choices=["slots", "sums"], default="slots")
    parser.add_argument("--gate", choices=["gathered", "own"], default="gathered")
    parser.add_argument("--overlap", choices=["none", "chunks", "batches"], default="none")
    parser.add_argument("--placement", choices=["even", "balanced", "replicated"], default="even")
    parser.add_argument("--skew", type=float, default=0.0, help="exponent of Zipf's law of the experts' loads")
    parser.add_argument("--loads", help="JSON file with a list of the measured picks of each expert, instead of --skew")
    parser.add_argument("--expert-ranks", type=int, default=0, help="ranks that share one set of experts (0: all)")
    parser.add_argument("--draw", metavar="PNG", help="also draw a picture of the parts of a step to this file")
    parser.add_argument("--published", action="store_true", help="print published figures next to those of the plan")
    parser.add_argument("--check", metavar="ROWS.json", help="print these measured rows next to those of the plan")
    return parser.parse_args()


def main():
    a = arguments()
    if a.published:
        print(published_table())
        return
    machine = inputs.machine(a.machine or ("xeon_2cores" if a.check else "h100_float"))
    network = inputs.network(a.network or ("one_machine" if a.check else "h100_ndr"))
    if a.check:
        print(measured_table(a.check, machine, network))
        return
    model = inputs.model(a.model, **dict(a.set))
    loads = tuple(json.loads(pathlib.Path(a.loads).read_text())) if a.loads else ()
    options = Options(a.exchange, a.collectives, a.combine, a.gate, a.overlap, a.placement, a.skew, loads,
                      a.expert_ranks)
    print(parts_table(model, machine, network, a.ranks, options) + "\n")
    print(variants_table(model, machine, network, a.ranks, options))
    if a.draw and not draw.draw(a.draw, [("", [(r, step(model, machine, network, r, options)) for r in a.ranks])]):
        print("gnuplot not found: no picture", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"plan.py: {error}")
