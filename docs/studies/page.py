"""page.py [check]: writes the tables and the conclusions of the pages of the studies from their stored runs, or reports
which are out of date."""
import math
import pathlib
import statistics
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import papers
from generated_parts import filled
from intervals import Interval, Measure, Study, verdict, verdict_on_sign

FOLDER = pathlib.Path(__file__).resolve().parent


def shown(value, decimals=2, sign=False):
    digits = f"{abs(value):.{decimals}f}"
    if not digits.strip("0."):
        return digits
    return ("−" if value < 0 else "+" if sign else "") + digits


def between(interval, decimals=2):
    """Formats an interval: mean [low, high]."""
    mean, low, high = (shown(v, decimals, True) for v in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"


def spread(summary, decimals=2):
    return f"{shown(summary[0], decimals)} ± {shown(summary[1], decimals)}"


def table(head, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *rows]]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(lines).replace("|  |", "| |").replace("|  |", "| |")


def items(*texts):
    """Formats the items of a list. The lines of an item that begin with a hyphen are items below it."""
    lines = []
    for text in texts:
        for at, line in enumerate(text.split("\n")):
            indent = "- " if at == 0 else "  - "
            lines.append(textwrap.fill(line, 120, initial_indent=indent, subsequent_indent=" " * len(indent),
                                       break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines)


def holds(condition, sentence):
    """Returns a sentence that is true only under a condition on the runs."""
    if not condition:
        raise ValueError(f"page.py: the runs no longer support a sentence, rewrite it: {sentence}")
    return sentence


def grouped(labels):
    """Formats labels, which are (verdict, label), by verdict as lines of an item."""
    found = {}
    for name, label in labels:
        found.setdefault(name, []).append(label)
    order = ["confirmed", "excluded", "excluded, same sign", "excluded, opposite sign", "not decided"]
    return "\n".join(f"{v} ({len(found[v])}): {'; '.join(found[v])}" for v in order if v in found)


def by_verdict(effects):
    """Formats effects, which are (label, interval, effect of the paper), by verdict as lines of an item."""
    labels = []
    for label, interval, effect in effects:
        name = verdict(interval, effect)
        seeds = f" [about {interval.seeds_for(effect):,} seeds]" if name == "not decided" else ""
        labels.append((name, label + seeds))
    return grouped(labels)


def powers(effects):
    """Formats effects, which are (label, interval, effect of the paper), by their power as lines of an item. Leaves out
    intervals of width 0."""
    found = sorted(((interval.power(effect), label) for label, interval, effect in effects if interval.half > 0),
                   reverse=True)
    enough = [label for of, label in found if of >= 0.8]
    less = [f"{label}: {of:.2f}" for of, label in found if of < 0.8]
    return "\n".join(["**Power** of an effect that is as large as in the paper:",
                      *(f"{title} ({len(labels)}): {'; '.join(labels)}" for title, labels in
                        (("0.8 or more", enough), ("less", less)) if labels)])


class Page:
    def parts(self):
        """Returns the generated parts: name → text."""
        return {"results": self.results(), "tables": self.tables()}


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
        return (FOLDER / f"runs/{self.name}_costs.md").read_text().rstrip()

    def percent(self, case, baseline, measure, study=None):
        """Returns the difference in % of the baseline's mean, with the seeds of a study or else of both cases."""
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
        """Returns (mean, deviation) over seeds for each layer."""
        seeds = self.of_layers(case, pointer, scale)
        return [(statistics.mean(of), statistics.stdev(of)) for of in zip(*seeds)]

    def of_layers(self, case, pointer, scale):
        """Returns the number of each layer for each seed."""
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
                if title.startswith(("Half", "The skeleton")):
                    label += f" ({title[0].lower() + title[1:]})"
                elif rows is not self.groups[0][2] and rows[0][1] not in label:
                    label = f"{rows[0][1]} {label}"
                found[case] = (label, self.percent(case, rows[0][0], measure, self.of_group(rows)), effect)
        return list(found.values())


MOMENTUM_LAYERS = [
    ("Mean norm of the mixture's output (figures 2 and 3)", "/norm", 1, 2),
    ("Picks whose expert answers with the largest norm of all, in % (figure 5)", "/rank/0", 100, 1),
    ("Eigenvalues σ of −∂u/∂x at which the plain sum settles, in % (lemma 1, μ = 0)", "/plain/stable", 100, 1),
    ("The same with μ = 0.7", "/momentum/stable", 100, 1),
    ("Mean of the larger |λ|, μ = 0", "/plain/radius", 1, 3),
    ("Mean of the larger |λ|, μ = 0.7", "/momentum/radius", 1, 3)]


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
        better = sum(a < b for a, b in zip(seeds.values("gamma_0.3", clean), seeds.values("smoe", clean)))
        skeleton = {case: between(self.study.difference(case, baseline, clean), 1) for case, baseline in
                    (("reference", "smoe"), ("reference_heavy_ball", "heavy_ball"))}
        return items(
            f"**Effects of the paper on clean text:**\n{by_verdict(self.effects(0, clean))}",
            powers(self.effects(0, clean)),
            f"**A mixture in every layer.** Heavy ball changes the perplexity by {percent('heavy_ball')}. For rules "
            f"other than Adam and RmsProp, the intervals are ± {min(halves):.1f} to ± {max(halves):.1f} %. Smaller "
            "effects are not visible with these seeds.",
            f"**GLaM.** Heavy ball changes the perplexity by {percent('glam_heavy_ball', 'glam')}. " +
            holds(of_glam == "excluded", "An effect as large as the paper's is excluded. The sign is not decided."),
            f"**Adam in the first layer, ε at γ = 1.** The perplexity changes by {changes(by_epsilon)}. " +
            holds(all(verdict(adam(case), paper).startswith("excluded") for case, _ in by_epsilon),
                  f"No interval contains the effect of the paper, {shown(paper, 1, True)} %.") +
            " The first layer computes x + 0.1 γ u / (0.0316 |u| + ε) for each element u of the mixture's output. The "
            "derivative with respect to u is 0.1 γ ε / (0.0316 |u| + ε)². If γ = 1 and |u| = 1, it is 1e-6 for ε = "
            "1e-8 and 0.58 for ε = 0.1. Hence, if ε is small, almost no gradient reaches the first mixture, and its "
            "output enters as almost 3.16 γ sign(u). The runs do not show which of the two raises the perplexity.",
            f"**Adam in the first layer, γ at ε = 0.1.** The perplexity changes by {changes(by_gamma)}.",
            f"**With ε = 1e-8,** Adam first changes the perplexity by {percent('half_adam', 'half_smoe')} at half the "
            f"depth and by {percent('glam_adam', 'glam')} in GLaM. RmsProp first, with a mixture in every layer, "
            f"changes it by {percent('rms_prop')}.",
            f"If Adam is first, the mean norms of the outputs in layers 3 to 6 are {min(ratios[2:]):.1f} to "
            f"{max(ratios[2:]):.1f} times those of the plain sum (layer 1: {ratios[0]:.1f}, layer 2: {ratios[1]:.1f}). "
            "The reason was not examined.",
            "**The skeleton of the paper's code** (post-norm, double residual) changes the perplexity of the equation "
            f"by {skeleton['reference']} without momentum and by {skeleton['reference_heavy_ball']} with heavy ball. "
            f"In the skeleton, heavy ball changes the perplexity by {percent('reference_heavy_ball', 'reference')}, "
            f"and Adam first by {percent('reference_adam', 'reference')}.",
            "**The skeleton with the initial weights of experts of the paper's code.** These weights change the "
            f"perplexity of the plain sum by {percent('reference_initial', 'reference')}. With them, heavy ball "
            f"changes it by {percent('reference_initial_heavy_ball', 'reference_initial')}, and Adam first by "
            f"{percent('reference_initial_adam', 'reference_initial')}.",
            "**μ from 0.3 to 0.9 at γ = 1.** " +
            holds(zero("mu_0.3", "mu_0.5", "heavy_ball", "mu_0.9"), "All four intervals contain 0. ") +
            f"**γ at μ = 0.7.** γ = 0.3 is better for {better} of {seeds.seeds()} seeds, " +
            holds(zero("gamma_0.3"), f"but its interval contains 0: {percent('gamma_0.3')}. ") +
            holds(zero("gamma_1.5"), f"So does the interval of γ = 1.5: {percent('gamma_1.5')}."),
            f"**Lemma 1.** If μ = 0, {min(shares):.0f} to {max(shares):.0f} % of the eigenvalues of a layer are stable "
            "(means over seeds). " +
            holds(min(lost) > 0, f"If μ = 0.7, the share is smaller by {min(lost):.1f} to {max(lost):.1f} percentage "
                  "points, in each layer and row. ") +
            "On the real axis, the stable range of μ = 0.7 contains that of μ = 0. Therefore the eigenvalues "
            "that become unstable are complex.")


class Graph(Language):
    def costs(self):
        printed = super().costs()

        def reading(kind):
            """Returns the lowest and the highest median of the rows whose label ends with `kind`."""
            rows = [row.strip("| ").split(" | ") for row in printed.splitlines()[2:]]
            ratios = [row[5].split(" ")[0] for row in rows if row[0].endswith(kind)]
            return f"{min(ratios)} to {max(ratios)}"

        return printed + "\n\n" + items(
            "Table 8 of the paper has 1.048 times the time and 1.008 times the memory for similarity, and 1.070 and "
            "1.060 for attention, both in the forward pass. Here reading takes "
            f"{reading('similarity')} times as long with similarity and {reading('attention')} times as long with "
            "attention.")

    LAYERS = [
        ("Words that change their experts in the last sixtieth of the steps, in % (figure 3)", "/fluctuation", 100, 1),
        ("Mean entropy of a word's probabilities, in nats (figure 3)", "/entropy", 1, 3),
        ("Deviation of the experts' loads over their mean", "/load_variation", 1, 2)]

    def __init__(self):
        super().__init__("graph_of_tokens", papers.GRAPH_OF_TOKENS)
        shorter = Study("graph_of_tokens_500")  # runs of 500 steps
        for case, runs in shorter.runs.items():
            self.study.runs[f"{case}_500"], self.study.options[f"{case}_500"] = runs, shorter.options[case]

    def prefixes(self):
        labels, rows = self.labels(), []
        for case in papers.GRAPH_OF_TOKENS_LAYERS:
            rows.append([labels[case], *(spread(self.study.summary(case, Measure(name, lambda run: run[name])))
                                         for name in ("whole", "prefixes"))])
        return ("**A block of the validation text, whole and word by word with what follows cut off**\n\n" +
                table(["model", "whole", "cut off"], rows))

    def mean_of_layers(self, case, baseline, pointer, scale):
        mean = Measure(pointer, lambda run: scale * statistics.mean(layer[pointer[1:]] for layer in run["layers"]))
        return self.study.difference(case, baseline, mean)

    def routing(self):
        """Differences of the mean over the layers. The paper draws the numbers and prints only their sign: fewer
        changes and a lower entropy for both routers (figures 3 and 5)."""
        labels, rows = self.labels(), []
        for case in papers.GRAPH_OF_TOKENS_LAYERS:
            baseline = "k_1" if case.startswith("k_1") else "smoe"
            if case == baseline:
                continue
            changes, entropy, load = (self.mean_of_layers(case, baseline, pointer, scale)
                                      for _, pointer, scale, _ in self.LAYERS)
            rows.append([labels[case], between(changes, 1), verdict_on_sign(changes, -1), between(entropy, 2),
                         verdict_on_sign(entropy, -1), between(load)])
        return ("**Routing, mean over the layers, minus the first row of its table**\n\n"
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
        attending = sorted(set(all_of(lambda c: whole(c) and ("attention" in c or "sigma" in c))))
        decided = [case for case, baseline in similar if not self.percent(case, baseline, clean).contains(0)]
        worse = [case for case, baseline in attending if self.percent(case, baseline, clean).low > 0]
        ahead = sum(a > b for a, b in zip(self.study.values("k_1_similarity", clean), self.study.values("k_1", clean)))
        confident = self.study.difference("smoe_attention_confident", "smoe_attention", clean)
        narrow = self.study.difference("smoe_sigma_root", "smoe_sigma_0.1", clean)
        flow = [between(self.mean_of_layers(f"smoe_{kind}", "smoe", "/fluctuation", 100), 1)
                for kind in ("similarity", "attention")]
        entropy = between(self.mean_of_layers("smoe_attention", "smoe", "/entropy", 1))
        readings = [(label, f"smoe_attention{of}_500") for label, of in
                    (("m = H · v O", ""), ("m = v O", "_v_o"), ("one head per sequence and m = v O", "_of_sequence"),
                     ("A instead of the posterior", "_weights"), ("all heads and m = v O", "_every"))]
        over_plain = "; ".join(f"{label}: {percent(case, 'smoe_500')}" for label, case in readings)
        itself = {case: [m for m, _ in self.layer(case, "/on_itself", 100)]
                  for case in papers.GRAPH_OF_TOKENS_ON_ITSELF}
        weight = lambda case: f"{min(itself[case]):.0f} to {max(itself[case]):.0f} %"
        return items(
            f"**Effects of the paper on clean text:**\n{by_verdict(self.effects(0, clean))}",
            powers(self.effects(0, clean)),
            f"**Similarity.** The intervals of {len(similar) - len(decided)} of {len(similar)} cases contain 0. The "
            f"narrowest is that of τ = 2: {percent('smoe_tau_2', 'smoe')}. If K = 1, similarity is worse for {ahead} "
            f"of {self.study.seeds()} seeds: {percent('k_1_similarity', 'k_1')}.",
            "**The weight S_ii of a word on itself** after 500 steps is, from layer to layer, "
            f"{weight('smoe_tau_0.1_500')} if τ = 0.1, {weight('smoe_similarity_500')} if τ = 1, and "
            f"{weight('smoe_tau_root_500')} if τ = √D. " +
            holds(min(itself["smoe_tau_0.1_500"]) > 95, "Therefore the row τ = 0.1 tests almost nothing."),
            f"**Attention-aware routing, one head per word and m = H · v O,** is worse in {len(worse)} of "
            f"{len(attending)} cases after 1,600 steps. SMoE: {percent('smoe_attention', 'smoe')}; GLaM: "
            f"{percent('glam_attention', 'glam')}; X-MoE: {percent('x_moe_attention', 'x_moe')}; SMoE-dropout: "
            f"{percent('smoe_dropout_attention', 'smoe_dropout')}.",
            "**Readings of attention-aware routing**, because the text of the paper allows several. After 500 steps "
            f"they change the perplexity of SMoE as follows. {over_plain}. " +
            holds(all(self.percent(case, "smoe_500", clean).low > 0 for _, case in readings),
                  "Each reading is worse than no mixing. ") +
            "The weights A of the attention instead of the posterior change the perplexity of the first reading by "
            f"{percent('smoe_attention_weights_500', 'smoe_attention_500')}. One head per sequence depends on the "
            "words that follow.",
            f"**Width σ.** σ = √D minus σ = 0.1 is {between(narrow)} in perplexity. **Only confident words.** With "
            f"attention, this condition changes the perplexity by {between(confident)}.",
            "**A router that sees the words after its own** changes the perplexity by "
            f"{percent('smoe_similarity_ahead', 'smoe')}. " +
            holds(self.percent("smoe_similarity_ahead", "smoe", clean).contains(0),
                  "Looking ahead leaks information, but this interval shows no effect of the leak."),
            "**Routing, mean over the layers of SMoE.** Similarity changes the share of words that change their "
            f"experts by {flow[0]} points, and attention changes it by {flow[1]} points. Attention changes the entropy "
            f"by {entropy} nats. In figure 3 of the paper both routers lower both numbers.")


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
            "**Attention-aware.** Under corruption the differences of the seeds are "
            f"{by_seed}: {points('vmoe_attention', 1)} points. Only one reading of the paper was run; see "
            "[graph_of_tokens.md](graph_of_tokens.md).",
            f"**Soft MoE minus V-MoE** is {points('soft', 0)} points on clean images and {points('soft', 1)} points on "
            "corrupted ones. Soft MoE has mixtures in other layers and no class token, so this compares whole models, "
            "not only mixtures.",
            f"V-MoE has {parameters[0]} parameters in each row, and Soft MoE {parameters[1]}.")


class Mixtures(Page):
    """A study of paper 000, which draws curves and prints no numbers. Only the order of its models is compared."""

    def __init__(self, name, models, order, columns):
        """order: pairs of models, of which the paper finds the first one better.
        columns: (start of the names of the cases, title, measure, decimals, sign of the better side)."""
        self.study, self.labels, self.pairs, self.columns = Study(name), dict(models), order, columns

    def difference(self, a, b, column):
        return self.study.difference(column[0] + a, column[0] + b, column[2])

    def models(self):
        rows, no_gate = [], "multi_head"
        for case, label in self.labels.items():
            rows.append([label])
            for column in self.columns:
                start, _, measure, decimals, _ = column
                rows[-1] += [spread(self.study.summary(start + case, measure), decimals),
                             "" if case == no_gate else between(self.difference(case, no_gate, column), decimals)]
        head = ["model"] + [cell for column in self.columns for cell in (column[1], "Δ")]
        return (f"**All models** ({self.study.seeds()} seeds). Δ is the difference from the transformer without a "
                f"gate.\n\n{table(head, rows)}")

    def against(self, a, b, column):
        """Returns the verdict on the order of the paper."""
        return verdict_on_sign(self.difference(a, b, column), column[4])

    def differences(self, pairs, *more):
        """more: (title, function of a pair and a column) of an additional cell."""
        rows = []
        for a, b in pairs:
            rows.append([f"{self.labels[a]} − {self.labels[b]}"])
            for column in self.columns:
                cells = [of(a, b, column) for _, of in more]
                rows[-1] += [between(self.difference(a, b, column), column[3]), *cells]
        head = [cell for column in self.columns for cell in (column[1], *(title for title, _ in more))]
        return table(["models", *head], rows)

    def power(self):
        lines = ["**Power.** The smallest difference that has a power of 0.8:"]
        for column in self.columns:
            lines.append(f"{column[1]}: " + "; ".join(
                f"{self.labels[a]} − {self.labels[b]}: {self.difference(a, b, column).visible():.{column[3]}f}"
                for a, b in self.pairs))
        return "\n".join(lines)

    def tables(self):
        return (f"{self.models()}\n\n**The order of the models.** In the paper, the first model of each pair is "
                f"better.\n\n{self.differences(self.pairs, ('the order of the paper', self.against))}")


def last(curve, scale=1):
    return Measure(curve, lambda run: scale * run[curve][-1])


def line(x, y):
    """Returns slope and R² of a line that is fitted by least squares."""
    mx, my = statistics.mean(x), statistics.mean(y)
    xx, yy = sum((a - mx) ** 2 for a in x), sum((b - my) ** 2 for b in y)
    xy = sum((a - mx) * (b - my) for a, b in zip(x, y))
    return xy / xx, xy * xy / (xx * yy)


class Mot(Mixtures):
    """Paper 000 on the data of its definition 1."""

    LOSS, LEAST = last("test_loss"), Measure("least", lambda run: min(run["test_loss"]))

    def __init__(self):
        super().__init__("mot", papers.MOT, papers.MOT_ORDER, [
            ("", "test loss", self.LOSS, 3, -1), ("", "test accuracy, %", last("test_accuracy", 100), 2, 1)])
        self.options = self.study.options["mot"][0]

    def case(self, model="mot", **changed):
        """Returns the name of the case of a model whose other options are the defaults."""
        options = {**self.options, "model": model, **changed}
        return next(case for case, of in self.study.options.items() if of[0] == options)

    def values(self, of, case="mot"):
        return self.study.values(case, Measure("", of))

    def spread(self, of, decimals, case="mot"):
        return spread(self.study.summary(case, Measure("", of)), decimals)

    def snapshot(self, when, key, decimals, scale=1):
        return self.spread(lambda run: scale * run[when][key], decimals)

    def specialisation(self):
        stages = ("t1", "end")
        kept = lambda run: 100 * statistics.mean(a == b for a, b in zip(run["start"]["signal"], run["t1"]["signal"]))
        above = [Interval.of(self.values(lambda run: 100 * (run[when]["share"] - run[when]["share_by_chance"])))
                 for when in stages]
        mean = lambda when, key: statistics.mean(self.values(lambda run: run[when][key]))
        by_noise = max(abs(mean(when, key) - mean(f"{when}_noisy", key)) for when in stages
                       for key in ("used", "share", "uneven", "one_label"))
        return items(
            f"At T₁ the largest ⟨W_i, v_n⟩ of an expert is {self.snapshot('t1', 'margin', 2)} above the next one. That "
            f"is {self.snapshot('t1', 'margin', 2, self.options['start'] ** -0.5)} of √σ₀, the order that the "
            f"proposition gives. The smallest margin of the experts is {self.snapshot('t1', 'least_margin', 3)}.",
            f"{self.snapshot('t1', 'covered', 1)} of the {self.options['classes']} classes have a specialist. " +
            holds(max(self.values(kept)) < 50, f"{self.spread(kept, 0)} % of the experts keep the class of the start, "
                  "so the specialisation is not the initial one."),
            f"{self.snapshot('t1', 'used', 1)} of {self.options['experts']} experts get more than 1 % of the items.",
            f"{self.snapshot('t1', 'share', 0, 100)} % of the items of a class go to its specialists at T₁, and "
            f"{self.snapshot('end', 'share', 0, 100)} % at the end. Random routing with the same loads gives "
            f"{100 * mean('t1', 'share_by_chance'):.0f} %. The differences from it are {between(above[0], 0)} and "
            f"{between(above[1], 0)} points. " +
            holds(all(0 < of.low and of.high < 25 for of in above), "**The router hardly follows the classes.**"),
            "The proposition requires a share of 1/|M_n| for each specialist. The largest difference from it at T₁ is "
            f"{self.snapshot('t1', 'uneven', 2)}.",
            f"At T₁, Σ |n₊ − n₋| over experts and classes is {self.snapshot('t1', 'one_label', 2)} of the items. By "
            f"chance, these loads would give {mean('t1', 'one_label_by_chance'):.2f}. The almost equal loads at the "
            f"start, with noise, would give {mean('start_noisy', 'one_label_by_chance'):.2f}. " +
            holds(all(a > 3 * b for a, b in zip(self.values(lambda run: run["t1"]["one_label"]), self.values(
                lambda run: run["t1"]["one_label_by_chance"]))), "So the experts in use divide the items by label."),
            f"With noise, the means of the last four items differ by at most {by_noise:.3f}.")

    def attention(self):
        after = lambda who, query, key: lambda run: run[who][run["epoch"].index(self.options["t2"])][query][key]
        mine, routed, center = (after("attention", 0, 0), after("attention_routed", 0, 0),
                                after("attention_routed", 0, 1))
        others = {(a, b): statistics.mean(self.values(after("attention", a, b))) for a in range(4) for b in range(4)}
        largest = max(list(others)[1:], key=others.get)
        more = Interval.of([a - b for a, b in zip(self.values(center), self.values(routed))])
        return items(
            f"After stage II, p(v_n, v_n) is {self.spread(mine, 2)} for specialists, and {self.spread(routed, 2)} for "
            "the experts that the items are routed to.",
            holds(largest == (1, 0), f"For specialists, the largest of the other pairs is c_n to v_n: "
                  f"{self.spread(after('attention', 1, 0), 2)}."),
            "For the experts that the items are routed to, v_n attends to c_n with "
            f"{self.spread(center, 2)}. The difference from p(v_n, v_n) is {between(more)}.")

    def rate(self):
        def fits(case, curve, log):
            """Returns slope and R² of log(loss) over log(t), where t counts the epochs after stage II."""
            points = lambda run: [(log(t - t2), math.log(of)) for t, of in zip(run["epoch"], run[curve]) if t > t2]
            return [line(*zip(*points(run))) for run in self.study.runs[case]]

        t2, rows, found = self.options["t2"], [], {}
        for case in ("mot", "multi_head"):
            for law, log, decimals in (("exponential", float, 4), ("power law", math.log, 2)):
                rows.append([f"{self.labels[case]}, {law}"])
                for curve in ("test_loss", "train_loss"):
                    slopes, r2 = found[case, curve, law] = list(zip(*fits(case, curve, log)))
                    rows[-1] += [spread((statistics.mean(slopes), statistics.stdev(slopes)), decimals),
                                 spread((statistics.mean(r2), statistics.stdev(r2)), 3)]
        power, exponential = (found["multi_head", "test_loss", law] for law in ("power law", "exponential"))
        curves = [[statistics.mean(of) for of in zip(*(run["test_loss"] for run in self.study.runs[case]))]
                  for case in ("mot", "multi_head")]
        epochs = self.study.runs["mot"][0]["epoch"]
        passed = next(t for at, t in enumerate(epochs) if all(a > b for a, b in list(zip(*curves))[at:]))
        change = Interval.of(self.values(lambda run: run["test_loss"][-1] - run["test_loss"][run["epoch"].index(t2)]))
        head = ["fit to stage III", "test loss: slope", "R²", "training loss: slope", "R²"]
        return table(head, rows) + "\n\n" + items(
            holds(min(power[1]) > max(exponential[1]), "The power law fits the test loss of the transformer without a "
                  f"gate better than the exponential. Its exponent is {between(Interval.of(power[0]))}."),
            f"From T₂ to T, the test loss of MoT changes by {between(change, 3)}.",
            "The mean test loss of the transformer without a gate is below that of MoT from "
            f"{passed - t2} epochs after T₂ on.",
            f"At the end, ⟨W_i, v_n⟩ of eq. (11) is {self.snapshot('end', 'own', 2)} for the own class and "
            f"{self.snapshot('end', 'other', 2)} for the others.")

    def floor(self):
        rows, of = [], {}
        for noise in sorted({options[0]["noise"] for options in self.study.options.values()}):
            without, mot = of[noise] = [self.case(model, noise=noise) for model in ("attention_absent", "mot")]
            rows.append([f"{noise:g}", *(spread(self.study.summary(case, self.LEAST), 3) for case in (without, mot)),
                         between(self.study.difference(mot, without, self.LEAST), 3)])
        small = [noise for noise in of if 0 < noise <= 0.25]
        apart = [self.study.difference(of[noise][0], of[0][0], self.LEAST) for noise in small]
        falling = sum(run["test_loss"][-1] == self.LEAST.of(run) for noise in (0, *small)
                      for run in self.study.runs[of[noise][0]])
        count = self.study.seeds() * (1 + len(small))
        early = max(run["epoch"][run["test_loss"].index(self.LEAST.of(run))] for case in of[2]
                    for run in self.study.runs[case])
        return table(["σ_ξ", "without attention", "MoT", "MoT − without attention"], rows) + "\n\n" + items(
            holds(all(interval.contains(0) for interval in apart), "Without attention, the intervals of the changes "
                  f"from σ_ξ = 0 to {', '.join(f'{noise:g}' for noise in small)} contain 0: "
                  f"{'; '.join(between(interval, 3) for interval in apart)}."),
            f"Without attention and with σ_ξ at most 0.25, {falling} of {count} runs have their smallest loss at the "
            "last epoch.",
            f"With σ_ξ = 2, all runs of both models have their smallest loss at epoch {early} or before. At the end, "
            f"the losses are {spread(self.study.summary(of[2][0], self.LOSS), 3)} without attention and "
            f"{spread(self.study.summary(of[2][1], self.LOSS), 3)} with it.")

    def changed(self, head, rows, *more):
        """rows: (label, case). Compares the test losses of cases with that of the default options.
        more: (title, function of a case) of an additional cell."""
        change = {case: self.study.difference(case, "mot", self.LOSS) for _, case in rows if case != "mot"}
        apart = [label for label, case in rows if case in change and not change[case].contains(0)]
        cells = [[label, spread(self.study.summary(case, self.LOSS), 3),
                  between(change[case], 3) if case in change else "", *(of(case) for _, of in more)]
                 for label, case in rows]
        return (table([head, "test loss", "Δ", *(title for title, _ in more)], cells) + "\n\n" +
                f"Intervals that do not contain 0: {'; '.join(apart) or 'none'}.")

    def experts(self):
        counts = sorted({options[0]["experts"] for options in self.study.options.values()})
        return self.changed("M", [(str(count), self.case(experts=count)) for count in counts],
                            ("experts in use", lambda case: self.spread(lambda run: run["end"]["used"], 1, case)))

    def stages(self):
        t1, t2 = self.options["t1"], self.options["t2"]
        return self.changed("T₁ + length of stage II", [
            (f"{first} + {second}", self.case(t1=first, t2=first + second)) for first in (t1 // 2, t1, 2 * t1)
            for second in ((t2 - t1) // 2, t2 - t1, 2 * (t2 - t1))])

    def tables(self):
        return f"{super().tables()}\n\n{items(self.power())}"

    def parts(self):
        return {name: getattr(self, name)() for name in
                ("tables", "specialisation", "attention", "rate", "floor", "experts", "stages")}


class Whole(Mixtures):
    """Paper 000 with whole transformers as experts, on two tasks or sets of data."""

    def __init__(self, name, models, order, others, columns):
        """others: more pairs of models to compare. columns: (name of the task or data, title of its score, scale,
        decimals, sign of the better side)."""
        super().__init__(name, models, order, [(f"{of}.", title, last("score", scale), decimals, better)
                                               for of, title, scale, decimals, better in columns])
        self.others, self.scales = others, {f"{of}.": scale for of, _, scale, *_ in columns}

    def routing(self):
        in_use = Measure("", lambda run: math.exp(-sum(s * math.log(s) for s in run["share"][-1] if s > 0)))
        entropy = Measure("", lambda run: run["routing"]["dispatch_entropy"])
        starts = [start for start, *_ in self.columns]
        routed = [case for case in self.labels if not case.endswith("m1") and
                  "share" in self.study.runs[starts[0] + case][0]]
        rows = [[self.labels[case], *(spread(self.study.summary(start + case, of), 2)
                                      for start in starts for of in (in_use, entropy))] for case in routed]
        head = [f"{start[:-1]}: {of}" for start in starts for of in ("experts in use", "dispatch entropy")]
        return f"**Routing at the end**\n\n{table(['model', *head], rows)}"

    def after(self, case, column, epoch):
        """Returns the score of each seed after an epoch."""
        return [self.scales[column[0]] * run["score"][epoch - 1] for run in self.study.runs[column[0] + case]]

    def results(self):
        mixtures = [a for a, b in self.pairs if b == "multi_head"]
        name = lambda cases: ", ".join(self.labels[case] for case in cases) or "none"
        verdicts = [(self.against(a, b, column), f"{self.labels[a]} − {self.labels[b]} ({column[0][:-1]})")
                    for column in self.columns for a, b in self.pairs]
        lines = [f"**The order of the paper:**\n{grouped(verdicts)}"]
        for column in self.columns:
            start, title, _, decimals, better = column
            recipe = self.study.options[start + "multi_head"][0]["recipe"]
            t2, last_epoch = recipe["t2"], recipe["epochs"]
            mean = lambda case, epoch: better * statistics.mean(self.after(case, column, epoch))
            ahead = [case for case in mixtures
                     if any(mean(case, t) > mean("multi_head", t) for t in range(1, last_epoch + 1))]
            change = lambda case: between(Interval.of([b - a for a, b in zip(
                self.after(case, column, t2), self.after(case, column, last_epoch))]), decimals)
            changes = "; ".join(f"{self.labels[case]}: {change(case)}" for case in mixtures)
            best = max(self.labels, key=lambda case: mean(case, last_epoch))
            lines.append(f"**{title[0].upper()}{title[1:]}.** The best mean: {name([best])}. From T₂ to T, the score "
                         f"changes as follows: {changes}. Of these models, better in the mean than the transformer "
                         f"without a gate after at least one epoch: {name(ahead)}.")
        return items(*lines, self.power())

    def tables(self):
        return (f"{super().tables()}\n\n**Other differences**\n\n{self.differences(self.others)}\n\n"
                f"{self.routing()}")


MOT_TEXT = (papers.MOT_TEXT, papers.MOT_TEXT_ORDER, papers.MOT_TEXT_OTHERS,
            [("book", "which book, accuracy in %", 100, 1, 1), ("place", "where, root mean squared error", 1, 4, -1)])
MOT_VISION = (papers.MOT_VISION, papers.MOT_VISION_ORDER, papers.MOT_VISION_OTHERS,
              [("clean", "clean, accuracy in %", 100, 1, 1), ("corrupted", "corrupted, accuracy in %", 100, 1, 1)])


class ExpertCount(Page):
    """Paper 003. A case is a layer: its experts, patches P and number of experts M."""

    COUNTS = (4, 8, 16, 32, 64)
    ACCURACY, ENTROPY = Measure("accuracy", lambda run: run["accuracy"]), Measure("entropy", lambda run: run["entropy"])

    def __init__(self):
        self.study = Study("expert_count")

    @staticmethod
    def case(layer, count):
        """Returns the name of a case, for example mlp.p4.m8.theorem of the layer mlp.p4.theorem with 8 experts."""
        kind, patches, *more = layer.split(".")
        return ".".join([kind, patches, f"m{count}", *more])

    def difference(self, a, b, measure):
        """a, b: (layer, number of experts)."""
        return self.study.difference(self.case(*a), self.case(*b), measure)

    def by_count(self, *rows):
        """Returns a table with a column for each M. rows: (label, function of M that returns a cell)."""
        return table(["", *(f"M = {count}" for count in self.COUNTS)],
                     [[label, *(of(count) for count in self.COUNTS)] for label, of in rows])

    def values(self, layer, measure, decimals):
        return lambda count: spread(self.study.summary(self.case(layer, count), measure), decimals)

    def signed(self, interval, sign, decimals):
        return f"{between(interval, decimals)}, {verdict_on_sign(interval, sign)}"

    def best(self, layer, count, measure, sign, decimals):
        """Compares the number of experts that the paper finds best with each other number."""
        return lambda other: "" if other == count else self.signed(
            self.difference((layer, count), (layer, other), measure), sign, decimals)

    def sweep(self):
        accuracy, entropy = self.ACCURACY, self.ENTROPY
        layers = [(f"{kind.upper()}, P = {patches}", f"{kind}.p{patches}") for kind in ("mlp", "cnn")
                  for patches in (4, 8)]
        found = [row for label, layer in layers for row in (
            (f"{label}, accuracy in %", self.values(layer, accuracy, 1)),
            (f"{label}, entropy", self.values(layer, entropy, 2)))]
        optima = [("MLP", "mlp.p4", 16), ("CNN", "cnn.p4", 8)]
        order = [row for label, layer, count in optima for row in (
            (f"{label}: accuracy of M = {count} minus that of M", self.best(layer, count, accuracy, 1, 1)),
            (f"{label}: entropy of M = {count} minus that of M", self.best(layer, count, entropy, -1, 2)))]
        patches = lambda kind, count: self.difference((f"{kind}.p8", count), (f"{kind}.p4", count), accuracy)
        kinds = lambda of, count: self.difference((f"cnn.p{of}", count), (f"mlp.p{of}", count), accuracy)
        verdicts = lambda layer, count, measure, sign: [
            (verdict_on_sign(self.difference((layer, count), (layer, other), measure), sign), str(other))
            for other in self.COUNTS if other != count]
        return "\n\n".join([
            f"**Accuracy and entropy** ({self.study.seeds()} seeds)", self.by_count(*found),
            "**The best number of experts, P = 4.** In figure 1 of the paper, the accuracy is highest at M = 16 for "
            "MLP experts and at M = 8 for CNN experts. According to the paper, the entropy in figure 2 behaves in "
            "parallel.",
            self.by_count(*order),
            "**P = 8 minus P = 4, accuracy in points.** In the paper, P = 8 makes the MLP mixture worse, and the CNN "
            "mixture remains good.",
            self.by_count(("MLP", lambda count: self.signed(patches("mlp", count), -1, 1)),
                          ("CNN", lambda count: between(patches("cnn", count), 1))),
            "**CNN minus MLP, accuracy in points**",
            self.by_count(*((f"P = {of}", lambda count, of=of: between(kinds(of, count), 1)) for of in (4, 8))),
            items(*(f"**{label}: M = {count} has a higher accuracy than** M =\n"
                    f"{grouped(verdicts(layer, count, accuracy, 1))}" for label, layer, count in optima),
                  "**Power.** The smallest difference of accuracies, in points, that has a power of 0.8:\n" +
                  "\n".join(f"{label}, M = {count} minus M: " + "; ".join(
                      f"{other}: {self.difference((layer, count), (layer, other), accuracy).visible():.1f}"
                      for other in self.COUNTS if other != count and
                      self.difference((layer, count), (layer, other), accuracy).half > 0)
                      for label, layer, count in optima))])

    def stage(self, when, name):
        return Measure(name, lambda run: run[when][name])

    def theorem(self):
        share = lambda name: Measure(name, lambda run: run[name])
        rows = []
        for label, layer in (("MLP", "mlp.p4"), ("CNN", "cnn.p4"), ("MLP, σ₀ of Theorem 1", "mlp.p4.theorem")):
            has = [when for when in ("t1", "end") if when in self.study.runs[self.case(layer, 4)][0]]
            for when in has:
                for name, of in (("own_error", "own cluster"), ("other_error", "other clusters"),
                                 ("best_error", "best cluster")):
                    rows.append((f"{label}: error at {'T₁' if when == 't1' else 'the end'}, {of}",
                                 self.values(layer, self.stage(when, name), 3)))
            rows += [(f"{label}: clusters that are an expert's own", self.values(layer, share("sets"), 1)),
                     (f"{label}: experts that keep their cluster", self.values(layer, share("kept"), 2)),
                     (f"{label}: items routed to an expert of their own cluster",
                      self.values(layer, share("routed_to_own"), 2)),
                     (f"{label}: items routed to an expert whose best cluster is theirs",
                      self.values(layer, share("routed_to_best"), 2))]
        gap = Measure("gap", lambda run: run["t1"]["other_error"] - run["t1"]["own_error"])
        change = Measure("change", lambda run: run["end"]["own_error"] - run["t1"]["own_error"])
        one = lambda measure, kind: lambda count: Interval.of(
            self.study.values(self.case(f"{kind}.p4", count), measure))
        compared = [row for kind in ("mlp", "cnn") for row in (
            (f"{kind.upper()}: other clusters minus own cluster, at T₁",
             lambda count, kind=kind: self.signed(one(gap, kind)(count), 1, 3)),
            (f"{kind.upper()}: own cluster, the end minus T₁",
             lambda count, kind=kind: between(one(change, kind)(count), 3)))]
        mean = lambda layer, measure, count: self.study.summary(self.case(layer, count), measure)[0]
        span = lambda layer, measure, decimals, counts=self.COUNTS: (
            f"{min(mean(layer, measure, c) for c in counts):.{decimals}f} to "
            f"{max(mean(layer, measure, c) for c in counts):.{decimals}f}")
        best, own, routed = self.stage("end", "best_error"), self.stage("end", "own_error"), share("routed_to_best")
        return "\n\n".join([
            f"**Errors, experts and routing, P = 4** ({self.study.seeds()} seeds)", self.by_count(*rows),
            "**Differences of the errors.** According to Lemma 2, at T₁ an expert has a smaller error on its own "
            "cluster than on the others. The cells of these rows have the verdict on this order.",
            self.by_count(*compared),
            items(
                "**Each expert is good on one cluster.** At the end, the mean error of an expert on its own cluster is "
                f"{span('mlp.p4', own, 2)} (MLP) and {span('cnn.p4', own, 2)} (CNN). On its best cluster it is "
                f"{span('mlp.p4', best, 2)} (MLP) and {span('cnn.p4', best, 3)} (CNN). The theorem says o(1).",
                "**The router.** From M = 8 on, the mean share of the items that go to an expert whose best cluster is "
                f"theirs is {span('mlp.p4', routed, 2, self.COUNTS[1:])} (MLP) and "
                f"{span('cnn.p4', routed, 2, self.COUNTS[1:])} (CNN). With Theorem 1's own σ₀ and inputs of size one "
                f"it is {span('mlp.p4.theorem', routed, 2)} for MLP experts; chance is 0.25.")])

    def init(self):
        equal, apart = "mlp.p4", "mlp.p4.independent"
        own, other = self.stage("t1", "own_error"), self.stage("t1", "other_error")
        less = lambda measure, sign, decimals: lambda count: self.signed(
            self.difference((equal, count), (apart, count), measure), sign, decimals)
        return "\n\n".join([
            f"**MLP, P = 4** ({self.study.seeds()} seeds)",
            self.by_count(
                ("error on the own cluster at T₁, equal patches", self.values(equal, own, 3)),
                ("… independent patches", self.values(apart, own, 3)),
                ("error on other clusters at T₁, equal patches", self.values(equal, other, 3)),
                ("… independent patches", self.values(apart, other, 3)),
                ("accuracy in %, equal patches", self.values(equal, self.ACCURACY, 1)),
                ("… independent patches", self.values(apart, self.ACCURACY, 1))),
            "**Equal minus independent patches.** According to the lemmas, the error on the own cluster is smaller if "
            "the patches are equal. They do not speak of the accuracy.",
            self.by_count(("error on the own cluster at T₁", less(own, -1, 3)),
                          ("accuracy in points", lambda count: between(
                              self.difference((equal, count), (apart, count), self.ACCURACY), 1)))])

    def parts(self):
        return {"sweep": self.sweep(), "theorem": self.theorem(), "init": self.init()}


def sections():
    """Returns the content of the generated parts: name of the page → name of the part → text."""
    pages = {"momentum": Momentum(), "graph_of_tokens": Graph(), "vision": Vision(), "mot": Mot(),
             "mot_text": Whole("mot_text", *MOT_TEXT), "mot_vision": Whole("mot_vision", *MOT_VISION)}
    return {f"{name}.md": page.parts() for name, page in pages.items()}


def main():
    failed = []
    for page, parts in sections().items():
        file = FOLDER / page
        text, stale = filled(file.read_text(), parts)
        if sys.argv[1:] != ["check"]:
            file.write_text(text)
        elif stale:
            failed.append(f"docs/studies/{page}: run python3 docs/studies/page.py for {', '.join(stale)}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
