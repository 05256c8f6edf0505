"""Seconds that exchanges take between the ranks of a cluster: nodes of some ranks each, fast links within a node and
slower ones between nodes.

    time(link; messages, bytes) = latency + messages · message + bytes / bandwidth                              (1)

A rank sends over both kinds of link at once. Its share of the links between nodes is its own: a node with fewer links
than ranks gives each a part, and what one rank does not use helps no other.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Seconds before the first byte, seconds of the sender for each message, bytes a second of one rank."""
    latency: float
    message: float
    bandwidth: float

    def time(self, messages, volume):
        return self.latency + messages * self.message + volume / self.bandwidth if messages > 0 else 0.0


@dataclass(frozen=True)
class Volume:
    """Bytes that the busiest rank gives to, or takes from, others of its node and ranks of other nodes: the larger."""
    within: float = 0.0
    between: float = 0.0

    def scaled(self, factor):
        return Volume(self.within * factor, self.between * factor)


@dataclass(frozen=True)
class Network:
    ranks_per_node: int
    within: Link
    between: Link

    def per_node(self, ranks):
        """Ranks of a node, and nodes, of a group of so many."""
        per_node = min(self.ranks_per_node, ranks)
        if ranks % per_node:
            raise ValueError(f"{ranks} ranks do not fill nodes of {per_node}")
        return per_node, ranks // per_node

    def all_to_all(self, ranks, volume):
        """Every rank sends a message to every other.

            max(time(within; m − 1, W), time(between; R − m, B)),   m ranks a node, R ranks                     (2)
        """
        per_node, _ = self.per_node(ranks)
        return max(self.within.time(per_node - 1, volume.within), self.between.time(ranks - per_node, volume.between))

    def hierarchical_all_to_all(self, ranks, volume):
        """First within the node, to the rank that has the place of the target, then between ranks of one place.

            time(within; m − 1, W + B (m − 1)/m) + time(between; R/m − 1, B)                                    (3)
        """
        per_node, nodes = self.per_node(ranks)
        gathered = volume.within + (volume.between * (per_node - 1) / per_node if nodes > 1 else 0.0)
        return self.within.time(per_node - 1, gathered) + self.between.time(nodes - 1, volume.between)

    def forwarded_all_to_all(self, ranks, volume):
        """Between nodes what a node needs, once; in the node it is sent on while the rest arrives. `volume.within` is
        all that the node's ranks give each other then.

            max(time(within; m − 1, W), time(between; R/m − 1, B))                                              (4)
        """
        per_node, nodes = self.per_node(ranks)
        return max(self.within.time(per_node - 1, volume.within), self.between.time(nodes - 1, volume.between))

    def all_gather(self, ranks, piece, hierarchical=False):
        """Every rank has `piece` bytes that all others need. Hierarchical: first between ranks of one place, then
        within the node what came."""
        per_node, nodes = self.per_node(ranks)
        if hierarchical:
            return (self.between.time(nodes - 1, (nodes - 1) * piece) +
                    self.within.time(per_node - 1, (per_node - 1) * nodes * piece))
        return self.all_to_all(ranks, Volume((per_node - 1) * piece, (ranks - per_node) * piece))

    def all_reduce(self, ranks, values, hierarchical=False):
        """The sum of `values` bytes of each rank, on all of them: every rank adds a part, then all parts are gathered.
        Hierarchical: first within the node, so that a rank takes a part of the node's sum to the other nodes."""
        per_node, nodes = self.per_node(ranks)
        if hierarchical:
            part = values / per_node
            return 2 * (self.within.time(per_node - 1, part * (per_node - 1)) +
                        self.between.time(nodes - 1, part * (nodes - 1) / nodes))
        part = values / ranks
        return 2 * self.all_to_all(ranks, Volume((per_node - 1) * part, (ranks - per_node) * part))
