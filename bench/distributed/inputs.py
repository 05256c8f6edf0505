"""Reads machines, networks and models from JSON files. An object that holds numbers, or lists of them, must also
have a "source"."""
import json
import pathlib

from model import Machine, Model
from network import Link, Network

HERE = pathlib.Path(__file__).resolve().parent


def find(kind, name):
    """Returns the path of a file in bench/distributed/<kind>s/, with or without .json, or any other path."""
    folder = HERE / f"{kind}s"
    for path in (folder / name, folder / f"{name}.json", pathlib.Path(name)):
        if path.is_file():
            return path
    known = ", ".join(sorted(p.stem for p in folder.glob("*.json")))
    raise FileNotFoundError(f"no {kind} {name}: neither a file nor one of {known}")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def without_source(tree, path=""):
    """Yields the names of numbers in objects without a source."""
    if not isinstance(tree, dict):
        return
    for key, value in tree.items():
        numbers = is_number(value) or (isinstance(value, list) and any(map(is_number, value)))
        if numbers and not tree.get("source"):
            yield f"{path}{key}"
        yield from without_source(value, f"{path}{key}.")


def read(path):
    tree = json.loads(pathlib.Path(path).read_text())
    missing = list(without_source(tree))
    if missing:
        raise ValueError(f"{path}: no source for {', '.join(missing)}")
    return tree


def numbers(group):
    return {k: v for k, v in group.items() if k != "source"}


def machine(name):
    tree = read(find("machine", name))
    kernel, moves, selection = (tree.get(group, {}) for group in ("kernel", "moves", "selection"))
    return Machine(tuple(tree["experts"]["rows"]), tuple(tree["experts"]["flop_per_s"]), tree["dense"]["flop_per_s"],
                   tree["memory"]["bytes_per_s"], kernel.get("seconds", 0.0), kernel.get("per_layer", 0),
                   moves.get("dim", 0), moves.get("hidden", 0), selection.get("seconds_per_logit", 0.0),
                   tree.get("whole_node", False))


def network(name):
    tree = read(find("network", name))
    per_node = tree["node"]["ranks"]
    links = {}
    for kind in ("within", "between"):
        of = tree[kind]
        share = of.get("links", per_node) / per_node
        links[kind] = Link(of["latency"], of["message"], of["bytes_per_s"] * share)
    return Network(per_node, links["within"], links["between"])


def model(name, **changes):
    tree = read(find("model", name))
    values = {}
    for group in ("experts", "dense", "run"):
        values |= numbers(tree.get(group, {}))
    unknown = set(changes) - set(Model.__dataclass_fields__)
    if unknown:
        raise ValueError(f"a model has no {', '.join(sorted(unknown))}")
    return Model(**(values | changes))
