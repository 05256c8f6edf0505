"""Reads stored runs of the studies and computes differences with intervals."""
import collections
import copy
import functools
import json
import math
import pathlib
import statistics
import tarfile

FOLDER = pathlib.Path(__file__).resolve().parent / "runs"

# The 0.975 quantiles of Student's t distribution with 1 to 9 degrees of freedom.
STUDENT = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157)

# A number of a run: its name, and the function that computes it from the result of the run.
Measure = collections.namedtuple("Measure", "name of")


def power(ratio, freedom):
    """Returns the probability that a 95 % interval does not contain 0.

    ratio: the true mean over the true standard error; freedom: degrees of freedom. This is P(|T| > t) of Student's
    noncentral t distribution: the integral over the chi distribution of Φ(ratio − t s / √f) + Φ(−ratio − t s / √f)."""
    below, slope = statistics.NormalDist().cdf, STUDENT[freedom - 1] / math.sqrt(freedom)
    scale = math.log(2) * (1 - freedom / 2) - math.lgamma(freedom / 2)

    def density(s):
        return math.exp(scale + (freedom - 1) * math.log(s) - s * s / 2) if s > 0 else math.exp(scale) * (freedom == 1)

    steps = 400  # intervals of Simpson's rule
    width, total = (math.sqrt(freedom) + 9) / steps, 0
    for i in range(steps + 1):
        s = i * width
        of = density(s) * (below(ratio - slope * s) + below(-ratio - slope * s))
        total += of * (1 if i in (0, steps) else 4 if i % 2 else 2)
    return total * width / 3


@functools.lru_cache(None)
def visible_ratio(freedom, probability):
    """Returns the ratio at which the power is the given probability."""
    low, high = 0, 1000
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, freedom) < probability else (low, middle)
    return high


class Interval:
    """A mean with its 95 % interval, mean ± t · deviation / √n. The interval holds if the n values are normal."""

    def __init__(self, mean, error, freedom):
        """error: the standard error of the mean; freedom: its degrees of freedom."""
        if not 1 <= freedom <= len(STUDENT):
            raise ValueError(f"Interval: freedom: expected 1 to {len(STUDENT)}, got {freedom}")
        self.mean, self.half, self.freedom = mean, STUDENT[freedom - 1] * error, freedom
        self.low, self.high = mean - self.half, mean + self.half

    @classmethod
    def of(cls, values):
        return cls(statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1)

    def scaled(self, factor):
        """Returns the interval of the values times a positive factor."""
        return Interval(factor * self.mean, factor * self.error(), self.freedom)

    def contains(self, value):
        return self.low <= value <= self.high

    def error(self):
        """Returns the standard error of the mean."""
        return self.half / STUDENT[self.freedom - 1]

    def power(self, effect):
        """Estimates the probability that the interval of as many new seeds does not contain 0 if the effect is real."""
        return power(abs(effect) / self.error(), self.freedom)

    def visible(self, probability=0.8):
        """Estimates the smallest effect whose power is the given probability."""
        return visible_ratio(self.freedom, probability) * self.error()

    def seeds_for(self, effect):
        """Estimates how many seeds make the half-width a third of an effect, if the deviation remains the same. Above
        10, the estimate uses the normal distribution and has one significant digit."""
        deviation = self.error() * math.sqrt(self.freedom + 1)
        for freedom, t in enumerate(STUDENT, 1):
            if t * deviation / math.sqrt(freedom + 1) <= abs(effect) / 3:
                return freedom + 1
        return int(float(f"{(1.96 * deviation * 3 / effect) ** 2:.0e}"))


def verdict(interval, effect):
    """Compares an interval with the effect of a paper, which counts as exact.

    confirmed: the interval contains the effect, and not 0. excluded: it does not contain the effect; if it does not
    contain 0 either, the sign is added. not decided: it contains both."""
    if interval.contains(effect):
        return "not decided" if interval.contains(0) else "confirmed"
    if interval.contains(0):
        return "excluded"
    return "excluded, same sign" if interval.mean * effect > 0 else "excluded, opposite sign"


def verdict_on_sign(interval, sign):
    """Compares an interval with the sign of an effect for which a paper prints no number.

    confirmed: the whole interval has the sign. excluded: the whole interval has the opposite sign. not decided: the
    interval contains 0."""
    return "not decided" if interval.contains(0) else "confirmed" if interval.mean * sign > 0 else "excluded"


class Study:
    """The runs of a program: `runs[case]` has the result of each seed, in the order of the seeds."""

    def __init__(self, name, folder=FOLDER):
        self.runs, self.options = {}, {}
        found = {}
        with tarfile.open(folder / f"{name}.tar.xz") as archive:
            for member in archive:
                if member.isfile():  # runs/CASE.seedS.json
                    run = json.load(archive.extractfile(member))
                    case = pathlib.PurePath(member.name).name.split(".seed")[0]
                    found.setdefault(case, {})[run["options"]["seed"]] = run
        for case, seeds in found.items():
            self.runs[case] = [seeds[seed]["result"] for seed in sorted(seeds)]
            self.options[case] = [seeds[seed]["options"] for seed in sorted(seeds)]

    def include(self, name, suffix):
        """Adds the runs of another archive, with a suffix at the names of the cases."""
        other = Study(name)
        self.runs.update({case + suffix: runs for case, runs in other.runs.items()})
        self.options.update({case + suffix: options for case, options in other.options.items()})

    def seeds(self):
        """Returns the number of seeds, which must be the same for all cases."""
        counts = {len(runs) for runs in self.runs.values()}
        if len(counts) != 1:
            raise ValueError(f"Study.seeds: expected the same number for all cases, got {sorted(counts)}")
        return counts.pop()

    def common(self, cases):
        """Returns a study of some cases, with the seeds that all of them have."""
        found = copy.copy(self)
        seeds = set.intersection(*({options["seed"] for options in self.options[case]} for case in cases))
        kept = {case: [at for at, of in enumerate(self.options[case]) if of["seed"] in seeds] for case in cases}
        found.runs = {case: [self.runs[case][i] for i in at] for case, at in kept.items()}
        found.options = {case: [self.options[case][i] for i in at] for case, at in kept.items()}
        return found

    def values(self, case, measure):
        """Returns the measure of each seed."""
        return [measure.of(run) for run in self.runs[case]]

    def summary(self, case, measure):
        """Returns mean, standard deviation and number of seeds of a measure of a case."""
        values = self.values(case, measure)
        return statistics.mean(values), statistics.stdev(values), len(values)

    def difference(self, case, baseline, measure):
        """Returns the interval of a case minus its baseline, paired by seed. Uses the seeds that both have."""
        both = self.common([case, baseline])
        if both.seeds() < 2:
            raise ValueError(f"Study.difference: {case}: expected at least 2 seeds of {baseline}, got {both.seeds()}")
        return Interval.of([a - b for a, b in zip(both.values(case, measure), both.values(baseline, measure))])
