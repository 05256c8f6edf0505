#!/usr/bin/env python3
"""The floor of one layer's inference on paper: for each kernel the larger of its arithmetic over a device's published
float rate and its bytes (each input read once, each output written once) over its memory bandwidth.

    T tokens, D model, H hidden, E experts, K picks; S = T·K slots; float values, 64-bit indices.
Prints a table in Markdown: microseconds for each device.
"""

DEVICES = {  # published: TFLOP/s of float without tensor cores, GB/s
    "A100 SXM 80 GB": (19.5, 2039),
    "H100 SXM 80 GB": (66.9, 3350),
    "RTX 4090": (82.6, 1008),
}
SHAPES = [(16384, 1024, 4096, 8, 2), (4096, 512, 2048, 8, 2), (4096, 352, 352, 16, 2), (16384, 1024, 2048, 64, 2),
          (65536, 64, 128, 64, 2), (16, 1024, 4096, 8, 2), (1, 1024, 4096, 8, 2)]


def kernels(t, d, h, e, k):
    """Name, operations and bytes of each kernel."""
    s, used = t * k, min(e, t * k)
    return [
        ("gating", 2 * t * d * e, 4 * (t * d + d * e + e) + 20 * s),
        ("dispatch", 0, 32 * s + 8 * (e + t + 2)),
        ("up", 2 * s * d * h, 4 * (min(s, t) * d + used * d * h + s * h)),
        ("down", 2 * s * h * d, 4 * (s * h + used * h * d + s * d)),
        ("combine", 2 * s * d, 4 * (s * d + t * d) + 20 * s),
        ("update", t * d, 12 * t * d),
    ]


def main():
    names = [name for name, _, _ in kernels(*SHAPES[0])]
    for device, (tflops, gigabytes) in DEVICES.items():
        print(f"\n{device}: {tflops} TFLOP/s, {gigabytes} GB/s\n")
        print("| T / D / H / E / K | " + " | ".join(names) + " | layer, µs |")
        print("|---" * (len(names) + 2) + "|")
        for shape in SHAPES:
            floors = [max(flop / tflops * 1e-6, size / gigabytes * 1e-3) for _, flop, size in kernels(*shape)]
            print("| " + " / ".join(map(str, shape)) + " | " + " | ".join(f"{f:.1f}" for f in floors) + f" | {sum(floors):.1f} |")


if __name__ == "__main__":
    main()
