"""Tests placement.py against sums over all sets of picks."""
import itertools
import math
import random
import unittest

import paths  # noqa: F401
import placement


def sets(weights, k):
    """Returns all sets of k experts with their probabilities, equation (1)."""
    all_sets = list(itertools.combinations(range(len(weights)), k))
    products = [math.prod(weights[e] for e in s) for s in all_sets]
    return [(s, p / sum(products)) for s, p in zip(all_sets, products)]


def distinct_by_enumeration(weights, k, places):
    """Returns the expected number of distinct places that serve the picks of an item. Each place with a copy of an
    expert serves its share of the picks of that expert."""
    expected = 0.0
    for picks, probability in sets(weights, k):
        where = [[(j, p[e]) for j, p in enumerate(places) if e in p] for e in picks]
        for choice in itertools.product(*where):
            expected += probability * math.prod(share for _, share in choice) * len({j for j, _ in choice})
    return expected


def distinct(picks, places):
    return sum(picks.needs(p) for p in places)


class Distinct(unittest.TestCase):
    def test_equal_weights_are_the_hypergeometric_law(self):
        for experts, k, ranks in [(4, 2, 2), (6, 3, 3), (7, 2, 3), (5, 5, 2), (8, 1, 4), (6, 4, 8), (9, 3, 1)]:
            places = placement.even(experts, ranks)
            found = distinct(placement.Picks([1.0] * experts, k), places)
            self.assertAlmostEqual(found, distinct_by_enumeration([1.0] * experts, k, places), delta=1e-12)
            law = sum(1 - math.comb(experts - len(p), k) / math.comb(experts, k) for p in places)
            self.assertAlmostEqual(found, law, delta=1e-12)

    def test_unequal_weights(self):
        rng = random.Random(3)
        for experts, k, ranks in [(5, 2, 2), (7, 3, 3), (8, 4, 4), (6, 2, 6)]:
            weights = [rng.uniform(0.1, 5) for _ in range(experts)]
            places = placement.even(experts, ranks)
            self.assertAlmostEqual(distinct(placement.Picks(weights, k), places),
                                   distinct_by_enumeration(weights, k, places), delta=1e-11)

    def test_copies(self):
        weights = [4.0, 1.0, 2.0, 0.5, 3.0]
        places = [{0: 0.5, 1: 1.0}, {0: 0.25, 2: 1.0, 4: 0.5}, {0: 0.25, 3: 1.0, 4: 0.5}]
        self.assertAlmostEqual(distinct(placement.Picks(weights, 3), places),
                               distinct_by_enumeration(weights, 3, places), delta=1e-11)

    def test_limited_groups(self):
        experts, k, groups, of_groups = 12, 3, 4, 2
        kinds = list(itertools.combinations(range(groups), of_groups))
        picks = placement.Picks([1.0] * experts, k, groups, of_groups)
        for ranks in (1, 2, 3, 4, 5, 8, 12):
            places, expected = placement.even(experts, ranks), 0.0
            for kind in kinds:
                pool = [e for e in range(experts) if e // (experts // groups) in kind]
                for found in itertools.combinations(pool, k):
                    needed = len({j for j, p in enumerate(places) for e in found if e in p})
                    expected += needed / len(kinds) / math.comb(len(pool), k)
            self.assertAlmostEqual(distinct(picks, places), expected, delta=1e-12)
            self.assertAlmostEqual(sum(placement.rank_load(picks.loads(), p) for p in places), k, delta=1e-12)

    def test_many_experts_on_many_ranks(self):
        for experts, k, ranks in [(4096, 8, 8), (4096, 8, 4096), (256, 8, 64)]:
            places = placement.even(experts, ranks)
            here = len(places[0])
            law = ranks * (1 - math.comb(experts - here, k) / math.comb(experts, k))
            # Each term comes from thousands of multiplications, and up to thousands of terms are added.
            self.assertAlmostEqual(distinct(placement.Picks([1.0] * experts, k), places) / law, 1, delta=1e-9)

    def test_too_many_picks(self):
        with self.assertRaises(ValueError):
            placement.Picks([1.0] * 3, 4)


class Loads(unittest.TestCase):
    def test_are_those_of_all_sets(self):
        weights, k = [5.0, 1.0, 0.5, 2.0, 2.0, 0.1], 3
        expected = [sum(p for s, p in sets(weights, k) if e in s) for e in range(len(weights))]
        for found, want in zip(placement.Picks(weights, k).loads(), expected):
            self.assertAlmostEqual(found, want, delta=1e-12)

    def test_sum_to_the_picks(self):
        for exponent in (0.0, 0.5, 1.0):
            self.assertAlmostEqual(sum(placement.Picks(placement.zipf(512, exponent), 8).loads()), 8, delta=1e-9)

    def test_measured_loads_are_met(self):
        loads = [900, 300, 250, 250, 200, 100]
        found = placement.Picks(placement.weights_of(loads, 2), 2).loads()
        for have, want in zip(found, loads):
            self.assertAlmostEqual(have, 2 * want / sum(loads), delta=1e-9)

    def test_no_expert_is_picked_twice_by_an_item(self):
        with self.assertRaises(ValueError):
            placement.weights_of([10, 1, 1], 2)


class Placements(unittest.TestCase):
    def test_even_is_range_of(self):
        self.assertEqual([sorted(p) for p in placement.even(7, 3)], [[0, 1], [2, 3], [4, 5, 6]])
        self.assertEqual([len(p) for p in placement.even(2, 4)], [0, 1, 0, 1])

    def test_balanced_by_hand(self):
        # The largest first: 8 to rank 0, 5 and 4 to rank 1, which is then full, and 3 to rank 0. Loads 11 and 9.
        self.assertEqual([sorted(p) for p in placement.balanced([8, 3, 5, 4], 2)], [[0, 1], [2, 3]])

    def test_balanced_deals_each_once_and_no_rank_has_more_than_its_number(self):
        loads = placement.Picks(placement.zipf(64, 1.0), 4).loads()
        places = placement.balanced(loads, 8)
        self.assertEqual(sorted(e for p in places for e in p), list(range(64)))
        self.assertTrue(all(len(p) == 8 for p in places))
        busiest = [max(placement.rank_load(loads, p) for p in q) for q in (places, placement.even(64, 8))]
        self.assertLess(busiest[0], busiest[1])

    def test_replicated_by_hand(self):
        # Two ranks with one place and one spare place each: four places. An expert has at most one copy per rank, so
        # each of the two experts has two copies.
        places = placement.replicated([6, 1], 2)
        self.assertEqual([placement.rank_load([6, 1], p) for p in places], [3.5, 3.5])

    def test_copies_by_load_of_a_copy(self):
        # The four spare places go to the expert with the largest load per copy: 12 → 6, 9 → 4.5, 6 → 4, 4.5 → 3.
        places = placement.replicated([12, 9, 2, 2], 4)
        self.assertEqual([sum(e in p for p in places) for e in range(4)], [3, 3, 1, 1])

    def test_replicated_serves_every_expert_once_in_all(self):
        loads = placement.Picks(placement.zipf(48, 1.2), 4).loads()
        places = placement.replicated(loads, 16)
        for e in range(48):
            self.assertAlmostEqual(sum(p.get(e, 0.0) for p in places), 1, delta=1e-12)
        self.assertTrue(all(len(p) <= 4 for p in places))
        busiest = [max(placement.rank_load(loads, p) for p in q) for q in (places, placement.balanced(loads, 16))]
        self.assertLess(busiest[0], busiest[1])

    def test_replicated_leaves_no_rank_idle(self):
        places = placement.replicated([1.0] * 4, 16)
        self.assertTrue(all(p for p in places))


if __name__ == "__main__":
    unittest.main()
