"""Lets bench/quantised.cpp time a layer of a Python library in turn with its own layer.

quantised.cpp starts a script such as layer_torch.py in a process of its own. The weights and the items are in its
shared memory. Commands arrive as lines on stdin, and each gets one line as an answer on the original stdout:

    output ITEMS FIRST           computes the items from FIRST on, and writes the result into the shared memory
    time ITEMS FIRST,COPY ...    runs the batches in turn, each with one copy of the layer, and returns the seconds
"""
import gc
import os
import sys
import time

import numpy

THREADS = len(os.sched_getaffinity(0))
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # sends the output of libraries to stderr, also during their import


class Weights:
    """The float weights of one layer: router [E, D], gate and up [E, H, D], down [E, D, H]."""

    def __init__(self, path, dim, hidden, experts, picks):
        self.dim, self.hidden, self.experts, self.picks = dim, hidden, experts, picks
        values = numpy.memmap(path, numpy.float32, "r")
        shapes = [(experts, dim), (experts, hidden, dim), (experts, hidden, dim), (experts, dim, hidden)]
        parts = numpy.split(values[:sum(map(numpy.prod, shapes))], numpy.cumsum([numpy.prod(s) for s in shapes])[:-1])
        self.router, self.gate, self.up, self.down = (p.reshape(s) for p, s in zip(parts, shapes))


def quantised(weights, bits, block):
    """Rounds weights [..., K] to integers with one scale for each `block` values of a row. Returns the integers
    [..., K / block, block] in [1 - 2^(bits-1), 2^(bits-1) - 1] and the scales [..., K / block]."""
    blocks = weights.reshape(*weights.shape[:-1], -1, block)
    largest = 2 ** (bits - 1) - 1
    scale = numpy.maximum(numpy.abs(blocks).max(axis=-1), 1e-30) / largest
    return numpy.rint(blocks / scale[..., None]).astype(numpy.int8), scale.astype(numpy.float32)


def serve(make):
    """Answers the commands until stdin ends.

    make(variant, weights) returns two functions: prepare(x) converts items [T, D] of float32 to the library's type,
    which is not timed, and forward(x) returns y [T, D]. It may raise ImportError or NotImplementedError."""
    variant, weights_path, exchange_path, *sizes = sys.argv[1:]
    dim, hidden, experts, picks, items, copies = map(int, sizes)
    exchange = numpy.memmap(exchange_path, numpy.float32, "r+")
    x, y = exchange[: items * dim].reshape(items, dim), exchange[items * dim:].reshape(-1, dim)
    try:
        weights = Weights(weights_path, dim, hidden, experts, picks)
        layers = [make(variant, weights) for _ in range(copies)]
        del weights
        gc.collect()
    except Exception as error:
        return answers.write(f"absent {type(error).__name__}: {error}".replace("\n", " ") + "\n")
    answers.write("ready\n")
    prepared = {}

    def batch(count, first, copy):
        prepare, forward = layers[copy]
        if (count, first) not in prepared:
            prepared[count, first] = prepare(x[first: first + count])
        return forward, prepared[count, first]

    for line in sys.stdin:
        command, count, *batches = line.split()
        count = int(count)
        if command == "output":
            forward, input_ = batch(count, int(batches[0]), 0)
            y[:count] = numpy.asarray(forward(input_)).reshape(count, dim)
            answers.write("done\n")
        else:
            calls = [batch(count, *map(int, b.split(","))) for b in batches]
            begin = time.perf_counter()
            for forward, input_ in calls:
                forward(input_)
            answers.write(f"{time.perf_counter() - begin}\n")
