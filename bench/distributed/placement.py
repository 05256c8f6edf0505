"""Computes which experts an item picks, where they are, and how many ranks an item needs.

An item picks a set S of K distinct experts with weights w:

    P(S) = Π_{e∈S} w_e / e_K(w),   e_K: the elementary symmetric polynomial                                     (1)

Equal weights mean K random experts of E. If a rank serves the share f_e of the picks of each expert e, an item does not
need this rank with probability

    [x^K] Π_e (1 + w_e (1 − f_e) x) / e_K(w),   [x^K]: the coefficient of x^K                                   (2)

The expected number of distinct ranks is the sum of 1 − (2) over all ranks, exactly.
"""
import heapq
import math
import random


def multiply(series, weight):
    """Multiplies the power series by (1 + weight x), in place."""
    for k in range(len(series) - 1, 0, -1):
        series[k] += weight * series[k - 1]


def divide(series, weight):
    """Divides the power series by (1 + weight x), in place."""
    for k in range(1, len(series)):
        series[k] -= weight * series[k - 1]


class Picks:
    """The distribution (1) of picks. With groups, the experts are in `groups` equal groups. An item first takes
    `of_groups` of them at random, and picks its experts there. This needs equal weights."""

    def __init__(self, weights, k, groups=1, of_groups=1):
        if not 0 < k <= len(weights):
            raise ValueError(f"{k} picks of {len(weights)} experts")
        if groups != of_groups and len(set(weights)) > 1:
            raise ValueError("limited groups need equal loads")
        total = sum(weights)
        self.weights = [w / total for w in weights]
        self.k, self.groups, self.of_groups = k, groups, of_groups
        self.known = {}
        self.series = self.series_of(len(weights) * of_groups // groups)

    def series_of(self, experts):
        series = [1.0] + [0.0] * self.k
        for w in self.weights[:experts]:
            multiply(series, w)
        return series

    def loads(self):
        """Returns the expected picks of each expert by one item. Their sum is K."""
        if self.groups != self.of_groups:
            return [self.k / len(self.weights)] * len(self.weights)
        loads = []
        for w in self.weights:
            rest = self.series[:-1]
            divide(rest, w)
            loads.append(w * rest[-1] / self.series[-1])
        return loads

    def needs(self, shares):
        """Returns the probability that an item needs a rank that serves these shares, {expert: share}."""
        if self.groups != self.of_groups:
            return self.needs_of_groups(shares)
        rest = list(self.series)
        for e, share in shares.items():
            divide(rest, self.weights[e])
            multiply(rest, self.weights[e] * (1 - share))
        return min(1.0, max(0.0, 1 - rest[-1] / self.series[-1]))

    def needs_of_groups(self, shares):
        """Computes needs() for limited groups. The number of groups taken is a second exponent of the series."""
        size, of_group = len(self.weights) // self.groups, {}
        for e, share in shares.items():
            of_group.setdefault(e // size, []).append(share)
        touched = tuple(sorted(tuple(sorted(s)) for s in of_group.values()))
        if touched not in self.known:
            taken = [[1.0] + [0.0] * self.k] + [[0.0] * (self.k + 1) for _ in range(self.of_groups)]
            for g in range(self.groups):
                series = self.series_of(size)
                for share in touched[g] if g < len(touched) else ():
                    divide(series, self.weights[0])
                    multiply(series, self.weights[0] * (1 - share))
                for n in range(self.of_groups, 0, -1):
                    for k in range(self.k + 1):
                        taken[n][k] += sum(taken[n - 1][i] * series[k - i] for i in range(k + 1))
            choices = math.comb(self.groups, self.of_groups)
            self.known[touched] = 1 - taken[-1][-1] / (choices * self.series[-1])
        return self.known[touched]


def zipf(experts, exponent, seed=1):
    """Returns the weights 1, 2^−s, 3^−s, … in random order, with s = `exponent`; s = 0 gives equal weights."""
    weights = [(e + 1.0) ** -exponent for e in range(experts)]
    random.Random(seed).shuffle(weights)
    return weights


def weights_of(loads, k, rounds=200):
    """Returns the weights for which (1) has the measured loads (in any unit), by iterating w ← w · wanted /
    expected."""
    total = sum(loads)
    wanted = [k * load / total for load in loads]
    if max(wanted) >= 1:
        raise ValueError("an expert has more picks than there are items")
    weights = list(wanted)
    for _ in range(rounds):
        expected = Picks(weights, k).loads()
        weights = [w * want / have if have else 0.0 for w, want, have in zip(weights, wanted, expected)]
        if max(abs(want - have) for want, have in zip(wanted, expected)) < 1e-12 * k:
            break
    return weights


def even(experts, ranks):
    """Places experts on ranks in order, as gatefold's Range::of does."""
    bounds = [experts * j // ranks for j in range(ranks + 1)]
    return [{e: 1.0 for e in range(bounds[j], bounds[j + 1])} for j in range(ranks)]


def deal(pieces, ranks):
    """Places pieces (load, expert, share): the largest first, on the rank with the least load that has room. Loads
    that differ only by rounding are equal."""
    room = -(-len(pieces) // ranks)
    places = [{} for _ in range(ranks)]
    heap = [(0.0, j) for j in range(ranks)]
    for load, e, share in sorted(pieces, key=lambda p: (-round(p[0], 12), p[1])):
        aside = []
        while heap and e in places[heap[0][1]]:
            aside.append(heapq.heappop(heap))
        if not heap:  # all ranks with room have a copy, so one of them gets a second copy
            heap, aside = aside, []
        have, j = heapq.heappop(heap)
        places[j][e] = places[j].get(e, 0.0) + share
        for item in aside:
            heapq.heappush(heap, item)
        if len(places[j]) < room:
            heapq.heappush(heap, (round(have + load, 12), j))
    return places


def balanced(loads, ranks):
    """Places every expert on one rank, with the greedy algorithm of deal()."""
    return deal([(load, e, 1.0) for e, load in enumerate(loads)], ranks)


def replicated(loads, ranks, spare=1):
    """Places experts and copies of experts. The copies fill `spare` additional places on every rank, and all places
    that are still empty. Each copy goes to the expert with the most load per copy. The copies of an expert serve equal
    parts of its items."""
    copies = [1] * len(loads)
    places = max(-(-len(loads) // ranks), 1) * ranks + spare * ranks
    heap = [(-round(load, 12), e) for e, load in enumerate(loads)]
    heapq.heapify(heap)
    for _ in range(places - len(loads)):
        while heap and copies[heap[0][1]] >= ranks:
            heapq.heappop(heap)
        if not heap:
            break
        _, e = heapq.heappop(heap)
        copies[e] += 1
        heapq.heappush(heap, (-round(loads[e] / copies[e], 12), e))
    return deal([(loads[e] / n, e, 1.0 / n) for e, n in enumerate(copies) for _ in range(n)], ranks)


def node_of(places):
    """Returns the shares {expert: share} that the ranks of a node serve together."""
    shares = {}
    for place in places:
        for e, share in place.items():
            shares[e] = shares.get(e, 0.0) + share
    return shares


def rank_load(loads, place):
    return sum(loads[e] * share for e, share in place.items())
