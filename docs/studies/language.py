"""Makes the tables and conclusions of momentum.md and graph_of_tokens.md, the studies of language models."""
import math
import statistics

import papers
from classification import Classification
from intervals import FOLDER, Interval, Measure, Study, verdict, verdict_on_sign
from report import Page, between, by_verdict, holds, items, paragraph, powers, shown, signed, spread, table


class Language(Page):
    """A study of language models: perplexities, lower is better. Effects are in % of the mean of the first row."""

    CLEAN = Measure("test", lambda run: run["test"])
    ATTACKED = Measure("test_attacked", lambda run: run["test_attacked"])
    HARM = Measure("test_harm", lambda run: 100 * (run["test_harm"] - 1))

    def __init__(self, name, groups):
        self.name, self.study, self.groups = name, Study(name), groups

    def of_group(self, rows):
        """Returns the study of a table, with the seeds that all its cases have."""
        return self.study.common([case for case, *_ in rows])

    def parts(self):
        return {**super().parts(), "costs": self.costs()}

    def costs(self):
        """Returns the table that the program prints with --costs, from its stored output."""
        return (FOLDER / f"{self.name}_costs.md").read_text().rstrip()

    def percent(self, case, baseline, measure, study=None):
        """Returns the difference in % of the mean of the baseline. Uses the seeds of `study`, or of both cases."""
        study = study or self.study.common([case, baseline])
        return study.difference(case, baseline, measure).scaled(100 / study.summary(baseline, measure)[0])

    @staticmethod
    def effect(printed, baseline, at):
        """Returns the effect in the paper in %, or None if the paper does not print it."""
        return 100 * (printed[at] / baseline[at] - 1) if at < min(len(printed), len(baseline)) else None

    def columns(self, study, row, first, at, measure):
        """Returns the cells for one measure: value, difference, effect in the paper, verdict."""
        case, _, printed = row
        cells = [spread(study.summary(case, measure))]
        if case == first[0]:
            return cells + ["", "", ""]
        interval, effect = self.percent(case, first[0], measure, study), self.effect(printed, first[2], at)
        cells.append(between(interval))
        return cells + (["", ""] if effect is None else [shown(effect, 1, True), verdict(interval, effect)])

    def perplexities(self):
        text = []
        for title, _, rows in self.groups:
            lines, study = [], self.of_group(rows)
            for row in rows:
                cells = [row[1], *self.columns(study, row, rows[0], 0, self.CLEAN)]
                cells += self.columns(study, row, rows[0], 1, self.ATTACKED)
                cells.append(spread(study.summary(row[0], self.HARM)))
                cells.append("" if row is rows[0] else between(study.difference(row[0], rows[0][0], self.HARM)))
                lines.append(cells)
            head = ["model"]
            for text_kind in ("clean", "attacked"):
                head += [text_kind, "Δ, %", "paper, %", "effect of the paper"]
            text.append(f"**{title}** ({study.seeds()} seeds)\n\n" + table(head + ["harm, %", "Δ"], lines))
        return "\n\n".join(text)

    def layer(self, case, pointer, scale):
        """Returns (mean, deviation) over seeds of the value at `pointer`, for each layer."""
        seeds = self.of_layers(case, pointer, scale)
        return [(statistics.mean(of), statistics.stdev(of)) for of in zip(*seeds)]

    def of_layers(self, case, pointer, scale):
        """Returns the value at `pointer` of each layer, for each seed."""
        found = []
        for run in self.study.runs[case]:
            numbers = run["layers"]
            for part in pointer.strip("/").split("/"):
                numbers = [n[int(part)] if isinstance(n, list) else n[part] for n in numbers]
            found.append([scale * n for n in numbers])
        return found

    def labels(self):
        return {row[0]: row[1] for _, _, rows in reversed(self.groups) for row in rows}

    def layers(self, cases, title, pointer, scale, decimals):
        labels = self.labels()
        rows = [[labels[case], *(spread(of, decimals) for of in self.layer(case, pointer, scale))] for case in cases]
        return f"**{title}**\n\n" + table(["layer", *map(str, range(1, len(rows[0])))], rows)

    def effects(self, at, measure):
        """Returns (label, interval, effect of the paper) of each case for one measure. Each case occurs once."""
        found = {}
        for title, _, rows in self.groups:
            for case, label, printed in rows[1:]:
                effect = self.effect(printed, rows[0][2], at)
                if effect is None or case in found:
                    continue
                if title.startswith(("Half", "Twice", "The skeleton", "The paper's code")):
                    label += f" ({title[0].lower() + title[1:]})"
                elif rows is not self.groups[0][2] and rows[0][1] not in label:
                    label = f"{rows[0][1]} {label}"
                found[case] = (label, self.percent(case, rows[0][0], measure, self.of_group(rows)), effect)
        return list(found.values())


MOMENTUM_LAYERS = [
    ("Mean norm of the mixture's output (figures 2 and 3)", "/norm", 1, 2),
    ("Picks whose expert has the output with the largest norm of all experts, in % (figure 5)", "/rank/0", 100, 1),
    ("Eigenvalues σ of −∂u/∂x for which the plain sum is stable, in % (lemma 1, μ = 0)", "/plain/stable", 100, 1),
    ("Eigenvalues σ of −∂u/∂x for which heavy ball is stable, in % (lemma 1, μ = 0.7)", "/momentum/stable", 100, 1),
    ("Spectral radius of lemma 1 (the larger |λ|), mean over σ, μ = 0", "/plain/radius", 1, 3),
    ("Spectral radius of lemma 1 (the larger |λ|), mean over σ, μ = 0.7", "/momentum/radius", 1, 3)]


MOMENTUM_DIRECTIONS = [
    ("Mean cosine of the mixture's output and v", "/cosine", 1, 3),
    ("Mean ‖v‖", "/least", 1, 3),
    ("Mean norm of the sum of the unit vectors, weighted with the gate's weights", "/normalised", 1, 3)]


class Momentum(Language):
    def __init__(self):
        super().__init__("momentum", papers.MOMENTUM)

    def tables(self):
        return "\n\n".join([self.perplexities(), *(self.layers(papers.MOMENTUM_LAYERS, *of) for of in MOMENTUM_LAYERS)])

    def results(self):
        clean = self.CLEAN
        percent = lambda case, baseline="smoe": between(self.percent(case, baseline, clean), 1) + " %"
        norms = {case: [m for m, _ in self.layer(case, "/norm", 1)] for case in ("smoe", "adam")}
        ratios = [a / b for a, b in zip(norms["adam"], norms["smoe"])]
        shares = [m for case in papers.MOMENTUM_LAYERS for m, _ in self.layer(case, "/plain/stable", 100)]
        lost = [a[0] - b[0] for case in papers.MOMENTUM_LAYERS
                for a, b in zip(self.layer(case, "/plain/stable", 100), self.layer(case, "/momentum/stable", 100))]
        zero = lambda *cases: all(self.percent(case, "smoe", clean).contains(0) for case in cases)
        printed = {case: numbers for _, _, rows in papers.MOMENTUM for case, _, numbers in rows}
        paper = self.effect(printed["adam"], printed["smoe"], 0)
        of_glam = verdict(self.percent("glam_heavy_ball", "glam", clean),
                          self.effect(printed["glam_heavy_ball"], printed["glam"], 0))
        halves = [self.percent(case, "smoe", clean).half for case, *_ in papers.MOMENTUM[0][2][1:]
                  if case not in ("adam", "rms_prop")]
        adam = lambda case: self.percent(case, "smoe", clean)
        changes = lambda cases: "; ".join(f"{between(adam(case), 1)} % if {name}" for case, name in cases)
        by_epsilon = [("adam", "ε = 1e-8"),
                      *((f"adam_epsilon_{e}", f"ε = {e}") for e in ("0.0001", "0.01", "0.1", "1"))]
        by_gamma = [("adam_gamma_0.3", "γ = 0.3"), ("adam_epsilon_0.1", "γ = 1"), ("adam_gamma_3", "γ = 3")]
        seeds = self.study.common(["gamma_0.3", "smoe"])
        every = [run for case, runs in self.study.runs.items() if "_every_" in case for run in runs]
        skipped = sum(run["skipped"] for run in every)
        better = sum(a < b for a, b in zip(seeds.values("gamma_0.3", clean), seeds.values("smoe", clean)))
        def more(*cases):
            """Returns the interval of the change in % from the second case to the first, minus that from the fourth to
            the third."""
            found = self.study.common(cases)
            return Interval.of([100 * (a / b - c / d) for a, b, c, d in zip(*(found.values(case, clean)
                                                                              for case in cases))])

        deeper = [more("heavy_ball", "smoe", "half_heavy_ball", "half_smoe"),
                  more("deep_heavy_ball", "deep_smoe", "heavy_ball", "smoe")]
        dense = more("dense_heavy_ball", "dense", "heavy_ball", "smoe")
        by_depth = ", ".join(shown(self.effect(printed[f"{depth}heavy_ball"], printed[f"{depth}smoe"], 0), 1, True)
                             for depth in ("half_", "", "deep_"))
        skeleton = {case: between(self.study.difference(case, baseline, clean), 1) for case, baseline in
                    (("reference", "smoe"), ("reference_heavy_ball", "heavy_ball"))}
        return items(
            f"**Effects of the paper on clean text:**\n{by_verdict(self.effects(0, clean))}",
            powers(self.effects(0, clean)),
            f"**A mixture in every layer.** Heavy ball changes the perplexity by {percent('heavy_ball')}. For rules "
            f"other than Adam and RmsProp, the intervals are ± {min(halves):.1f} to ± {max(halves):.1f} %. Smaller "
            "effects are not visible with these seeds.",
            "**Dense mixtures,** in which all experts compute each word, change the perplexity of SMoE by "
            f"{percent('dense')}. In them, heavy ball changes the perplexity by "
            f"{percent('dense_heavy_ball', 'dense')}. This change minus that in SMoE is {between(dense, 1)} points. "
            "The paper has no such table.",
            f"**GLaM.** Heavy ball changes the perplexity by {percent('glam_heavy_ball', 'glam')}. " +
            holds(of_glam == "excluded", "An effect as large as the paper's is excluded. The sign is not decided."),
            f"**Adam in the first layer, ε at γ = 1.** The perplexity changes by {changes(by_epsilon)}. " +
            holds(all(verdict(adam(case), paper).startswith("excluded") for case, _ in by_epsilon),
                  f"No interval contains the effect of the paper, {shown(paper, 1, True)} %.") +
            " The first layer computes x + 0.1 γ u / (0.0316 |u| + ε) for each element u of the mixture's output. The "
            "derivative with respect to u is 0.1 γ ε / (0.0316 |u| + ε)². If γ = 1 and |u| = 1, this derivative is "
            "1e-6 for ε = 1e-8 and 0.58 for ε = 0.1. Hence, if ε is small, almost no gradient reaches the first "
            "mixture, and the layer adds almost 3.16 γ sign(u) to x. The runs do not show which of these two effects "
            "raises the perplexity.",
            f"**Adam in the first layer, γ at ε = 0.1.** The perplexity changes by {changes(by_gamma)}.",
            f"**With ε = 1e-8,** Adam first changes the perplexity by {percent('half_adam', 'half_smoe')} at half the "
            f"depth and by {percent('glam_adam', 'glam')} in GLaM. RmsProp first, with a mixture in every layer, "
            f"changes it by {percent('rms_prop')}.",
            "If Adam is first, the mean norms of the mixtures' outputs in layers 3 to 6 are "
            f"{min(ratios[2:]):.1f} to {max(ratios[2:]):.1f} times those of the plain sum (layer 1: {ratios[0]:.1f} "
            f"times, layer 2: {ratios[1]:.1f} times). "
            "The reason was not examined.",
            "**Depth.** Heavy ball changes the perplexity by "
            f"{percent('half_heavy_ball', 'half_smoe')} in 3 layers, {percent('heavy_ball')} in 6 and "
            f"{percent('deep_heavy_ball', 'deep_smoe')} in 12. The paper states that the effect grows with the depth; "
            f"its table 7 has {by_depth} %. The change in 6 layers minus that in 3 is {between(deeper[0], 1)} points: "
            f"the growth is {verdict_on_sign(deeper[0], -1)}. The change in 12 layers minus that in 6 is "
            f"{between(deeper[1], 1)} points: the growth is {verdict_on_sign(deeper[1], -1)}.",
            "**The skeleton of the paper's code** (post-norm, double residual) instead of that of the paper's equation "
            "(pre-norm, one residual) changes the perplexity "
            f"by {skeleton['reference']} without momentum and by {skeleton['reference_heavy_ball']} with heavy ball. "
            f"In the skeleton, heavy ball changes the perplexity by {percent('reference_heavy_ball', 'reference')}, "
            f"and Adam first by {percent('reference_adam', 'reference')}.",
            "**The skeleton with the initial weights of experts of the paper's code.** These weights change the "
            f"perplexity of the plain sum by {percent('reference_initial', 'reference')}. With them, heavy ball "
            f"changes it by {percent('reference_initial_heavy_ball', 'reference_initial')}, and Adam first by "
            f"{percent('reference_initial_adam', 'reference_initial')}.",
            "**The settings of the paper's code together** (skeleton, initial weights, dropout 0.1, constant learning "
            f"rate). Heavy ball changes the perplexity by {percent('code_heavy_ball', 'code')}, and Adam first by "
            f"{percent('code_adam', 'code')}. Dropout and constant learning rate change the perplexity of the "
            "plain sum by "
            f"{percent('code', 'reference_initial')}.",
            "**Adam and RmsProp in every layer** change the perplexity by "
            f"{percent('adam_every_1e-08')} (Adam, ε = 1e-8), {percent('adam_every_0.1')} (Adam, ε = 0.1), "
            f"{percent('rms_prop_every_1e-08')} (RmsProp, ε = 1e-8) and {percent('rms_prop_every_0.1')} (RmsProp, ε = "
            f"0.1). In these {len(every)} runs, {skipped} steps were skipped because a gradient was not finite.",
            "**μ from 0.3 to 0.9 at γ = 1.** " +
            holds(zero("mu_0.3", "mu_0.5", "heavy_ball", "mu_0.9"), "All four intervals contain 0. ") +
            f"**γ at μ = 0.7.** γ = 0.3 changes the perplexity by {percent('gamma_0.3')}, γ = 0.6 by "
            f"{percent('gamma_0.6')} and γ = 1.5 by {percent('gamma_1.5')}. " +
            holds(not zero("gamma_0.3") and better == seeds.seeds(),
                  f"With γ = 0.3, heavy ball is better than the plain sum with γ = 1 for {better} of {better} "
                  "seeds. ") +
            f"The plain sum with γ = 0.3 changes the perplexity by {percent('plain_gamma_0.3')}. If both have γ = 0.3, "
            f"heavy ball changes the perplexity of the plain sum by {percent('gamma_0.3', 'plain_gamma_0.3')}. The "
            "effective step γ / (1 − μ) of this heavy ball is 1.",
            f"**Lemma 1.** The plain sum (μ = 0) is stable for {min(shares):.0f} to {max(shares):.0f} % of the "
            "eigenvalues of −∂u/∂x in a layer (means over seeds). " +
            holds(min(lost) > 0, f"If μ = 0.7, the share is smaller by {min(lost):.1f} to {max(lost):.1f} percentage "
                  "points, in each layer and row. ") +
            "On the real axis, the stable range of μ = 0.7 contains that of μ = 0. Therefore the eigenvalues for which "
            "only the plain sum is stable are complex.")


    def directions(self):
        """Compares the mixture's output with the direction v of definition 1 (metric::pareto_gap)."""
        cosines = {case: [mean for mean, _ in self.layer(case, "/direction/cosine", 1)]
                   for case in papers.MOMENTUM_DIRECTIONS}
        return "\n\n".join([
            *(self.layers(papers.MOMENTUM_DIRECTIONS, title, f"/direction{pointer}", *of)
              for title, pointer, *of in MOMENTUM_DIRECTIONS),
            items("From layer to layer, the mean cosine is " + "; ".join(
                f"{min(of):.2f} to {max(of):.2f} ({self.labels()[case]})" for case, of in cosines.items()) + ".")])

    def norms(self):
        """Compares the signs of the paper's figures 2, 3, 5 and 6 to 10 with the layers of the runs."""
        labels, clean = self.labels(), "smoe"
        layers = range(len(self.study.runs[clean][0]["layers"]))
        first = self.study.runs[clean][0]["curve"]["step"][0]
        change = lambda l: Measure("", lambda run: run["curve"]["norm"][-1][l] - run["curve"]["norm"][0][l])
        even = lambda l: Measure("", lambda run: -sum(s * math.log(s) for s in run["layers"][l]["rank"] if s > 0))
        head = ["layer", *(str(l + 1) for l in layers)]
        depth = Interval.of([run["layers"][-1]["norm"] - run["layers"][0]["norm"] for run in self.study.runs[clean]])
        cases = [case for case in papers.MOMENTUM_DIRECTIONS if case != clean]
        return "\n\n".join([
            paragraph(f"**Norm of the mixture's output, the last step minus step {first}** (in figures 2, 6 and 7 of "
                      "the paper, the norm falls in all layers of SMoE but one, and in all layers of the dense "
                      "mixture)"),
            table(head, [[labels[case], *(signed(Interval.of(self.study.values(case, change(l))), -1, 2)
                                          for l in layers)] for case in papers.MOMENTUM_NORMS]),
            paragraph("**Entropy of the picks' ranks by norm, minus that of SMoE, in nats** (in figures 5 and 8 to 10 "
                      "of the paper, momentum and Adam make the ranks more even)"),
            table(head, [[labels[case], *(signed(self.study.difference(case, clean, even(l)), 1, 3) for l in layers)]
                         for case in cases]),
            items("**Figure 3 of the paper has a smaller norm in deeper layers of SMoE.** Here the norm in the last "
                  f"layer minus that in the first is {signed(depth, -1, 2)}.")])

    def speeds(self):
        """Compares the steps until a perplexity of the validation text with the times of the paper's table 12."""
        minutes, cases = papers.MOMENTUM_MINUTES, [case for case, _ in papers.MOMENTUM_SPEEDS]
        study = self.study.common(cases)
        level = papers.MOMENTUM_LEVEL * statistics.mean(run["curve"]["valid"][-1] for run in study.runs["smoe"])
        steps = Measure("", lambda run: steps_until(run["curve"], level))
        rows = []
        for case, label in papers.MOMENTUM_SPEEDS:
            effect = self.effect(minutes[case], minutes["smoe"], 0) if case in minutes and case != "smoe" else None
            row = [label, "not reached in all runs", "", "" if effect is None else shown(effect, 1, True), ""]
            if None not in study.values(case, steps):
                row[1] = spread(study.summary(case, steps), 0)
                if case != "smoe":
                    interval = self.percent(case, "smoe", steps, study)
                    row[2], row[4] = between(interval, 1), "" if effect is None else verdict(interval, effect)
            rows.append(row)
        return f"**Steps until a validation perplexity of {level:.1f}** ({study.seeds()} seeds)\n\n" + table(
            ["model", "steps", "Δ, %", "paper (time), %", "effect of the paper"], rows)

    def parts(self):
        return {**super().parts(), "directions": self.directions(), "norms": self.norms(), "speeds": self.speeds()}


def steps_until(curve, level):
    """Returns the step at which a falling perplexity reaches a level, or None. Between two points of the curve, the
    logarithm of the perplexity is linear."""
    points = list(zip(curve["step"], curve["valid"]))
    for (step, above), (end, below) in zip(points, points[1:]):
        if below <= level < above:
            return step + (end - step) * math.log(above / level) / math.log(above / below)
    return None


class Graph(Language):
    def rules(self):
        """Compares update rules with each gate."""
        plain, softmax = papers.RULES[0][0], papers.GATES[0][0]
        clean, cases = self.CLEAN, [gate + rule for gate, _ in papers.GATES for rule, _ in papers.RULES]
        study = self.study.common(cases)
        values = lambda gate, rule: study.values(gate + rule, clean)
        within = lambda gate, rule: self.percent(gate + rule, gate + plain, clean, study)

        def together(gate, rule):
            """Returns the change by the rule with this gate minus that with softmax, in % of the mean of softmax."""
            of = zip(values(gate, rule), values(gate, plain), values(softmax, rule), values(softmax, plain))
            return Interval.of([(a - b) - (c - d) for a, b, c, d in of]).scaled(
                100 / study.summary(softmax + plain, clean)[0])

        head = ["gate", *(label for _, label in papers.RULES)]
        rules, gates = papers.RULES[1:], papers.GATES[1:]
        pairs = [(f"{label} with {name}", together(gate, rule)) for gate, label in gates for rule, name in rules]
        helps = [label for label, interval in pairs if interval.high < 0]
        harms = [label for label, interval in pairs if interval.low > 0]
        widths = [interval.visible() for _, interval in pairs]
        return "\n\n".join([
            f"**Perplexity on clean text** ({study.seeds()} seeds)",
            table(head, [[label, *(spread(study.summary(gate + rule, clean)) for rule, _ in papers.RULES)]
                         for gate, label in papers.GATES]),
            "**Change of the perplexity by the rule, in %, relative to the plain rule with the same gate**",
            table([head[0], *head[2:]], [[label, *(between(within(gate, rule)) for rule, _ in rules)]
                                         for gate, label in papers.GATES]),
            "**Change of the perplexity by the gate, in %, relative to softmax with the same rule**",
            table(head, [[label, *(between(self.percent(gate + rule, softmax + rule, clean, study))
                                   for rule, _ in papers.RULES)] for gate, label in gates]),
            paragraph("**Change by the rule with this gate minus the change by the same rule with softmax, in % of the "
                      "perplexity of softmax with the plain rule.** If an interval is below 0, the gate and the rule "
                      "help each other."),
            table([head[0], *head[2:]], [[label, *(between(together(gate, rule)) for rule, _ in rules)]
                                         for gate, label in gates]),
            items(f"**Pairs that help each other:** {'; '.join(helps) or 'none'}. **Pairs that harm each other:** "
                  f"{'; '.join(harms) or 'none'}. If no pair had an effect, {0.05 * len(pairs):.1f} of the "
                  f"{len(pairs)} intervals would be expected not to contain 0.",
                  "**Power.** The smallest difference that has a power of 0.8 in this table depends on the pair: "
                  f"{min(widths):.1f} to {max(widths):.1f} %.")])

    def parts(self):
        return {**super().parts(), "rules": self.rules(), "fine-tuning": Classification().text()}

    def costs(self):
        printed = super().costs()

        def reading(kind):
            """Returns the lowest and the highest median of the rows whose label ends with `kind`."""
            rows = [row.strip("| ").split(" | ") for row in printed.splitlines()[2:]]
            ratios = [row[5].split(" ")[0] for row in rows if row[0].endswith(kind)]
            return f"{min(ratios)} to {max(ratios)}"

        return printed + "\n\n" + items(
            "In table 8 of the paper, the forward pass takes 1.048 times the time and 1.008 times the memory of the "
            "baseline with similarity, and 1.070 times the time and 1.060 times the memory with attention. Here "
            f"inference takes {reading('similarity')} times as long with similarity and {reading('attention')} times "
            "as long with attention.")

    LAYERS = [
        ("Words that change their experts in the last sixtieth of the steps, in % (figure 3)", "/fluctuation", 100, 1),
        ("Mean entropy of a word's probabilities, in nats (figure 3)", "/entropy", 1, 3),
        ("Standard deviation of the experts' loads, divided by their mean", "/load_variation", 1, 2)]

    def __init__(self):
        super().__init__("graph_of_tokens", papers.GRAPH_OF_TOKENS)
        self.study.include("graph_of_tokens_500", "_500")  # runs of 500 steps

    def prefixes(self):
        labels, rows = self.labels(), []
        for case in papers.GRAPH_OF_TOKENS_LAYERS:
            rows.append([labels[case], *(spread(self.study.summary(case, Measure(name, lambda run: run[name])))
                                         for name in ("whole", "prefixes"))])
        return ("**Perplexity of the first validation block: whole sequences, and sequences cut off before the "
                "predicted word**\n\n" +
                table(["model", "whole", "cut off"], rows))

    def mean_of_layers(self, case, baseline, pointer, scale):
        mean = Measure(pointer, lambda run: scale * statistics.mean(layer[pointer[1:]] for layer in run["layers"]))
        return self.study.difference(case, baseline, mean)

    def routing(self):
        """Compares means over the layers. The paper draws the numbers and prints only the sign of the differences:
        fewer changes and a lower entropy for both routers (figures 3 and 5)."""
        labels, rows = self.labels(), []
        for case in papers.GRAPH_OF_TOKENS_LAYERS:
            baseline = "k_1" if case.startswith("k_1") else "smoe"
            if case == baseline:
                continue
            changes, entropy, load = (self.mean_of_layers(case, baseline, pointer, scale)
                                      for _, pointer, scale, _ in self.LAYERS)
            rows.append([labels[case], between(changes, 1), verdict_on_sign(changes, -1), between(entropy, 2),
                         verdict_on_sign(entropy, -1), between(load)])
        return ("**Routing, mean over the layers: difference from the baseline, SMoE or K = 1**\n\n"
                "The paper prints no numbers here, so only the sign is compared.\n\n" +
                table(["model", "words that change experts, points", "fewer, as in the paper", "entropy, nats",
                       "lower, as in the paper", "deviation of loads"], rows))

    def tables(self):
        return "\n\n".join([self.perplexities(), self.prefixes(), self.routing(),
                            *(self.layers(papers.GRAPH_OF_TOKENS_LAYERS, *of) for of in self.LAYERS),
                            self.layers(papers.GRAPH_OF_TOKENS_ON_ITSELF, "Mean weight S_ii of a word on itself, in % "
                                        "(500 steps)", "/on_itself", 100, 1)])

    def results(self):
        clean = self.CLEAN
        percent = lambda case, baseline: between(self.percent(case, baseline, clean), 1) + " %"
        all_of = lambda kind: [(case, rows[0][0]) for _, _, rows in self.groups for case, _, _ in rows[1:]
                               if kind(case)]
        whole = lambda case: not case.endswith("_500")
        similar = sorted(set(all_of(lambda c: whole(c) and "attention" not in c and "sigma" not in c)))
        reading = lambda case: case.endswith(("_v_o", "_of_sequence", "_weights", "_every"))
        attending = sorted(set(all_of(lambda c: whole(c) and not reading(c) and ("attention" in c or "sigma" in c))))
        decided = [case for case, baseline in similar if not self.percent(case, baseline, clean).contains(0)]
        worse = [case for case, baseline in attending if self.percent(case, baseline, clean).low > 0]
        of_one = self.study.common(["k_1_similarity", "k_1"])
        ahead = sum(a > b for a, b in zip(of_one.values("k_1_similarity", clean), of_one.values("k_1", clean)))
        confident = self.study.difference("smoe_attention_confident", "smoe_attention", clean)
        narrow = self.study.difference("smoe_sigma_root", "smoe_sigma_0.1", clean)
        flow = [between(self.mean_of_layers(f"smoe_{kind}", "smoe", "/fluctuation", 100), 1)
                for kind in ("similarity", "attention")]
        entropy = between(self.mean_of_layers("smoe_attention", "smoe", "/entropy", 1))
        readings = [(label, f"smoe_attention{of}_500") for label, of in
                    (("m = H · v O", ""), ("m = v O", "_v_o"), ("one head per sequence and m = v O", "_of_sequence"),
                     ("A instead of the posterior", "_weights"), ("all heads and m = v O", "_every"))]
        over_plain = "; ".join(f"{label}: {percent(case, 'smoe_500')}" for label, case in readings)
        longer = "; ".join(f"{label}: {percent(case.removesuffix('_500'), 'smoe')}" for label, case in readings)
        itself = {case: [m for m, _ in self.layer(case, "/on_itself", 100)]
                  for case in papers.GRAPH_OF_TOKENS_ON_ITSELF}
        weight = lambda case: f"{min(itself[case]):.0f} to {max(itself[case]):.0f} %"
        return items(
            f"**Effects of the paper on clean text:**\n{by_verdict(self.effects(0, clean))}",
            powers(self.effects(0, clean)),
            f"**Similarity.** In {len(similar) - len(decided)} of {len(similar)} cases, the interval of the change by "
            f"similarity contains 0. The narrowest interval is that of τ = 2: {percent('smoe_tau_2', 'smoe')}. If K = "
            f"1, similarity is worse for {ahead} "
            f"of {of_one.seeds()} seeds: {percent('k_1_similarity', 'k_1')}.",
            f"**A learned W_s** changes the perplexity of SMoE by {percent('smoe_similarity_learned', 'smoe')}. "
            "Compared with similarity in which W_s is the identity, it changes the perplexity by "
            f"{percent('smoe_similarity_learned', 'smoe_similarity')}.",
            "**S_ii, the weight of a word's own probabilities in its mixed probabilities,** is after 500 steps, "
            "depending on the layer, "
            f"{weight('smoe_tau_0.1_500')} if τ = 0.1, {weight('smoe_similarity_500')} if τ = 1, and "
            f"{weight('smoe_tau_root_500')} if τ = √D. " +
            holds(min(itself["smoe_tau_0.1_500"]) > 95, "Therefore the row τ = 0.1 is a test of almost no mixing."),
            "**τ that changes during training** (table 10). If τ falls from 10 to 0.01, similarity changes the "
            f"perplexity by {percent('smoe_tau_falls', 'smoe')}; if τ rises from 0.01 to 10, by "
            f"{percent('smoe_tau_rises', 'smoe')}. The paper does not name the shape of the schedule. Here log τ is "
            "linear in the number of steps.",
            "**With all experts (the dense form of eq. (7) and (15), 500 steps),** similarity changes the perplexity "
            f"by {percent('dense_similarity_500', 'dense_500')} and attention by "
            f"{percent('dense_attention_500', 'dense_500')}.",
            f"**Attention-aware routing, one head per word and m = H · v O,** is worse than its baseline in "
            f"{len(worse)} of {len(attending)} cases after 1,600 steps. SMoE: {percent('smoe_attention', 'smoe')}; "
            "GLaM: "
            f"{percent('glam_attention', 'glam')}; X-MoE: {percent('x_moe_attention', 'x_moe')}; SMoE-dropout: "
            f"{percent('smoe_dropout_attention', 'smoe_dropout')}.",
            "**Readings of attention-aware routing.** The text of the paper allows several readings. After 500 steps, "
            f"they change the perplexity of SMoE as follows. {over_plain}. " +
            holds(all(self.percent(case, "smoe_500", clean).low > 0 for _, case in readings),
                  "Each reading is worse than no mixing. ") +
            f"After 1,600 steps: {longer}. "
            "In the first reading, the weights A of the attention instead of the posterior change the perplexity by "
            f"{percent('smoe_attention_weights_500', 'smoe_attention_500')} after 500 steps and by "
            f"{percent('smoe_attention_weights', 'smoe_attention')} after 1,600 steps. If the router follows one head "
            "per sequence, the choice of this head depends on the words that follow.",
            f"**Width σ.** The perplexity with σ = √D minus that with σ = 0.1 is {between(narrow)}. **Only confident "
            "words** means that a word takes probabilities only from words whose entropy is not larger than its own. "
            f"With attention, this condition changes the perplexity by {between(confident)}.",
            "**A similarity-aware router that also sees the words after its own** changes the perplexity of SMoE by "
            f"{percent('smoe_similarity_ahead', 'smoe')}. " +
            holds(self.percent("smoe_similarity_ahead", "smoe", clean).contains(0),
                  "Such a router leaks information from later words, but this interval shows no effect of the leak."),
            "**Routing of SMoE, mean over the layers.** Similarity changes the share of words that change their "
            f"experts by {flow[0]} points, and attention changes this share by {flow[1]} points. Attention changes the "
            f"entropy by {entropy} nats. In figure 3 of the paper, each of the two routers lowers the share and the "
            "entropy.")
