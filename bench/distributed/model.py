"""Computes the seconds of one training step on a cluster, split into parts. If ranks differ, the busiest rank counts.

    N items of a rank, width D, hidden width H, E experts, K picks; R ranks, P of them share one set of experts
"""
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, log

import placement
from network import Network, Volume

PARTS = ["dense", "experts", "selection", "logits", "dispatch", "combine", "gradients", "optimizer"]


@dataclass(frozen=True)
class Model:
    """Sizes of a model. `dense_parameters` multiply each item, `other_parameters` (embeddings) do not.
    `attention_width` is heads · width of a head, summed over the layers."""
    layers: int
    dim: int
    hidden: int
    experts: int
    k: int
    products: int = 2
    groups: int = 1
    of_groups: int = 1
    dense_parameters: float = 0
    other_parameters: float = 0
    attention_width: float = 0
    sequence: int = 0
    items: int = 4096
    micro_batches: int = 1
    bytes: int = 4
    dispatch_bytes: float = 4
    gradient_bytes: int = 4
    optimizer_bytes: int = 28
    index_bytes: int = 8
    recompute: int = 0
    sharded_optimizer: int = 0

    def expert_parameters(self):
        return self.products * self.dim * self.hidden

    def replicated_parameters(self):
        """Returns the number of parameters that all ranks hold: gates (weights and biases), and all parameters outside
        the expert layers."""
        return self.dense_parameters + self.other_parameters + self.layers * (self.dim + 1) * self.experts

    def dense_flop(self):
        """Returns the operations of forward for one item: dense products, causal attention (half of the sequence,
        scores and sums), and scores of the gate."""
        return (2 * self.dense_parameters + 2 * self.sequence * self.attention_width +
                2 * self.layers * self.dim * self.experts)


@dataclass(frozen=True)
class Machine:
    """Speeds of a machine. `rates` are the flop/s of the grouped product for `rows` rows of each expert. If they
    cover only the product, a slot also moves dim_moves · D + hidden_moves · H values through memory in forward. If
    `whole_node`, the ranks of a node share the rates."""
    rows: tuple
    rates: tuple
    dense_rate: float
    memory: float
    kernel: float = 0.0
    kernels_per_layer: float = 0.0
    dim_moves: float = 0.0
    hidden_moves: float = 0.0
    selection: float = 0.0
    whole_node: bool = False

    def rate(self, rows):
        """Returns the flop/s for `rows` rows: linear in the logarithms of both, and constant outside of the measured
        points."""
        if rows <= self.rows[0]:
            return self.rates[0]
        if rows >= self.rows[-1]:
            return self.rates[-1]
        i = bisect_right(self.rows, rows)
        at = log(rows / self.rows[i - 1]) / log(self.rows[i] / self.rows[i - 1])
        return exp((1 - at) * log(self.rates[i - 1]) + at * log(self.rates[i]))


@dataclass(frozen=True)
class Options:
    """How a step distributes its work. The defaults describe gatefold."""
    exchange: str = "flat"       # hierarchical: equation (3) of network.py; forwarded: (4)
    collectives: str = "flat"    # hierarchical: logits and gradients move in two levels
    combine: str = "slots"       # sums: a rank adds up the slots of an item and sends the sum
    gate: str = "gathered"       # own: every rank selects experts only for its items
    overlap: str = "none"        # chunks: two halves of a layer overlap; batches: two micro-batches
    placement: str = "even"      # balanced, replicated: see placement.py
    skew: float = 0.0            # exponent of Zipf's law for the loads of experts
    loads: tuple = ()            # measured picks of each expert, used instead of skew
    expert_ranks: int = 0        # number P of ranks that share one set of experts; 0: all


@dataclass
class Step:
    """The predicted time of a step. `parts` are the seconds that are not hidden behind other work, and `hidden` are the
    hidden seconds. `moved` is the mean number of bytes that a rank sends, and `floor` a lower bound of this number."""
    parts: dict
    hidden: float
    moved: float
    floor: float
    ranks_of_item: float
    nodes_of_item: float
    parameters: float          # of the rank that holds most parameters
    busiest: float = field(default=1.0)  # load of the busiest rank divided by the mean

    @property
    def seconds(self):
        return sum(self.parts.values())


@dataclass(frozen=True)
class Routing:
    loads: tuple       # expected picks of each expert by one item
    places: tuple      # for each rank {expert: share of its picks}
    rank_loads: tuple  # expected slots of one item on each rank
    needed: tuple      # for each rank the probability that an item needs it
    node_loads: tuple
    node_needed: tuple


@lru_cache(maxsize=256)
def routing(model, options, ranks, per_node):
    weights = (placement.weights_of(options.loads, model.k) if options.loads
               else placement.zipf(model.experts, options.skew))
    picks = placement.Picks(weights, model.k, model.groups, model.of_groups)
    loads = picks.loads()
    deal = {"even": lambda: placement.even(model.experts, ranks),
            "balanced": lambda: placement.balanced(loads, ranks),
            "replicated": lambda: placement.replicated(loads, ranks)}
    places = deal[options.placement]()
    nodes = [placement.node_of(places[a:a + per_node]) for a in range(0, ranks, per_node)]
    return Routing(tuple(loads), tuple(places), tuple(placement.rank_load(loads, p) for p in places),
                   tuple(picks.needs(p) for p in places), tuple(placement.rank_load(loads, n) for n in nodes),
                   tuple(picks.needs(n) for n in nodes))


def volume(items, of_rank, of_node, per_node, forwarded):
    """Returns how many values the busiest rank sends or receives if each item sends of_rank[j] values to rank j."""
    ranks, nodes = len(of_rank), len(of_node)
    in_node = [sum(of_rank[a * per_node:(a + 1) * per_node]) for a in range(nodes)]
    total, within, between = sum(in_node), 0.0, 0.0
    for i, mine in enumerate(of_rank):
        a = i // per_node
        within = max(within, in_node[a] - mine, (per_node - 1) * mine)
        if not forwarded:
            between = max(between, total - in_node[a], (ranks - per_node) * mine)
    if forwarded:
        within *= nodes  # a rank also forwards items of the ranks that have its position in the other nodes
        of_all = sum(of_node)
        between = max(max(of_all - n, (nodes - 1) * n) for n in of_node)
    return Volume(items * within, items * between)


def pipeline(dispatch, experts, combine, chunks):
    """Returns the seconds of a layer in chunks. Exchanges run one after the other, all dispatches first. Experts run
    one after the other, too, while other chunks are exchanged."""
    wire, done, compute = 0.0, [], 0.0
    for _ in range(chunks):
        wire += dispatch
        compute = max(compute, wire) + experts
        done.append(compute)
    for end in done:
        wire = max(wire, end) + combine
    return wire


class Planned:
    """Predicts one training step of a model on a number of ranks."""

    def __init__(self, model, machine, network, ranks, options=Options()):
        self.model, self.machine, self.network, self.ranks, self.options = model, machine, network, ranks, options
        self.group = options.expert_ranks or ranks
        if ranks % self.group:
            raise ValueError(f"{ranks} ranks are not divisible into groups of {self.group}")
        self.per_node, self.nodes = network.per_node(self.group)
        key = Options(placement=options.placement, skew=options.skew, loads=options.loads)
        self.routing = routing(model, key, self.group, self.per_node)
        self.share = 1.0 / min(ranks, network.ranks_per_node) if machine.whole_node else 1.0
        self.chunks = 2 if options.overlap == "chunks" else 1

    def exchange(self, of_rank, of_node, bytes_each, chunks=1):
        forwarded = self.options.exchange == "forwarded"
        v = volume(self.model.items, of_rank, of_node, self.per_node, forwarded).scaled(bytes_each / chunks)
        times = {"flat": self.network.all_to_all, "hierarchical": self.network.hierarchical_all_to_all,
                 "forwarded": self.network.forwarded_all_to_all}
        return times[self.options.exchange](self.group, v)

    def rows(self, bytes_each):
        return self.exchange(self.routing.needed, self.routing.node_needed, bytes_each, self.chunks)

    def slots(self, bytes_each):
        return self.exchange(self.routing.rank_loads, self.routing.node_loads, bytes_each, self.chunks)

    def results(self, bytes_each):
        return self.slots(bytes_each) if self.options.combine == "slots" else self.rows(bytes_each)

    def dispatch(self):
        """Returns the seconds of dispatch for a chunk of a layer, forward and backward. If `index_bytes` is not 0,
        forward includes the numbers of rows and slots that shards send, and the index of the row that each slot reads.
        Backward then includes one value for the weight of each slot."""
        m = self.model
        forward, backward = self.rows(m.dim * m.dispatch_bytes), self.rows(m.dim * m.bytes)
        if m.index_bytes:
            counts = m.index_bytes * (1 + m.experts / self.group)
            per_rank = [1.0 / m.items] * self.group
            per_node = [self.per_node / m.items] * self.nodes
            forward += self.exchange(per_rank, per_node, counts) + self.slots(m.index_bytes)
            backward += self.slots(m.bytes)
        return forward, backward

    def combine(self):
        m = self.model
        forward = self.results(m.dim * m.bytes)
        return forward, forward + (self.slots(m.bytes) if m.index_bytes else 0.0)

    def experts(self):
        """Returns the seconds of the experts in forward, for a chunk of a layer on the busiest rank."""
        m, worst = self.model, 0.0
        moved = (self.machine.dim_moves * m.dim + self.machine.hidden_moves * m.hidden) * m.bytes / self.machine.memory
        for place in self.routing.places:
            seconds = 0.0
            for e, share in place.items():
                rows = m.items * self.group * self.routing.loads[e] * share / self.chunks
                seconds += rows * (2 * m.expert_parameters() / self.machine.rate(rows) + moved) / self.share
            worst = max(worst, seconds)
        return worst + self.machine.kernel * self.machine.kernels_per_layer / 3

    def selection(self):
        """Returns the seconds to select experts for all items whose logits are gathered, forward and backward."""
        items = self.model.items * (self.ranks if self.options.gate == "gathered" else 1)
        return 2 * items * self.model.experts * self.machine.selection / self.share

    def logits(self):
        if self.options.gate == "own":
            return 0.0
        m, hierarchical = self.model, self.options.collectives != "flat"
        return sum(self.network.all_gather(self.ranks, piece, hierarchical)
                   for piece in (4 * m.items * m.experts, 4 * m.index_bytes))

    def gradients(self):
        """Returns the seconds to sum gradients of parameters that all ranks hold, and of experts on several ranks."""
        m, hierarchical = self.model, self.options.collectives != "flat"
        replicated, own = self.parameters()
        seconds = self.network.all_reduce(self.ranks, replicated * m.gradient_bytes, hierarchical)
        apart = Network(max(1, min(self.ranks, self.network.ranks_per_node) // self.group), self.network.within,
                        self.network.between)
        seconds += apart.all_reduce(self.ranks // self.group, own * m.gradient_bytes, hierarchical)
        return seconds + self.copies(m.layers * m.expert_parameters() * m.gradient_bytes)

    def copies(self, bytes_of_expert):
        """Returns the seconds to sum gradients over the copies of an expert in the group, which send to each other
        directly."""
        copies = {}
        for place in self.routing.places:
            for e in place:
                copies[e] = copies.get(e, 0) + 1
        worst = max(sum((copies[e] - 1) / copies[e] for e in place) for place in self.routing.places)
        messages = max(sum(copies[e] - 1 for e in place) for place in self.routing.places)
        link = self.network.between if self.nodes > 1 else self.network.within
        return 2 * link.time(messages, worst * bytes_of_expert)

    def parameters(self):
        """Returns the numbers of parameters that all ranks hold, and of expert parameters on the rank with the most."""
        m = self.model
        return (m.replicated_parameters(),
                m.layers * m.expert_parameters() * max(len(place) for place in self.routing.places))

    def optimizer(self):
        m = self.model
        replicated, own = self.parameters()
        if m.sharded_optimizer:
            replicated, own = replicated / self.ranks, own * self.group / self.ranks
        return (replicated + own) * m.optimizer_bytes / (self.machine.memory * self.share)

    def step(self):
        m, o, chunks = self.model, self.options, self.chunks
        passes = 3 + m.recompute
        dense = passes * m.items * m.dense_flop() / (self.machine.dense_rate * self.share)
        experts, (d_forward, d_backward), (c_forward, c_backward) = self.experts(), self.dispatch(), self.combine()
        parts = dict.fromkeys(PARTS, 0.0)
        parts["dense"] = dense
        parts["experts"] = m.layers * passes * chunks * experts
        parts["selection"], parts["logits"] = m.layers * self.selection(), m.layers * self.logits()
        again = 1 + m.recompute  # a layer that is recomputed exchanges again
        parts["dispatch"] = m.layers * chunks * (again * d_forward + d_backward)
        parts["combine"] = m.layers * chunks * (again * c_forward + c_backward)
        hidden = 0.0
        if o.overlap == "chunks":
            exposed = m.layers * (again * (pipeline(d_forward, experts, c_forward, chunks) - chunks * experts) +
                                  pipeline(d_backward, 2 * experts, c_backward, chunks) - 2 * chunks * experts)
            hidden += self.expose(parts, exposed)
        for part in PARTS:
            parts[part] *= m.micro_batches
        if o.overlap == "batches":
            compute = parts["dense"] + parts["experts"] + parts["selection"]
            wire = parts["dispatch"] + parts["combine"] + parts["logits"]
            first = min(compute, wire) / m.micro_batches
            hidden += self.expose(parts, max(wire - compute, 0.0) + first, ("logits", "dispatch", "combine"))
        gradients = self.gradients()
        if o.overlap != "none":
            backward = 2 / passes * (dense + m.layers * passes * chunks * experts)
            exposed = max(gradients / m.layers, gradients - backward * (m.layers - 1) / m.layers)
            hidden, gradients = hidden + gradients - exposed, exposed
        parts["gradients"], parts["optimizer"] = gradients, self.optimizer()
        loads = self.routing.rank_loads
        return Step(parts, hidden, *self.bytes(), sum(self.routing.needed), sum(self.routing.node_needed),
                    sum(self.parameters()), max(loads) * len(loads) / sum(loads))

    @staticmethod
    def expose(parts, exposed, names=("dispatch", "combine")):
        """Scales the parts `names`, so that `exposed` seconds of them remain. Returns the seconds that are hidden."""
        whole = sum(parts[n] for n in names)
        for n in names:
            parts[n] *= exposed / whole if whole else 0.0
        return whole - exposed

    def bytes(self):
        """Returns the mean bytes that a rank sends in a step, and a lower bound. The lower bound has one row to each
        other rank that an item needs and one row back, in forward and again in backward. Both numbers include the
        gradients of the parameters that all ranks hold."""
        m, away = self.model, 1 - 1 / self.group
        rows, slots = sum(self.routing.needed) * away, sum(self.routing.rank_loads) * away
        back = slots if self.options.combine == "slots" else rows
        again, items = 1 + m.recompute, m.items * m.micro_batches * m.layers
        moved = items * m.dim * (rows * (again * m.dispatch_bytes + m.bytes) + back * (again + 1) * m.bytes)
        floor = items * m.dim * rows * (m.dispatch_bytes + 3 * m.bytes)
        if m.index_bytes:
            counts = (self.group - 1) * (1 + m.experts / self.group)
            moved += items * slots * (again * m.index_bytes + 2 * m.bytes)
            moved += m.micro_batches * m.layers * again * m.index_bytes * counts
        if self.options.gate == "gathered":
            moved += (self.ranks - 1) * (items * m.experts * 4 + m.micro_batches * m.layers * 4 * m.index_bytes)
        gradients = 2 * (1 - 1 / self.ranks) * m.gradient_bytes * self.parameters()[0]
        return moved + gradients, floor + gradients


def step(model, machine, network, ranks, options=Options()):
    return Planned(model, machine, network, ranks, options).step()
