"""Makes the tables and conclusions of the page vision.md."""
import statistics

import papers
from intervals import Measure, Study, verdict
from report import Page, between, by_verdict, items, powers, shown, spread, table


def error(run):
    """Returns the mean error in % of each corruption over its severities."""
    return {kind: 100 * (1 - statistics.mean(accuracies)) for kind, accuracies in run["corrupted"].items()}


class Vision(Page):
    def __init__(self):
        self.study = Study("vision")
        for case, runs in self.study.runs.items():
            for run, linear in zip(runs, self.study.runs["linear"]):
                mine, of_pixels = error(run), error(linear)
                run["mce"] = 100 * statistics.mean(mine[kind] / of_pixels[kind] for kind in mine)
        share = lambda name: Measure(name, lambda run: 100 * run[name])
        self.measures = [
            ("Clean images, accuracy in %", share("clean"), 0),
            ("Corrupted images, accuracy in %",
             Measure("corrupted", lambda run: 100 - statistics.mean(error(run).values())), 1),
            ("Corrupted images, mCE (lower is better)", Measure("mce", lambda run: run["mce"]), 2),
            ("FGSM, accuracy in %", share("fgsm"), 3), ("PGD, accuracy in %", share("pgd"), 3)]

    def difference(self, case, baseline, at):
        return self.study.difference(case, baseline, self.measures[at][1])

    @staticmethod
    def effect(printed, at):
        return printed[0][at] - printed[1][at] if printed and at < len(printed[0]) else None

    def compared(self, title, measure, at):
        rows = []
        for _, baseline, cases in papers.VISION:
            for case, label, printed in cases:
                cells = [label, spread(self.study.summary(case, measure))]
                if case != baseline:
                    interval, effect = self.study.difference(case, baseline, measure), self.effect(printed, at)
                    cells.append(between(interval))
                    cells += ["", ""] if effect is None else [shown(effect, 2, True), verdict(interval, effect)]
                rows.append(cells + [""] * (5 - len(cells)))
        head = ["model", "here", "Δ", "paper", "effect of the paper"]
        if all(self.effect(printed, at) is None for _, _, cases in papers.VISION for _, _, printed in cases):
            head, rows = head[:3], [row[:3] for row in rows]  # the papers have no such numbers
        return f"**{title}** ({self.study.seeds()} seeds)\n\n" + table(head, rows)

    def tables(self):
        return "\n\n".join(self.compared(*of) for of in self.measures)

    def results(self):
        effects = [(f"{label} ({('clean', 'corrupted', 'mCE')[at]})", self.difference(case, baseline, at), effect)
                   for at in range(3) for _, baseline, rows in papers.VISION for case, label, printed in rows[1:]
                   if (effect := self.effect(printed, at)) is not None]
        points = lambda case, at, baseline="vmoe": between(self.difference(case, baseline, at))
        corrupted = self.measures[1][1]
        by_seed = ", ".join(shown(a - b, 2, True) for a, b in zip(self.study.values("vmoe_attention", corrupted),
                                                                  self.study.values("vmoe", corrupted)))
        intervals = [(f"{label}, {title[0].lower() + title[1:].split(',')[0]}", self.difference(case, baseline, at))
                     for _, baseline, rows in papers.VISION for case, label, _ in rows[1:]
                     for at, (title, _, _) in enumerate(self.measures)]
        apart = [name for name, interval in intervals if not interval.contains(0)]
        parameters = [f"{self.study.runs[case][0]['parameters']:,}" for case in ("vmoe", "soft")]
        return items(
            f"**Effects of the papers:**\n{by_verdict(effects)}",
            powers(effects),
            f"**Intervals of Δ that do not contain 0**: {len(apart)} of {len(intervals)} ({'; '.join(apart)}). If no "
            f"difference were real, {0.05 * len(intervals):.1f} would be expected by chance.",
            "**Attention-aware.** On corrupted images, the difference of attention-aware V-MoE from V-MoE is, seed by "
            f"seed, {by_seed} points. The mean is {points('vmoe_attention', 1)} points. Only one reading of the paper "
            "was run; see [graph_of_tokens.md](graph_of_tokens.md).",
            f"**Soft MoE minus V-MoE** is {points('soft', 0)} points on clean images and {points('soft', 1)} points on "
            "corrupted ones. Soft MoE has mixtures in other layers than V-MoE and no class token, so this difference "
            "compares whole models, not only mixtures.",
            f"V-MoE has {parameters[0]} parameters in each row, and Soft MoE {parameters[1]}.")
