"""Writes the results of the benchmarks as Markdown: python3 bench/table.py build/bench >performance.md

Also writes <curve>.dat next to the JSON files, with one line per point, for growth.gp.
"""
import json
import pathlib
import re
import subprocess
import sys
from datetime import date

# Performance goals (row, counter, relation, goal). A goal applies to all names that begin with `row`.
GOALS = [
    ("layer_forward/T:4096/D:512/H:2048/E:8/K:2", "peak_share", ">=", 0.90),
    ("layer_forward/T:4096/D:352/H:352/E:16/K:2", "peak_share", ">=", 0.85),
    ("layer_forward/T:512/D:512/H:2048/E:8/K:2", "peak_share", ">=", 0.85),
    ("layer_forward/T:4096/D:512/H:2048/E:64/K:2", "peak_share", ">=", 0.85),
    ("layer_forward/T:8192/D:64/H:128/E:64/K:2", "peak_share", ">=", 0.55),
    ("layer_forward/T:8192/D:64/H:128/E:64/K:2", "peer_ratio_onednn26", ">=", 1.5),
    ("layer_decode/T:16/D:512/H:2048/E:8/K:2", "bandwidth_share", ">=", 0.90),
    ("decode_frozen/T:16/D:512/H:2048/E:8/K:2", "bandwidth_share", ">=", 0.90),
    ("decode_frozen_bf16/T:16/D:512/H:2048/E:8/K:2", "speedup", ">=", 1.8),
    ("layer_frozen/T:1/", "peer_ratio", ">=", 1.0),
    ("layer_frozen_bf16/T:1/", "peer_ratio", ">=", 1.0),
    ("layer_forward/", "peer_ratio", ">=", 1.0),
    ("layer_forward/T:4096", "routing_share", "<=", 0.05),
    ("layer_forward/T:512", "routing_share", "<=", 0.05),
    ("layer_train/", "train_over_forward", "<=", 3.2),
    ("layer_skew/", "skew_over_uniform", "<=", 1.1),
    ("layer_threads/", "speedup", ">=", 1.85),
    ("layer_rule/HeavyBall/T:4096/D:512", "over_plain", "<=", 1.02),
    ("layer_rule/HeavyBall/T:4096/D:352", "over_plain", "<=", 1.05),
    ("layer_rule/Adam/T:4096/D:512", "over_plain", "<=", 1.03),
    ("layer_rule/Adam/T:4096/D:352", "over_plain", "<=", 1.08),
    ("layer_mixing/", "over_arithmetic", "<=", 1.10),
    ("model/HeavyBall", "infer_over_plain", "<=", 1.02),
    ("model/HeavyBall", "train_over_plain", "<=", 1.02),
    ("model/AdamFirst", "infer_over_plain", "<=", 1.02),
    ("model/AdamFirst", "train_over_plain", "<=", 1.02),
    ("model/SimilarityAware", "infer_over_arithmetic", "<=", 1.10),
    ("model/SimilarityAware", "memory_over_plain", "<=", 1.01),
    ("model/AttentionAware", "infer_over_arithmetic", "<=", 1.10),
    ("model/AttentionAware", "memory_over_plain", "<=", 1.03),
    ("memory/", "allocations_per_step", "<=", 0),
    ("memory/", "peak_over_sum", "<=", 1.10),
    ("sampling/", "tokens_per_s", ">=", 5500),
    ("server_layer/", "two_over_one", ">=", 0.97),
    ("server_model/", "two_over_one", ">=", 0.97),
    ("server_latency/busy:1", "p99_over_median", "<=", 3),
    ("language_train/characters", "peer_ratio_torch_eager", ">=", 2.5),
    ("language_train/characters", "peer_ratio_torch_compiled", ">=", 1.5),
    ("language_train/characters", "peak_share", ">=", 0.5),
    ("language_train/medium", "peak_share", ">=", 0.6),
    ("compile_time/quickstart/kernels", "seconds", "<=", 4),
    ("compile_time/quickstart", "seconds", "<=", 10),
    ("compile_time/language_model/one_network/kernels", "seconds", "<=", 12),
    ("compile_time/slowest_test", "seconds", "<=", 60),
]
for layer in ("olmoe", "qwen3", "mixtral_quarter"):
    one = f"layer_quantised/{layer}/T:1/"
    GOALS += [(one + "int8", "bandwidth_share", ">=", 0.90), (one + "int4", "bandwidth_share", ">=", 0.80)]
    GOALS += [(f"layer_quantised/{layer}/T:{items}/", "peer_ratio", ">=", 1.1 if items < 16 else 1.2)
              for items in (1, 4, 16, 64, 256, 512)]
PLAIN_FIELDS = {"name", "run_name", "run_type", "family_index", "per_family_instance_index", "repetitions",
                "repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit"}
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}


def load(folder):
    """Returns all rows in the order of the files, {name: {counter: value}}, and the context of the first file."""
    rows, context = {}, {}
    for path in sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime):
        try:
            content = json.loads(path.read_text())
        except ValueError:
            continue  # the program stopped before its end
        context = context or content["context"]
        for b in content["benchmarks"]:
            name = re.sub(r"/(iterations:|manual_time|real_time).*", "", b["name"])
            if b.get("error_occurred"):
                print(f"{name}: {b['error_message']}", file=sys.stderr)
                continue
            counters = {k: v for k, v in b.items() if k not in PLAIN_FIELDS}
            milliseconds = b["real_time"] * MILLISECONDS[b["time_unit"]]
            time = {"seconds": milliseconds / 1e3} if name.startswith("compile_time") else {"ms": milliseconds}
            rows[name] = time | counters
    return rows, context


def join_python_peers(rows):
    """Makes peer_torch/<shape> a counter of the row layer_forward/<shape>, and peer_<name>/<row> a counter of <row>."""
    for name in [n for n in rows if n.startswith("peer_")]:
        peer, shape = name.split("/", 1)
        ours = rows.get(shape) or rows.get("layer_forward/" + shape)
        if ours:
            ours["peer_ratio_" + peer.removeprefix("peer_")] = rows[name]["ms"] / ours["ms"]


def number(v):
    if not isinstance(v, (int, float)):
        return str(v)
    if v != 0 and abs(v) >= 1e4:
        for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if abs(v) >= size:
                return f"{v / size:.3g} {unit}"
    return f"{v:.4g}" if abs(v) >= 10 else f"{v:.3g}"


def table(header, lines):
    text = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(text + ["| " + " | ".join(line) + " |" for line in lines])


def goals(rows):
    lines = []
    for row, counter, relation, goal in GOALS:
        for name, counters in rows.items():
            if name.startswith(row) and counter in counters:
                value = counters[counter]
                met = value >= goal if relation == ">=" else value <= goal
                sign = "≥" if relation == ">=" else "≤"
                lines.append([name, counter, f"{sign} {goal:g}", number(value), "yes" if met else "**no**"])
    return table(["row", "counter", "goal", "measured", "met"], lines) if lines else ""


def write_curves(folder, rows):
    """Writes each row growth/<curve>/<letter>:<x> as a line of <curve>.dat: x, then the counters in the order of the
    row."""
    curves = {}
    for name, counters in rows.items():
        if name.startswith("growth/"):
            _, curve, x = name.split("/")
            curves.setdefault(curve, []).append((int(x.split(":")[1]), counters))
    for curve, points in curves.items():
        names = list(points[0][1])
        lines = [" ".join(["x"] + names)]
        for x, counters in sorted(points, key=lambda p: p[0]):
            lines.append(" ".join(str(v) for v in [x] + [counters[n] for n in names]))
        (folder / f"{curve}.dat").write_text("\n".join(lines) + "\n")


def commit():
    run = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True).stdout.strip()
    return run("rev-parse", "--short", "HEAD") + (" and changes" if run("status", "--porcelain") else "")


def main():
    folder = pathlib.Path(sys.argv[1])
    rows, context = load(folder)
    join_python_peers(rows)
    write_curves(folder, rows)
    processor, threads, bytes_ = (context.get(k, "?") for k in ("processor", "threads", "vector_bytes"))
    print(f"{processor}, {threads} threads, vectors of {bytes_} bytes, {context.get('compiler', '')}, {date.today()}, "
          f"commit {commit()}; load at the start {context.get('load_avg', ['?'])[0]}.\n")
    # Products of bfloat16 can exceed 1, because they are also divided by the peak of float products.
    if any(counters.get("peak_share", 0) > 1 for row, counters in rows.items() if "_bf16" not in row):
        print("**Something else ran meanwhile: a share of the peak is above 1. Do not quote these numbers.**\n")
    print("Every ratio and share is the median of ratios taken in turn in one program; see bench/README.md.\n")
    print("## Goals\n\n" + goals(rows))
    families = {}
    for name, counters in rows.items():
        if not name.startswith("peer_"):
            family, _, row = name.partition("/")
            families.setdefault(family, {})[row] = counters
    for family, members in families.items():
        header = list(dict.fromkeys(c for counters in members.values() for c in counters))
        print(f"\n## {family}\n")
        rows = [[n] + [number(c[h]) if h in c else "" for h in header] for n, c in members.items()]
        print(table([family] + header, rows))


if __name__ == "__main__":
    main()
