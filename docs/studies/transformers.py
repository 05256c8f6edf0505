"""Makes the tables and conclusions of the pages of paper 000: mot.md, mot_text.md and mot_vision.md."""
import math
import statistics

import papers
from intervals import Interval, Measure, Study, verdict, verdict_on_sign
from report import Page, between, grouped, holds, items, shown, signed, spread, table


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
        """Returns the verdict on the claim of the paper that model a is better than model b."""
        return verdict_on_sign(self.difference(a, b, column), column[4])

    def differences(self, pairs, *more):
        """Returns a table of differences. more: (title, function of a pair and a column) of an additional cell."""
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


def loss_at(epoch):
    return Measure("", lambda run: run["test_loss"][run["epoch"].index(epoch)])


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
            "At T₁, the margin of an expert, which is its largest ⟨W_i, v_n⟩ minus its second largest, is on average "
            f"{self.snapshot('t1', 'margin', 2)}. That is "
            f"{self.snapshot('t1', 'margin', 2, self.options['start'] ** -0.5)} of √σ₀, the order that the proposition "
            f"gives. The smallest margin of the experts is {self.snapshot('t1', 'least_margin', 3)}.",
            f"At T₁, {self.snapshot('t1', 'covered', 1)} of the {self.options['classes']} classes have a specialist. " +
            holds(max(self.values(kept)) < 50, f"{self.spread(kept, 0)} % of the experts keep the class that they have "
                  "at the start, so the specialisation is not the initial one."),
            f"At T₁, {self.snapshot('t1', 'used', 1)} of {self.options['experts']} experts get more than 1 % of the "
            "items.",
            f"{self.snapshot('t1', 'share', 0, 100)} % of the items of a class go to its specialists at T₁, and "
            f"{self.snapshot('end', 'share', 0, 100)} % at the end. Random routing with the same loads gives "
            f"{100 * mean('t1', 'share_by_chance'):.0f} %. The differences from random routing are "
            f"{between(above[0], 0)} and {between(above[1], 0)} points. " +
            holds(all(0 < of.low and of.high < 25 for of in above), "**The router hardly follows the classes.**"),
            "According to the proposition, each specialist of class n gets the same share, 1/|M_n|, of the items of "
            "the class that go to M_n. At T₁, the largest difference from this share is "
            f"{self.snapshot('t1', 'uneven', 2)}.",
            "n₊ and n₋ are the numbers of items of one class with the labels 1 and −1 at one expert. At T₁, "
            f"Σ |n₊ − n₋| over experts and classes is {self.snapshot('t1', 'one_label', 2)} of the items. With the "
            f"same loads and random labels, it would be {mean('t1', 'one_label_by_chance'):.2f}. With random labels "
            "and the almost equal loads of routing with noise at the start, it would be "
            f"{mean('start_noisy', 'one_label_by_chance'):.2f}. " +
            holds(all(a > 3 * b for a, b in zip(self.values(lambda run: run["t1"]["one_label"]), self.values(
                lambda run: run["t1"]["one_label_by_chance"]))), "So the experts in use divide the items by label."),
            f"If the router has noise, the means in the four entries above differ by at most {by_noise:.3f}.")

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
            holds(largest == (1, 0), "For specialists, the largest other share is the one that c_n gives to v_n: "
                  f"{self.spread(after('attention', 1, 0), 2)}."),
            "For the experts that the items are routed to, the share that v_n gives to c_n is "
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
        change = Interval.of(self.values(lambda run: run["test_loss"][-1] - loss_at(t2).of(run)))
        head = ["fit to stage III", "test loss: slope", "R²", "training loss: slope", "R²"]
        return table(head, rows) + "\n\n" + items(
            holds(min(power[1]) > max(exponential[1]), "The power law fits the test loss of the transformer without a "
                  f"gate better than the exponential. Its exponent is {between(Interval.of(power[0]))}."),
            f"From T₂ to T, the test loss of MoT changes by {between(change, 3)}.",
            "The mean test loss of the transformer without a gate is below the mean test loss of MoT from epoch T₂ + "
            f"{passed - t2} on.",
            f"At the end, the mean ⟨W_i, v_n⟩ of eq. (11) is {self.snapshot('end', 'own', 2)} for the class of an "
            f"expert. For the other classes, the mean |⟨W_i, v_n⟩| is {self.snapshot('end', 'other', 2)}.")

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
        case_of = {count: self.case(experts=count) for count in counts}
        classes, covered = self.options["classes"], lambda run: run["end"]["covered"]
        by_chance = {case: classes * (1 - (1 - 1 / classes) ** count) for count, case in case_of.items()}
        missing = {count: Interval.of([of - by_chance[case] for of in self.values(covered, case)])
                   for count, case in case_of.items()}
        apart = [count for count, of in missing.items() if of.half > 0 and not of.contains(0)]
        t2 = self.options["t2"]
        changes = [(epoch, self.study.difference(case_of[12], case_of[16], loss_at(epoch)))
                   for epoch in (t2, t2 + 100, t2 + 300, self.study.runs["mot"][0]["epoch"][-1])]
        return self.changed("M", [(str(count), case) for count, case in case_of.items()],
                            ("experts in use", lambda case: self.spread(lambda run: run["end"]["used"], 1, case)),
                            ("classes with an expert", lambda case: self.spread(covered, 1, case)),
                            ("by chance", lambda case: shown(by_chance[case], 2))) + "\n\n" + items(
            "**Lemma 8.** The class of an expert is the n with the largest ⟨W_i, v_n⟩, here at the end. If each expert "
            f"has one of the N = {classes} classes, independently and with equal probability, N (1 − (1 − 1/N)^M) "
            "classes have an expert on average (column \"by chance\"). The number of such classes minus this mean has "
            "an interval without 0 for M = " + ("; ".join(f"{count}: {between(missing[count])}" for count in apart) or
                                             "none of the table") + ".",
            "**M = 12 and M = 16 in time.** In figure 2 of the paper (CIFAR-100), the error with 12 experts falls "
            "earlier than with 16. Here the test loss with 12 experts minus that with 16 is " +
            "; ".join(f"{signed(of, -1, 3)} (epoch {epoch})" for epoch, of in changes) + ".")

    def stages(self):
        t1, t2 = self.options["t1"], self.options["t2"]
        return self.changed("T₁ + length of stage II", [
            (f"{first} + {second}", self.case(t1=first, t2=first + second)) for first in (t1 // 2, t1, 2 * t1)
            for second in ((t2 - t1) // 2, t2 - t1, 2 * (t2 - t1))])

    def on_itself(self, who):
        """Returns p(v_n, v_n) at T₂ of specialists (0) or of the experts that items are routed to (1)."""
        curve, t2 = ("attention", "attention_routed")[who], self.options["t2"]
        return lambda run: run["p_vv"][who] if "p_vv" in run else run[curve][run["epoch"].index(t2)][0][0]

    def variants(self):
        margin, used = lambda run: run["t1"]["margin"], lambda run: run["end"]["used"]
        accuracy = last("test_accuracy", 100)
        rows = []
        for case, label in papers.MOT_VARIANTS:
            rows.append([label])
            for measure, decimals in ((self.LOSS, 3), (accuracy, 2)):
                rows[-1] += [spread(self.study.summary(case, measure), decimals),
                             "" if case == "mot" else between(self.study.difference(case, "mot", measure), decimals)]
            rows[-1] += [self.spread(of, decimals, case) for of, decimals in (
                (used, 1), (margin, 2), (self.on_itself(0), 2), (self.on_itself(1), 2))]
        return table(["model", "test loss", "Δ", "test accuracy, %", "Δ", "experts in use", "margin at T₁",
                      "p(v_n, v_n) at T₂: specialists", "routed"], rows)

    def growing(self):
        t1, t2, experts = (self.options[key] for key in ("t1", "t2", "experts"))
        rows = []
        for count in (4, 8, 16, 32):
            fixed = self.case(experts=count)
            first, second = t1 * count // experts, (t2 - t1) * count // experts
            grown = self.case(experts=count, t1=first, t2=first + second)
            rows.append([str(count), f"{first} + {second}"])
            for of, decimals in ((lambda run: run["t1"]["margin"], 2), (self.on_itself(0), 2), (self.LOSS.of, 3)):
                measure = Measure("", of)
                rows[-1] += [self.spread(of, decimals, fixed), "" if grown == fixed else between(
                    self.study.difference(grown, fixed, measure), decimals)]
        return table(["M", "T₁ + length of stage II", "margin at T₁", "Δ", "p(v_n, v_n) at T₂", "Δ", "test loss", "Δ"],
                     rows)

    def tables(self):
        return f"{super().tables()}\n\n{items(self.power())}"

    def parts(self):
        return {name: getattr(self, name)() for name in
                ("tables", "specialisation", "attention", "rate", "floor", "experts", "stages", "growing", "variants")}


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
        name = lambda cases: ", ".join(self.labels[case] for case in cases)
        verdicts = [(self.against(a, b, column), f"{column[0][:-1]}: {self.labels[a]} − {self.labels[b]}")
                    for column in self.columns for a, b in self.pairs]
        lines = [f"**The order of the paper.** Verdicts on the pairs of models:\n{grouped(verdicts)}"]
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
            passing = ("After at least one epoch, these have a better mean than the transformer without a gate: "
                       f"{name(ahead)}." if ahead else "None of these models has a better mean than the transformer "
                       "without a gate after any epoch.")
            lines.append(f"**{title[0].upper()}{title[1:]}.** The best mean is that of {name([best])}. From T₂ to "
                         f"T, the score changes as follows: {changes}. {passing}")
        return items(*lines, self.power())

    def tables(self):
        return (f"{super().tables()}\n\n**Other differences**\n\n{self.differences(self.others)}\n\n"
                f"{self.routing()}")


MOT_TEXT = (papers.MOT_TEXT, papers.MOT_TEXT_ORDER, papers.MOT_TEXT_OTHERS,
            [("book", "book, accuracy in %", 100, 1, 1), ("place", "place, root mean squared error", 1, 4, -1)])
MOT_VISION = (papers.MOT_VISION, papers.MOT_VISION_ORDER, papers.MOT_VISION_OTHERS,
              [("clean", "clean, accuracy in %", 100, 1, 1), ("corrupted", "corrupted, accuracy in %", 100, 1, 1)])
