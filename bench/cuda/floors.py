#!/usr/bin/env python3
"""floors.py [--write]: the floor of one layer. The floor of a part is the larger of its arithmetic over a device's
published float rate, and its bytes (each input read once, each output written once) over its memory bandwidth.

    T tokens, D model, H hidden, E experts, K picks; S = T·K slots; float values, 64-bit indices.

Prints Markdown tables of operations, bytes and microseconds for each part and for whole layers, in inference and in
backward. With --write, writes the table of whole layers into docs/explanation/gpu_speed.md.
"""
import pathlib
import re
import sys

DEVICES = {  # published TFLOP/s of float without tensor cores, GB/s
    "A100 SXM 80 GB": (19.5, 2039),
    "H100 SXM 80 GB": (66.9, 3350),
    "RTX 4090": (82.6, 1008),
}
SHAPES = [(16384, 1024, 4096, 8, 2), (4096, 512, 2048, 8, 2), (4096, 352, 352, 16, 2), (16384, 1024, 2048, 64, 2),
          (65536, 64, 128, 64, 2), (16, 1024, 4096, 8, 2), (1, 1024, 4096, 8, 2)]


def inference(t, d, h, e, k):
    """Returns the name, operations and bytes of each part of inference."""
    s, used = t * k, min(e, t * k)
    return [
        ("gating", 2 * t * d * e, 4 * (t * d + d * e + e) + 20 * s),
        ("dispatch", 0, 32 * s + 8 * (e + t + 2)),
        ("up", 2 * s * d * h, 4 * (min(s, t) * d + used * d * h + s * h)),
        ("down", 2 * s * h * d, 4 * (s * h + used * h * d + s * d)),
        ("combine", (2 * s + t) * d, 4 * (s * d + 2 * t * d) + 20 * s),  # reads z, x; writes y in the step of the rule
    ]


def backward(t, d, h, e, k):
    """Returns the name, operations and bytes of each part of backward. dx and gradients are read and written."""
    s, used = t * k, min(e, t * k)
    return [
        ("update", t * d, 12 * t * d),  # reads dy; reads and writes dx
        ("combine", 3 * s * d, 4 * (t * d + 2 * s * d) + 24 * s),  # reads du, z; writes dz; 24 bytes for each pick
        # Reads dz, weights and hidden; writes the activated values and the adjoint.
        ("down", 2 * s * h * d, 4 * (s * d + used * h * d + 3 * s * h)),
        ("up", 2 * s * d * h, 4 * (s * h + used * d * h + s * d)),
        ("weights", 4 * s * d * h, 4 * (2 * s * h + s * d + min(s, t) * d + 4 * used * d * h)),
        ("dispatch", s * d, 4 * (s * d + 2 * t * d) + 8 * (s + t)),
        # Reads x, weights, q and picks; reads and writes dx and the gradients.
        ("gating", 4 * t * d * e, 4 * (3 * t * d + 3 * d * e + 2 * e + t * e) + 16 * s),
    ]


def short(number):
    """Formats a number with three digits and a prefix, for example 275G."""
    for unit in ["", "k", "M", "G", "T"]:
        if number < 999.5 or unit == "T":
            return f"{number:.3g}{unit}"
        number /= 1000


def floors(parts, device):
    """Returns the least microseconds of each part on a device."""
    tflops, gigabytes = DEVICES[device]
    return [max(flop / tflops * 1e-6, size / gigabytes * 1e-3) for _, flop, size in parts]


def table(columns, cells):
    """Yields a Markdown table with one row for each shape; cells(shape) returns all columns except the first."""
    yield "| T / D / H / E / K | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for shape in SHAPES:
        yield "| " + " / ".join(map(str, shape)) + " | " + " | ".join(cells(shape)) + " |"
    yield ""


def amounts(parts):
    """Returns the operations and bytes of each part and of the layer, as text."""
    whole = ("layer", sum(part[1] for part in parts), sum(part[2] for part in parts))
    return [f"{short(flop)} / {short(size)}" for _, flop, size in parts + [whole]]


def times(parts, device):
    """Returns the least microseconds of each part and of the layer, as text."""
    of_parts = floors(parts, device)
    return [f"{f:.1f}" for f in of_parts + [sum(of_parts)]]


def by_part():
    for title, parts in (("inference", inference), ("backward", backward)):
        names = [name for name, _, _ in parts(*SHAPES[0])] + ["layer"]
        yield f"**{title}: operations / bytes**\n"
        yield from table(names, lambda shape: amounts(parts(*shape)))
        for device, (tflops, gigabytes) in DEVICES.items():
            yield f"**{device}, {title}, µs: {tflops} TFLOP/s, {gigabytes} GB/s**\n"
            yield from table(names, lambda shape: times(parts(*shape), device))


def of_layers():
    columns, kinds = [], (("inference", inference), ("backward", backward))
    for title, _ in kinds:
        columns += [f"{title}: operations / bytes"] + [f"{device}, µs" for device in DEVICES]

    def cells(shape):
        for _, parts in kinds:
            yield amounts(parts(*shape))[-1]
            yield from (times(parts(*shape), device)[-1] for device in DEVICES)

    yield from table(columns, cells)


def main():
    layers = "\n".join(of_layers())
    if sys.argv[1:] != ["--write"]:
        print("\n".join(by_part()))
        print(layers)
        return
    page = pathlib.Path(__file__).resolve().parents[2] / "docs/explanation/gpu_speed.md"
    between = re.compile(r"(?<=<!-- floors -->\n).*(?=<!-- /floors -->)", re.S)
    page.write_text(between.sub(lambda _: layers, page.read_text(), count=1))


if __name__ == "__main__":
    main()
