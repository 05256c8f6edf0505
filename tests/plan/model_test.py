"""Tests model.py against arithmetic by hand, naive loops, and properties that must hold for any numbers."""
import itertools
import random
import unittest
from dataclasses import replace

import paths  # noqa: F401
from model import PARTS, Machine, Model, Options, Planned, pipeline, step, volume
from network import Link, Network

MACHINE = Machine(rows=(1, 16, 1024), rates=(1e9, 8e9, 64e9), dense_rate=50e9, memory=20e9, kernel=1e-5,
                  kernels_per_layer=6, selection=1e-9)
NETWORK = Network(4, Link(2e-6, 1e-6, 40e9), Link(5e-6, 3e-6, 5e9))
MODEL = Model(layers=3, dim=64, hidden=128, experts=16, k=2, dense_parameters=1e5, items=512, gradient_bytes=4)
EXCHANGES = ("logits", "dispatch", "combine", "gradients")


def seconds(model=MODEL, machine=MACHINE, network=NETWORK, ranks=16, **options):
    return step(model, machine, network, ranks, Options(**options)).seconds


class Rates(unittest.TestCase):
    def test_interpolation(self):
        for rows, rate in ((0.1, 1e9), (1, 1e9), (16, 8e9), (1024, 64e9), (1e6, 64e9)):
            self.assertAlmostEqual(MACHINE.rate(rows) / rate, 1, delta=1e-12)
        self.assertAlmostEqual(MACHINE.rate(4), (1e9 * 8e9) ** 0.5, delta=1)
        self.assertAlmostEqual(MACHINE.rate(128), (8e9 * 64e9) ** 0.5, delta=1)


class OneRank(unittest.TestCase):
    def test_computes_only(self):
        for options in ({}, {"exchange": "hierarchical"}, {"exchange": "forwarded", "combine": "sums"},
                        {"gate": "own"}, {"collectives": "hierarchical"}):
            s = step(MODEL, MACHINE, NETWORK, 1, Options(**options))
            self.assertTrue(all(s.parts[p] == 0 for p in EXCHANGES))
            self.assertEqual((s.moved, s.floor, s.hidden), (0, 0, 0))

    def test_by_hand(self):
        parts = step(MODEL, MACHINE, NETWORK, 1).parts
        # 3 passes of 512 items at 50e9 flop/s: 2·1e5 flop of dense parameters, and 2·3·64·16 flop of the gates.
        self.assertAlmostEqual(parts["dense"], 3 * 512 * (2e5 + 6144) / 50e9, delta=1e-15)
        # 16 experts with 64 rows each. 64 is a third of the way from 16 to 1024 in logarithms, so the rate is
        # 8e9·8^(1/3). A slot has 4·64·128 flop; a layer has 6 kernels.
        rate = 8e9 * 8 ** (1 / 3)
        self.assertAlmostEqual(parts["experts"], 3 * (3 * 1024 * 4 * 64 * 128 / rate + 6e-5), delta=1e-12)
        self.assertAlmostEqual(parts["selection"], 3 * 2 * 512 * 16 * 1e-9, delta=1e-15)
        self.assertAlmostEqual(parts["optimizer"], 28 * (1e5 + 3 * 65 * 16 + 3 * 16 * 2 * 64 * 128) / 20e9, delta=1e-12)


    def test_further_numbers_by_hand(self):
        model = replace(MODEL, sequence=100, attention_width=30, other_parameters=7e3, recompute=1)
        machine = replace(MACHINE, kernel=0, dim_moves=5, hidden_moves=2)
        parts, base = step(model, machine, NETWORK, 1).parts, step(MODEL, MACHINE, NETWORK, 1).parts
        # Four passes, and 2·100·30 flop of attention for each item.
        self.assertAlmostEqual(parts["dense"], 4 * 512 * (2e5 + 6144 + 6000) / 50e9, delta=1e-15)
        # 1024 slots move 5·64 + 2·128 floats each.
        products = (base["experts"] - 3 * 6e-5) / 3 + 3 * 1024 * 576 * 4 / 20e9
        self.assertAlmostEqual(parts["experts"], 4 * products, delta=1e-12)
        self.assertAlmostEqual(parts["optimizer"] - base["optimizer"], 28 * 7e3 / 20e9, delta=1e-15)


class SixteenRanks(unittest.TestCase):
    """Each rank has one expert, and each node has four ranks."""

    def test_experts(self):
        # 512·16 items pick 2 of 16 experts, so each expert has 1024 rows.
        parts = step(MODEL, MACHINE, NETWORK, 16).parts
        self.assertAlmostEqual(parts["experts"], 3 * (3 * 1024 * 4 * 64 * 128 / 64e9 + 6e-5), delta=1e-12)

    def test_sharded_optimizer(self):
        replicated, own = 1e5 + 3 * 65 * 16, 3 * 2 * 64 * 128
        for sharded, values in ((0, replicated + own), (1, replicated / 16 + own)):
            parts = step(replace(MODEL, sharded_optimizer=sharded), MACHINE, NETWORK, 16).parts
            self.assertAlmostEqual(parts["optimizer"], 28 * values / 20e9, delta=1e-12)
        # With two sets of experts, each rank has two experts, and its optimizer updates half of their parameters.
        parts = step(replace(MODEL, sharded_optimizer=1), MACHINE, NETWORK, 16, Options(expert_ranks=8)).parts
        self.assertAlmostEqual(parts["optimizer"], 28 * (replicated / 16 + own) / 20e9, delta=1e-12)

    def test_layers_that_run_again_exchange_again(self):
        none, again = (Planned(replace(MODEL, recompute=r), MACHINE, NETWORK, 16) for r in (0, 1))
        for part, of in (("dispatch", none.dispatch()), ("combine", none.combine())):
            self.assertAlmostEqual(none.step().parts[part], 3 * (of[0] + of[1]), delta=1e-12)
            self.assertAlmostEqual(again.step().parts[part], 3 * (2 * of[0] + of[1]), delta=1e-12)

    def test_forwarded_counts(self):
        """Counts go to ranks: the counts for the four ranks of a node cross to the node together. With almost no items
        (1e-9), there are no rows."""
        planned = Planned(replace(MODEL, items=1e-9), MACHINE, NETWORK, 16, Options(exchange="forwarded"))
        counts, empty = 8 * 2, max(2e-6 + 3e-6, 5e-6 + 3 * 3e-6)
        # A rank sends 4 counts to each of 3 other nodes. Within the node it sends the counts of 4 nodes to 3 ranks.
        first = max(2e-6 + 3e-6 + 12 * counts / 40e9, 5e-6 + 9e-6 + 12 * counts / 5e9)
        self.assertAlmostEqual(planned.dispatch()[0], first + 2 * empty, delta=1e-13)

    def test_gradients_beside_the_backward(self):
        slow = replace(NETWORK, between=Link(5e-6, 3e-6, 1e6))
        for network in (NETWORK, slow):
            planned = Planned(MODEL, MACHINE, network, 16, Options(overlap="chunks"))
            parts, whole = planned.step().parts, planned.gradients()
            backward = 2 / 3 * (parts["dense"] + parts["experts"])
            self.assertAlmostEqual(parts["gradients"], max(whole / 3, whole - backward * 2 / 3), delta=1e-12)


class TwoRanks(unittest.TestCase):
    """Two ranks of one node with E = 2 and K = 1: each rank sends half of its items to the other one."""
    MODEL = Model(layers=1, dim=10, hidden=8, experts=2, k=1, items=100)
    LINK = Link(latency=1e-3, message=1e-4, bandwidth=1e6)

    def test_by_hand(self):
        parts = step(self.MODEL, MACHINE, Network(2, self.LINK, self.LINK), 2).parts
        each = 1e-3 + 1e-4
        self.assertAlmostEqual(parts["logits"], 2 * each + (100 * 2 * 4 + 4 * 8) / 1e6, delta=1e-12)
        rows = 50 * 10 * 4 / 1e6
        # Forward: two counts of 64 bits, the row of each slot, and rows. Backward: weights and rows.
        self.assertAlmostEqual(parts["dispatch"], 5 * each + 16 / 1e6 + 50 * 8 / 1e6 + rows + 50 * 4 / 1e6 + rows,
                               delta=1e-12)
        # Forward: results. Backward: adjoints of the weights and of the slots.
        self.assertAlmostEqual(parts["combine"], 3 * each + rows + 50 * 4 / 1e6 + rows, delta=1e-12)
        # The gate has 11·2 parameters. Each rank sends half of them, 44 bytes, twice.
        self.assertAlmostEqual(parts["gradients"], 2 * (each + 44 / 1e6), delta=1e-12)


class Volumes(unittest.TestCase):
    def test_naive_loops(self):
        rng, per_node = random.Random(5), 3
        of_rank = [rng.random() for _ in range(9)]
        of_node = [max(of_rank[a:a + 3]) for a in (0, 3, 6)]
        gives = [[0.0, 0.0] for _ in range(9)]
        takes = [[0.0, 0.0] for _ in range(9)]
        for i, j in itertools.permutations(range(9), 2):
            far = i // per_node != j // per_node
            gives[i][far] += 7 * of_rank[j]
            takes[j][far] += 7 * of_rank[j]
        flat = volume(7, of_rank, of_node, per_node, False)
        for kind, found in enumerate((flat.within, flat.between)):
            self.assertAlmostEqual(found, max(max(g[kind], t[kind]) for g, t in zip(gives, takes)), delta=1e-12)

        # Forwarded: if node b needs an item of rank (a, place), (b, place) gets it once and sends it to the ranks of b.
        gives, takes = [[0.0, 0.0] for _ in range(9)], [[0.0, 0.0] for _ in range(9)]
        for i in range(9):
            for b in range(3):
                at = b * per_node + i % per_node
                if b != i // per_node:
                    gives[i][1] += 7 * of_node[b]
                    takes[at][1] += 7 * of_node[b]
                for j in range(b * per_node, (b + 1) * per_node):
                    if j != at:
                        gives[at][0] += 7 * of_rank[j]
                        takes[j][0] += 7 * of_rank[j]
        found = volume(7, of_rank, of_node, per_node, True)
        self.assertAlmostEqual(found.within, max(max(g[0], t[0]) for g, t in zip(gives, takes)), delta=1e-12)
        self.assertAlmostEqual(found.between, max(max(g[1], t[1]) for g, t in zip(gives, takes)), delta=1e-12)


class Bytes(unittest.TestCase):
    def test_count_of_what_shards_give_each_other(self):
        """Counts the bytes of the exchanges of SlotExchange, GlobalGate and all_reduce for every set of picks."""
        ranks, experts, k, items, dim = 3, 6, 2, 4, 5
        model = Model(layers=2, dim=dim, hidden=7, experts=experts, k=k, items=items)
        all_picks = list(itertools.combinations(range(experts), k))
        given = 0.0
        for me in range(ranks):
            for picks in all_picks:
                owners = [e // 2 for e in picks]
                rows = len({o for o in owners if o != me})
                slots = sum(o != me for o in owners)
                forward = 8 * slots + 4 * dim * rows + 4 * dim * slots
                backward = 4 * slots + 4 * dim * rows + 4 * slots + 4 * dim * slots
                given += items * (forward + backward) / len(all_picks)
            given += (ranks - 1) * (8 * (1 + 2) + 4 * 8 + 4 * items * experts)
        given = given / ranks * model.layers
        parameters = model.layers * (dim + 1) * experts
        given += 2 * (ranks - 1) / ranks * 4 * parameters
        self.assertAlmostEqual(step(model, MACHINE, Network(3, *[NETWORK.within] * 2), ranks).moved / given, 1,
                               delta=1e-12)

    def test_nothing_goes_below_the_floor(self):
        for ranks in (2, 8, 64):
            for combine, gate in itertools.product(("slots", "sums"), ("gathered", "own")):
                s = step(MODEL, MACHINE, NETWORK, ranks, Options(combine=combine, gate=gate))
                self.assertGreaterEqual(s.moved, s.floor * (1 - 1e-12))
        s = step(replace(MODEL, index_bytes=0), MACHINE, NETWORK, 8, Options(combine="sums", gate="own"))
        self.assertAlmostEqual(s.moved / s.floor, 1, delta=1e-12)


class Overlap(unittest.TestCase):
    def test_pipeline_by_hand(self):
        self.assertEqual(pipeline(2, 5, 3, 1), 10)
        self.assertEqual(pipeline(1, 5, 1, 2), 12)  # the experts take longest: 1 + 2·5 + 1
        self.assertEqual(pipeline(5, 1, 4, 2), 18)  # the exchanges take longest: 2·5 + 2·4
        self.assertEqual(pipeline(2, 3, 2, 2), 10)  # 2 + 2·3 + 2

    def test_is_not_slower_where_halves_cost_half(self):
        free = Network(4, Link(0, 0, 40e9), Link(0, 0, 5e9))
        one_rate = replace(MACHINE, rows=(1,), rates=(8e9,), kernel=0)
        for ranks in (4, 16, 64):
            none = seconds(machine=one_rate, network=free, ranks=ranks)
            for overlap in ("chunks", "batches"):
                self.assertLessEqual(seconds(machine=one_rate, network=free, ranks=ranks, overlap=overlap), none)

    def test_what_is_hidden_is_not_lost(self):
        none = step(MODEL, MACHINE, NETWORK, 16)
        model = replace(MODEL, micro_batches=4)
        batches = step(model, MACHINE, NETWORK, 16, Options(overlap="batches"))
        expected = 4 * (none.seconds - none.parts["gradients"] - none.parts["optimizer"])
        rest = batches.parts["gradients"] + batches.parts["optimizer"]
        self.assertAlmostEqual(batches.seconds - rest + batches.hidden, expected + none.parts["gradients"] -
                               batches.parts["gradients"], delta=1e-12)


class MustHold(unittest.TestCase):
    def test_slower_with_more_work_and_slower_links(self):
        for options in ({}, {"exchange": "hierarchical"}, {"exchange": "forwarded", "combine": "sums"}):
            base = seconds(**options)
            for more in ({"items": 1024}, {"layers": 4}, {"hidden": 256}, {"dense_parameters": 2e5}, {"k": 4}):
                self.assertGreater(seconds(model=replace(MODEL, **more), **options), base)
            for link in (Link(6e-6, 3e-6, 5e9), Link(5e-6, 4e-6, 5e9), Link(5e-6, 3e-6, 4e9)):
                self.assertGreater(seconds(network=replace(NETWORK, between=link), **options), base)

    def test_a_rank_needs_no_more_than_its_picks_or_all_ranks(self):
        last = 0
        for ranks in (1, 2, 4, 8, 16):
            s = step(MODEL, MACHINE, NETWORK, ranks)
            self.assertTrue(last <= s.ranks_of_item <= min(MODEL.k, ranks) + 1e-12)
            self.assertLessEqual(s.nodes_of_item, s.ranks_of_item + 1e-12)
            last = s.ranks_of_item

    def test_exchanges_grow_with_ranks(self):
        model = replace(MODEL, experts=64)
        times = [sum(step(model, MACHINE, NETWORK, r).parts[p] for p in EXCHANGES) for r in (1, 4, 8, 16, 32, 64)]
        self.assertEqual(times, sorted(times))

    def test_hierarchical_wins_by_latency_and_loses_by_bandwidth(self):
        few, many = replace(MODEL, items=1, experts=256), replace(MODEL, items=1000000, experts=256)
        gathered = {"gate": "own", "ranks": 256}
        for model, wins in ((few, True), (many, False)):
            flat, hierarchical = (seconds(model=model, exchange=e, **gathered) for e in ("flat", "hierarchical"))
            self.assertEqual(hierarchical < flat, wins)

    def test_all_parts_are_told(self):
        s = step(MODEL, MACHINE, NETWORK, 16)
        self.assertEqual(list(s.parts), PARTS)
        self.assertAlmostEqual(s.seconds, sum(s.parts.values()), delta=1e-15)


class Skew(unittest.TestCase):
    def test_busiest_rank(self):
        even = [step(MODEL, MACHINE, NETWORK, 8, Options(skew=s)).busiest for s in (0.0, 0.5, 1.0)]
        self.assertEqual(even, sorted(even))
        self.assertAlmostEqual(even[0], 1, delta=1e-12)
        placed = [step(MODEL, MACHINE, NETWORK, 8, Options(skew=1.0, placement=p)).busiest
                  for p in ("even", "balanced", "replicated")]
        self.assertGreater(placed[0], placed[1])
        self.assertGreater(placed[1], placed[2])

    def test_measured_loads_by_hand(self):
        # Rank 0 has experts 0 and 1 of four: 600 of 1000 picks, 1.2 times the mean.
        model = replace(MODEL, experts=4, k=1)
        s = step(model, MACHINE, NETWORK, 2, Options(loads=(400, 200, 300, 100)))
        self.assertAlmostEqual(s.busiest, 1.2, delta=1e-9)


class Groups(unittest.TestCase):
    def test_expert_ranks(self):
        """Two groups of 8 ranks: the experts take as long as on 8 ranks, and the two groups sum their gradients."""
        alone, both = (step(MODEL, MACHINE, NETWORK, r, Options(gate="own", expert_ranks=8)).parts for r in (8, 16))
        for part in ("experts", "dispatch", "combine"):
            self.assertEqual(alone[part], both[part])
        # A rank has 2 of 16 experts in 3 layers, 4 bytes per gradient. It sends half of them to the other node, twice.
        own = 4 * 3 * 2 * 2 * 64 * 128
        more = Planned(MODEL, MACHINE, NETWORK, 16, Options(expert_ranks=8)).gradients() - NETWORK.all_reduce(
            16, 4 * (1e5 + 3 * 65 * 16))
        self.assertAlmostEqual(more, 2 * (5e-6 + 3e-6 + own / 2 / 5e9), delta=1e-12)

    def test_groups_within_a_node(self):
        """Eight groups of 2 ranks on nodes of 4: a rank has 8 experts. The other group of its node has them too."""
        own = 4 * 3 * 8 * 2 * 64 * 128
        planned = Planned(MODEL, MACHINE, NETWORK, 16, Options(expert_ranks=2))
        more = planned.gradients() - NETWORK.all_reduce(16, 4 * (1e5 + 3 * 65 * 16))
        within, between = 2e-6 + 1e-6 + own / 8 / 40e9, 5e-6 + 6 * 3e-6 + 6 * own / 8 / 5e9
        self.assertAlmostEqual(more, 2 * max(within, between), delta=1e-12)

    def test_copies(self):
        """Two ranks each have a copy of one expert for all items. Each sends half of its gradients to the other,
        twice."""
        model = replace(MODEL, experts=1, k=1, layers=1)
        planned = Planned(model, MACHINE, NETWORK, 2, Options(placement="replicated"))
        more = planned.gradients() - NETWORK.all_reduce(2, 4 * (1e5 + 65))
        self.assertAlmostEqual(more, 2 * (2e-6 + 1e-6 + 4 * 2 * 64 * 128 / 2 / 40e9), delta=1e-12)

    def test_uneven_groups(self):
        with self.assertRaises(ValueError):
            step(MODEL, MACHINE, NETWORK, 16, Options(expert_ranks=6))


if __name__ == "__main__":
    unittest.main()
