"""What all golden files share: seeded inputs, one case with all its gradients, and the format.

A file holds several cases, each a line `case name` and then tensors: a line `name rank extents…`, then the values, 8
bytes of little-endian float64 each, and a line's end; rank 0 are options. Scalar of all gradients:

    f = <y, dy> + <carry after, dafter> + auxiliary losses
"""

import pathlib
import struct
import zlib

import torch

torch.set_default_dtype(torch.float64)
HERE = pathlib.Path(__file__).parent


class Random:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, *shape, low=-1.0, high=1.0):
        return low + (high - low) * torch.rand(shape, generator=self.generator)


def part(tensors, prefix):
    """The tensors whose names begin with `prefix.`, without it."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + ".")}


def under(prefix, tensors):
    return {f"{prefix}.{name}": t for name, t in tensors.items()}


class TooClose(Exception):
    """A choice that rounding could decide."""


def far_apart(values, dim=-1):
    """What is sorted here must be clear; equal values are meant to be equal."""
    gaps = values.detach().sort(dim=dim).values.diff(dim=dim)
    if ((gaps > 0) & (gaps < 1e-3)).any():
        raise TooClose


def clear(make, name):
    """make(seed) of the first seed of the case's own series whose choices are clear."""
    for attempt in range(200):
        try:
            return make(zlib.crc32(f"{name} {attempt}".encode()))
        except TooClose:
            continue
    raise ValueError(f"no seed gives clear choices: {name}")


def record(options, x, dy, run, params=None, carry=None, dafter=None, given=None):
    """One case. run(params, x, carry) -> y, carry after, auxiliary losses."""
    params, carry = params or {}, carry or {}
    for t in [x, *params.values(), *carry.values()]:
        t.requires_grad_()
    y, after, auxiliary = run(params, x, carry)
    f = (y * dy).sum() + sum(auxiliary) + sum((after[name] * dafter[name]).sum() for name in carry)
    f.backward()

    def grad(t):
        return torch.zeros_like(t) if t.grad is None else t.grad

    out = under("options", options) | {"x": x, "dy": dy, "y": y, "dx": grad(x)} | (given or {})
    for name in carry:
        out |= {"carry." + name: carry[name], "after." + name: after[name]}
        out |= {"dafter." + name: dafter[name], "dcarry." + name: grad(carry[name])}
    if auxiliary:
        out["auxiliary"] = torch.stack([torch.as_tensor(a) for a in auxiliary])
    out |= under("params", params)
    return out | under("grads", {name: grad(t) for name, t in params.items()})


def entry(name, shape, values):
    """A tensor as its file holds it."""
    header = " ".join([name, str(len(shape)), *map(str, shape)]) + "\n"
    return header.encode() + struct.pack(f"<{len(values)}d", *values) + b"\n"


def write(file, cases):
    """cases: name -> tensors."""
    path = HERE / (file + ".f64")
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as to:
        for case, tensors in cases.items():
            to.write(f"case {case}\n".encode())
            for name, value in tensors.items():
                t = torch.as_tensor(value, dtype=torch.float64).detach()
                if not t.isfinite().all():
                    raise ValueError(f"{file} {case} {name} is not finite")
                to.write(entry(name, t.shape, t.flatten().tolist()))
