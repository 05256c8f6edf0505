"""Tests network.py against its equations with numbers computed by hand."""
import unittest

import paths  # noqa: F401
from network import Link, Network, Volume

# Round numbers, in seconds and bytes per second.
FAST = Link(latency=1.0, message=0.25, bandwidth=100.0)
SLOW = Link(latency=2.0, message=0.5, bandwidth=10.0)
NETWORK = Network(4, FAST, SLOW)


class Exchanges(unittest.TestCase):
    def test_one_rank_has_nobody_to_talk_to(self):
        volume = Volume(0, 0)
        for time in (NETWORK.all_to_all(1, volume), NETWORK.hierarchical_all_to_all(1, volume),
                     NETWORK.forwarded_all_to_all(1, volume), NETWORK.all_gather(1, 100),
                     NETWORK.all_gather(1, 100, True), NETWORK.all_reduce(1, 100), NETWORK.all_reduce(1, 100, True)):
            self.assertEqual(time, 0)

    def test_within_a_node_all_are_the_same(self):
        volume, by_hand = Volume(300, 0), 1 + 3 * 0.25 + 300 / 100
        for of in (NETWORK.all_to_all, NETWORK.hierarchical_all_to_all, NETWORK.forwarded_all_to_all):
            self.assertEqual(of(4, volume), by_hand)

    def test_flat(self):
        # 12 ranks: a rank sends 3 messages within its node and 8 to other nodes.
        self.assertEqual(NETWORK.all_to_all(12, Volume(300, 80)), max(1 + 0.75 + 3, 2 + 4 + 8))
        self.assertEqual(NETWORK.all_to_all(12, Volume(3000, 80)), 1 + 0.75 + 30)

    def test_hierarchical(self):
        # Within the node: the bytes for the node, and 3/4 of the bytes for other nodes. Then 2 messages to other nodes.
        self.assertEqual(NETWORK.hierarchical_all_to_all(12, Volume(300, 80)),
                         (1 + 0.75 + (300 + 60) / 100) + (2 + 1 + 8))

    def test_forwarded(self):
        self.assertEqual(NETWORK.forwarded_all_to_all(12, Volume(300, 80)), max(1 + 0.75 + 3, 2 + 1 + 8))

    def test_all_gather(self):
        self.assertEqual(NETWORK.all_gather(12, 10), max(1 + 0.75 + 0.3, 2 + 4 + 8))
        self.assertEqual(NETWORK.all_gather(12, 10, True), (2 + 1 + 2) + (1 + 0.75 + 3 * 30 / 100))

    def test_all_reduce(self):
        # 120 bytes in parts of 10: two exchanges, each with 3 parts within the node and 8 to other nodes.
        self.assertEqual(NETWORK.all_reduce(12, 120), 2 * max(1 + 0.75 + 0.3, 2 + 4 + 8))
        # Parts of 30 within the node, then two thirds of 30 between nodes.
        self.assertEqual(NETWORK.all_reduce(12, 120, True), 2 * ((1 + 0.75 + 0.9) + (2 + 1 + 2)))

    def test_nodes_are_full(self):
        with self.assertRaises(ValueError):
            NETWORK.all_to_all(6, Volume())
        self.assertEqual(NETWORK.per_node(2), (2, 1))

    def test_more_of_anything_is_not_faster(self):
        for of in (NETWORK.all_to_all, NETWORK.hierarchical_all_to_all, NETWORK.forwarded_all_to_all):
            for ranks in (2, 4, 8, 64):
                base = of(ranks, Volume(50, 70))
                self.assertGreaterEqual(of(ranks, Volume(60, 70)), base)
                self.assertGreaterEqual(of(ranks, Volume(50, 80)), base)
                self.assertGreaterEqual(of(2 * ranks if ranks >= 4 else 4, Volume(50, 70)), base)


class FlatOrHierarchical(unittest.TestCase):
    """The difference of the two algorithms, with latencies L, seconds per message o, m ranks per node and n nodes:

        hierarchical − flat = L_w + (m − 1) o_w + (W + B (m − 1)/m)/b_w − (n − 1)(m − 1) o_b

    It holds if the links between nodes limit the flat one. Both send the same bytes between nodes. The hierarchical one
    has fewer messages between nodes and one more exchange within the node.
    """

    def difference(self, nodes, volume):
        ranks = 4 * nodes
        return NETWORK.hierarchical_all_to_all(ranks, volume) - NETWORK.all_to_all(ranks, volume)

    def test_latency_bound(self):
        # Without bytes, the difference is 1 + 0.75 − (n − 1)·3·0.5: 0.25 with two nodes, and negative from three nodes
        # on.
        self.assertAlmostEqual(self.difference(2, Volume()), 0.25, delta=1e-12)
        self.assertAlmostEqual(self.difference(3, Volume()), -1.25, delta=1e-12)
        self.assertAlmostEqual(self.difference(100, Volume()), 1.75 - 148.5, delta=1e-12)

    def test_bandwidth_bound(self):
        # With 100 nodes and W = 0, the difference 1.75 − 148.5 + 0.75 B/100 is positive from B = 19,567 on.
        self.assertLess(self.difference(100, Volume(0, 19566)), 0)
        self.assertGreater(self.difference(100, Volume(0, 19568)), 0)
        self.assertGreater(self.difference(100, Volume(0, 1e6)), 0)


if __name__ == "__main__":
    unittest.main()
