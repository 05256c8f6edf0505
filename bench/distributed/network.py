"""Computes the seconds of exchanges between the ranks of a cluster. Its nodes have several ranks each, with fast links
within a node and slower links between nodes.

    time(link; messages, bytes) = latency + messages · message + bytes / bandwidth                              (1)

A rank uses both kinds of link at once. If a node has fewer links than ranks, each rank has a fixed share of them, and
other ranks cannot use an idle share.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Speed of a link: seconds before the first byte, seconds of the sender per message, and bytes per second of one
    rank."""
    latency: float
    message: float
    bandwidth: float

    def time(self, messages, volume):
        return self.latency + messages * self.message + volume / self.bandwidth if messages > 0 else 0.0


@dataclass(frozen=True)
class Volume:
    """Bytes that the busiest rank sends or receives (the larger) within its node, and between nodes."""
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
        """Returns the number of ranks in a node, and of nodes, for a group of `ranks` ranks."""
        per_node = min(self.ranks_per_node, ranks)
        if ranks % per_node:
            raise ValueError(f"{ranks} ranks do not fill nodes of {per_node}")
        return per_node, ranks // per_node

    def all_to_all(self, ranks, volume):
        """Returns the seconds if every rank sends a message to every other, W bytes within its node and B bytes to
        other nodes.

            max(time(within; m − 1, W), time(between; R − m, B)),   m ranks a node, R ranks                     (2)
        """
        per_node, _ = self.per_node(ranks)
        return max(self.within.time(per_node - 1, volume.within), self.between.time(ranks - per_node, volume.between))

    def hierarchical_all_to_all(self, ranks, volume):
        """Returns the seconds of an all-to-all in two steps. First, a rank sends data within its node, to the rank that
        has the same position in the node as the target. Then ranks of the same position in different nodes exchange
        data.

            time(within; m − 1, W + B (m − 1)/m) + time(between; R/m − 1, B)                                    (3)
        """
        per_node, nodes = self.per_node(ranks)
        gathered = volume.within + (volume.between * (per_node - 1) / per_node if nodes > 1 else 0.0)
        return self.within.time(per_node - 1, gathered) + self.between.time(nodes - 1, volume.between)

    def forwarded_all_to_all(self, ranks, volume):
        """Returns the seconds of an all-to-all that sends data once to each node that needs the data. A rank of this
        node forwards the data while the rest arrives. `volume.within` also contains the data that a rank forwards.

            max(time(within; m − 1, W), time(between; R/m − 1, B))                                              (4)
        """
        per_node, nodes = self.per_node(ranks)
        return max(self.within.time(per_node - 1, volume.within), self.between.time(nodes - 1, volume.between))

    def all_gather(self, ranks, piece, hierarchical=False):
        """Returns the seconds to send `piece` bytes of every rank to all others. Hierarchical: first between ranks
        of the same place in their nodes, then within each node."""
        per_node, nodes = self.per_node(ranks)
        if hierarchical:
            return (self.between.time(nodes - 1, (nodes - 1) * piece) +
                    self.within.time(per_node - 1, (per_node - 1) * nodes * piece))
        return self.all_to_all(ranks, Volume((per_node - 1) * piece, (ranks - per_node) * piece))

    def all_reduce(self, ranks, values, hierarchical=False):
        """Returns the seconds to sum `values` bytes over all ranks: every rank sums a part, then all parts are
        gathered. Hierarchical: first within the node, so that a rank exchanges a part of the sum with other nodes."""
        per_node, nodes = self.per_node(ranks)
        if hierarchical:
            part = values / per_node
            return 2 * (self.within.time(per_node - 1, part * (per_node - 1)) +
                        self.between.time(nodes - 1, part * (nodes - 1) / nodes))
        part = values / ranks
        return 2 * self.all_to_all(ranks, Volume((per_node - 1) * part, (ranks - per_node) * part))
