"""Shared code of the peers in Python: shapes, random weights, timing, and the JSON file that table.py reads."""
import json
import os
import statistics
import sys
import time

import numpy

THREADS = len(os.sched_getaffinity(0))
# T, D, H, E, K
SHAPES = [(4096, 512, 2048, 8, 2), (4096, 352, 352, 16, 2), (512, 512, 2048, 8, 2), (8192, 64, 128, 64, 2),
          (16, 512, 2048, 8, 2), (1, 512, 2048, 8, 2)]


def weights(shape):
    """Returns float32 arrays x [T, D], gate [D, E], up [E, D, H], down [E, H, D]."""
    t, d, h, e, _ = shape
    random = numpy.random.default_rng(1)
    draw = lambda scale, *extents: (random.standard_normal(extents) * scale).astype(numpy.float32)
    return draw(1, t, d), draw(d**-0.5, d, e), draw(d**-0.5, e, d, h), draw(h**-0.5, e, h, d)


def expected(shape):
    """Returns the output y in double, computed item by item."""
    x, gate, up, down = (w.astype(numpy.float64) for w in weights(shape))
    y = numpy.zeros_like(x)
    for n, item in enumerate(x):
        logits = item @ gate
        chosen = numpy.argsort(-logits)[: shape[4]]
        weight = numpy.exp(logits[chosen] - logits[chosen[0]])
        for e, w in zip(chosen, weight / weight.sum()):
            v = item @ up[e]
            y[n] += w * ((0.5 * v * (1 + numpy.tanh(0.7978845608 * (v + 0.044715 * v**3)))) @ down[e])
    return y


def milliseconds(f, limit=3.0):
    """Returns the median time of a call in milliseconds, measured for at most `limit` seconds."""
    f()
    begin, samples = time.perf_counter(), []
    while len(samples) < 3 or (len(samples) < 200 and time.perf_counter() - begin < limit):
        start = time.perf_counter()
        f()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples) * 1e3


def rows_of(peer, forward, row="", tolerance=5e-3):
    """Times the function that forward(shape) returns, which computes y. Returns one result for each shape, named after
    `row`, or after layer_forward if `row` is empty."""
    small = (32, 24, 40, 4, 2)
    y = numpy.asarray(forward(small)()).reshape(32, 24)
    assert numpy.allclose(y, expected(small), atol=tolerance), "the output differs from that of the layer"
    rows = []
    for shape in SHAPES[1:2] + SHAPES[4:] if "--quick" in sys.argv else SHAPES:
        ms = milliseconds(forward(shape), 0.5 if "--quick" in sys.argv else 3)
        name = "peer_{}/{}T:{}/D:{}/H:{}/E:{}/K:{}".format(peer, row, *shape)
        print(f"{name}  {ms:.3f} ms")
        rows.append({"name": name, "real_time": ms, "time_unit": "ms"})
    return rows


def write(version, rows):
    """Writes the JSON file of a program: python3 moe_<peer>.py OUTPUT.json [--quick]"""
    with open(sys.argv[1], "w") as file:
        json.dump({"context": {"version": version}, "benchmarks": rows}, file)
