"""Tests docs/studies/intervals.py: intervals against numbers by hand and by integration, and reading archives."""
import io
import json
import math
import pathlib
import tarfile
import tempfile
import unittest

import paths
from intervals import STUDENT, Interval, Measure, Study, power, verdict, verdict_on_sign

TEST = Measure("test", lambda run: run["test"])


def student(t, freedom, steps=20000):
    """Returns P(T <= t) of Student's t distribution by Simpson's rule."""
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    density = lambda x: scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    h = t / steps
    total = density(0) + density(t)
    total += sum((4 if i % 2 else 2) * density(i * h) for i in range(1, steps))
    return 0.5 + total * h / 3


def made_up(runs):
    """Returns a study whose archive has runs[case][seed] = value of `test`."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with tarfile.open(folder / "small.tar.xz", "w:xz") as archive:
            for case, seeds in runs.items():
                for seed, value in seeds.items():
                    run = {"options": {"seed": seed}, "result": {"test": value}}
                    text = json.dumps(run).encode()
                    info = tarfile.TarInfo(f"runs/{case}.seed{seed}.json")
                    info.size = len(text)
                    archive.addfile(info, io.BytesIO(text))
        return Study("small", folder)


class Intervals(unittest.TestCase):
    def near(self, interval, mean, half):
        self.assertAlmostEqual(interval.mean, mean, places=6)
        self.assertAlmostEqual(interval.half, half, places=5)
        self.assertAlmostEqual(interval.low, mean - half, places=5)
        self.assertAlmostEqual(interval.high, mean + half, places=5)

    def test_quantiles_of_student(self):
        for freedom, t in enumerate(STUDENT, 1):
            self.assertAlmostEqual(student(t, freedom), 0.975, places=7)

    def test_power(self):
        # scipy.stats.nct.sf(t, f, d) + nct.cdf(−t, f, d) of SciPy 1.17.1, with t = scipy.stats.t.ppf(0.975, f).
        for ratio, freedom, expected in (
                (0, 1, 0.05), (1, 1, 0.07298889), (30, 1, 0.98141604), (0.5, 2, 0.06150786), (8, 2, 0.95805069),
                (math.sqrt(10), 2, 0.41654812), (math.sqrt(10), 4, 0.66251098), (1, 9, 0.14594995),
                (math.sqrt(10), 9, 0.80309686)):
            self.assertAlmostEqual(power(ratio, freedom), expected, places=5)

    def test_power_of_an_interval(self):
        interval = Interval.of([1, 2, 3])  # standard error 1 / √3
        self.assertAlmostEqual(interval.power(-math.sqrt(10 / 3)), 0.41654812, places=5)
        self.assertAlmostEqual(interval.power(interval.visible()), 0.8, places=3)
        self.assertAlmostEqual(interval.scaled(10).visible(0.5), 10 * interval.visible(0.5), places=6)

    def test_three_values_by_hand(self):
        # Mean 2, squared deviations 1 + 0 + 1, variance 2 / 2 = 1, half-width 4.302653 · 1 / 1.7320508.
        self.near(Interval.of([1, 2, 3]), 2, 2.484138)

    def test_five_values_by_hand(self):
        # Mean 5, squared deviations 9 + 1 + 1 + 0 + 25, variance 36 / 4 = 9, half-width 2.776445 · 3 / 2.2360680.
        self.near(Interval.of([2, 4, 4, 5, 10]), 5, 3.724991)

    def test_scaled(self):
        self.near(Interval.of([1, 2, 3]).scaled(10), 20, 24.84138)

    def test_seeds_for_an_effect(self):
        # Deviation 1, effect 1: (1.96 · 3)² = 34.6; effect 0.1: a hundred times as many. Effect 3: 2.776 / √5 = 1.24
        # is above 1, and so is 2.571 / √6 = 1.05; 2.447 / √7 = 0.92 is not.
        self.assertEqual(Interval.of([1, 2, 3]).seeds_for(1), 30)
        self.assertEqual(Interval.of([1, 2, 3]).seeds_for(-0.1), 3000)
        self.assertEqual(Interval.of([1, 2, 3]).seeds_for(-3), 7)
        self.assertEqual(Interval.of([1, 2, 3]).scaled(10).seeds_for(10), 30)

    def test_too_many_seeds(self):
        with self.assertRaisesRegex(ValueError, "freedom: expected 1 to 9, got 10"):
            Interval.of(range(11))
        with self.assertRaisesRegex(ValueError, "freedom: expected 1 to 9, got 0"):
            Interval(1, 0, 0)


class Verdicts(unittest.TestCase):
    def test_each(self):
        half = 2.484138  # of three values with deviation 1
        for mean, effect, expected in ((-3, -4, "confirmed"), (3, 4, "confirmed"), (-3, -6, "excluded, same sign"),
                                       (3, 6, "excluded, same sign"), (-3, 1, "excluded, opposite sign"),
                                       (3, -6, "excluded, opposite sign"), (0, 3, "excluded"), (-1, -4, "excluded"),
                                       (0, 2, "not decided"), (-1, -3, "not decided"), (1, -1, "not decided")):
            interval = Interval.of([mean - 1, mean, mean + 1])
            self.assertAlmostEqual(interval.half, half, places=5)
            self.assertEqual(verdict(interval, effect), expected, (mean, effect))

    def test_on_sign(self):
        for mean, sign, expected in ((3, 1, "confirmed"), (-3, -1, "confirmed"), (3, -1, "excluded"),
                                     (-3, 1, "excluded"), (2, 1, "not decided"), (-2, 1, "not decided")):
            self.assertEqual(verdict_on_sign(Interval.of([mean - 1, mean, mean + 1]), sign), expected, (mean, sign))


class Studies(unittest.TestCase):
    def test_differences_are_paired_by_seed(self):
        # The order in the archive does not matter. Differences of seeds 1, 2, 3: 1, 2, 3.
        study = made_up({"a": {3: 103, 1: 11, 2: 52}, "b": {2: 50, 1: 10, 3: 100}})
        found = study.difference("a", "b", TEST)
        self.assertEqual(study.seeds(), 3)
        self.assertAlmostEqual(found.mean, 2)
        self.assertAlmostEqual(found.half, 2.484138, places=5)

    def test_only_common_seeds_are_paired(self):
        study = made_up({"a": {1: 1, 2: 2, 4: 7}, "b": {4: 6, 1: 2, 3: 9}})
        found = study.difference("a", "b", TEST)  # −1 and 1
        self.assertEqual((found.mean, found.freedom), (0, 1))
        common = study.common(["a", "b"])
        self.assertEqual((common.seeds(), common.values("a", TEST), common.values("b", TEST)), (2, [1, 7], [2, 6]))
        self.assertEqual(study.values("b", TEST), [2, 9, 6])  # unchanged

    def test_too_few_common_seeds(self):
        study = made_up({"a": {1: 1, 2: 2}, "b": {1: 1, 3: 2}})
        with self.assertRaisesRegex(ValueError, "Study.difference: a: expected at least 2 seeds of b, got 1"):
            study.difference("a", "b", TEST)

    def test_other_number_of_seeds(self):
        with self.assertRaisesRegex(ValueError, r"Study.seeds: expected the same number .*, got \[2, 3\]"):
            made_up({"a": {1: 1, 2: 2, 3: 3}, "b": {1: 1, 2: 2}}).seeds()


if __name__ == "__main__":
    unittest.main()
