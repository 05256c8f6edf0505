#!/usr/bin/env python3
"""floors.py [--write]: the floor of one layer on paper: for each part the larger of its arithmetic over a device's
published float rate and its bytes (each input read once, each output written once) over its memory bandwidth.

    T tokens, D model, H hidden, E experts, K picks; S = T·K slots; float values, 64-bit indices.
Prints tables in Markdown: operations and bytes of each part, in inference and in the backward of a training step, then
microseconds for each device. With --write they are written into docs/gpu_speed.md.
"""
import pathlib
import re
import sys

DEVICES = {  # published: TFLOP/s of float without tensor cores, GB/s
    "A100 SXM 80 GB": (19.5, 2039),
    "H100 SXM 80 GB": (66.9, 3350),
    "RTX 4090": (82.6, 1008),
}
SHAPES = [(16384, 1024, 4096, 8, 2), (4096, 512, 2048, 8, 2), (4096, 352, 352, 16, 2), (16384, 1024, 2048, 64, 2),
          (65536, 64, 128, 64, 2), (16, 1024, 4096, 8, 2), (1, 1024, 4096, 8, 2)]


def inference(t, d, h, e, k):
    """Name, operations and bytes of each part."""
    s, used = t * k, min(e, t * k)
    return [
        ("gating", 2 * t * d * e, 4 * (t * d + d * e + e) + 20 * s),
        ("dispatch", 0, 32 * s + 8 * (e + t + 2)),
        ("up", 2 * s * d * h, 4 * (min(s, t) * d + used * d * h + s * h)),
        ("down", 2 * s * h * d, 4 * (s * h + used * h * d + s * d)),
        ("combine", 2 * s * d, 4 * (s * d + t * d) + 20 * s),
        ("update", t * d, 12 * t * d),
    ]


def backward(t, d, h, e, k):
    """The same of the adjoints, in their order. What is added to (dx, gradients) is an input and an output."""
    s, used = t * k, min(e, t * k)
    return [
        ("update", t * d, 12 * t * d),  # dy; dx
        ("combine", 3 * s * d, 4 * (t * d + 2 * s * d) + 24 * s),  # du, z; dz, and what belongs to a pick
        ("down", 2 * s * h * d, 4 * (s * d + used * h * d + 3 * s * h)),  # dz, weights, before act; after it, adjoint
        ("up", 2 * s * d * h, 4 * (s * h + used * d * h + s * d)),
        ("weights", 4 * s * d * h, 4 * (2 * s * h + s * d + min(s, t) * d + 4 * used * d * h)),
        ("dispatch", s * d, 4 * (s * d + 2 * t * d) + 8 * (s + t)),
        ("gating", 4 * t * d * e, 4 * (3 * t * d + 3 * d * e + 2 * e + t * e) + 16 * s),  # x, dx, weights, q; picks
    ]


def short(number):
    """Three digits and a prefix: 275G."""
    for unit in ["", "k", "M", "G", "T"]:
        if number < 999.5 or unit == "T":
            return f"{number:.3g}{unit}"
        number /= 1000


def table(names, cells, last):
    """One row for each shape; cells(shape) are the columns but the first."""
    yield "| T / D / H / E / K | " + " | ".join(names) + f" | {last} |"
    yield "|---" * (len(names) + 2) + "|"
    for shape in SHAPES:
        yield "| " + " / ".join(map(str, shape)) + " | " + " | ".join(cells(shape)) + " |"


def report():
    for title, parts in (("Inference", inference), ("Backward", backward)):
        names = [name for name, _, _ in parts(*SHAPES[0])]

        def amounts(shape):
            rows = parts(*shape)
            rows.append(("layer", sum(r[1] for r in rows), sum(r[2] for r in rows)))
            return [f"{short(flop)} / {short(size)}" for _, flop, size in rows]

        yield f"**{title}: operations / bytes**"
        yield ""
        yield from table(names, amounts, "layer")
        yield ""
    for device, (tflops, gigabytes) in DEVICES.items():
        for title, parts in (("inference", inference), ("backward", backward)):
            names = [name for name, _, _ in parts(*SHAPES[0])]

            def times(shape):
                floors = [max(flop / tflops * 1e-6, size / gigabytes * 1e-3) for _, flop, size in parts(*shape)]
                return [f"{f:.1f}" for f in floors + [sum(floors)]]

            yield f"**{device}, {title}: {tflops} TFLOP/s, {gigabytes} GB/s**"
            yield ""
            yield from table(names, times, "layer, µs")
            yield ""


def main():
    text = "\n".join(report())
    if sys.argv[1:] != ["--write"]:
        print(text)
        return
    page = pathlib.Path(__file__).resolve().parents[2] / "docs/gpu_speed.md"
    between = re.compile(r"(?<=<!-- floors -->\n).*(?=<!-- /floors -->)", re.S)
    page.write_text(between.sub(lambda _: text, page.read_text(), count=1))


if __name__ == "__main__":
    main()
