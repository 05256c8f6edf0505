"""Makes the tables and conclusions of the page expert_count.md."""
from intervals import Interval, Measure, Study, verdict, verdict_on_sign
from report import Page, between, grouped, items, paragraph, signed, spread, table


class ExpertCount(Page):
    """Paper 003. A case is a layer: its experts, patches P and number of experts M."""

    COUNTS = (4, 8, 16, 32, 64)
    ACCURACY, ENTROPY = Measure("accuracy", lambda run: run["accuracy"]), Measure("entropy", lambda run: run["entropy"])

    def __init__(self):
        self.study = Study("expert_count")
        self.study.include("expert_count_scale1", ".scale1")  # runs with --scale 1

    @staticmethod
    def case(layer, count):
        """Returns the name of a case, for example mlp.p4.m8.theorem of the layer mlp.p4.theorem with 8 experts."""
        kind, patches, *more = layer.split(".")
        return ".".join([kind, patches, f"m{count}", *more])

    def difference(self, a, b, measure):
        """Returns the interval of a minus b. Both are (layer, number of experts)."""
        return self.study.difference(self.case(*a), self.case(*b), measure)

    def by_count(self, *rows):
        """Returns a table with a column for each M. rows: (label, function of M that returns a cell)."""
        return table(["", *(f"M = {count}" for count in self.COUNTS)],
                     [[label, *(of(count) for count in self.COUNTS)] for label, of in rows])

    def values(self, layer, measure, decimals):
        return lambda count: spread(self.study.summary(self.case(layer, count), measure), decimals)

    def best(self, layer, count, measure, sign, decimals):
        """Compares the number of experts that the paper finds best with each other number."""
        return lambda other: "" if other == count else signed(
            self.difference((layer, count), (layer, other), measure), sign, decimals)

    def figures(self, layers):
        """Returns a table with the numbers of figures 1 and 2. layers: (label, layer)."""
        return self.by_count(*(row for label, layer in layers for row in (
            (f"{label}, accuracy in %", self.values(layer, self.ACCURACY, 1)),
            (f"{label}, entropy", self.values(layer, self.ENTROPY, 2)))))

    def orders(self, optima):
        """Compares the best numbers of experts in the paper with the others. optima: (label, layer, number)."""
        return self.by_count(*(row for label, layer, count in optima for row in (
            (f"{label}: accuracy of M = {count} minus that of M", self.best(layer, count, self.ACCURACY, 1, 1)),
            (f"{label}: entropy of M = {count} minus that of M", self.best(layer, count, self.ENTROPY, -1, 2)))))

    def scale1(self):
        layers = [(kind.upper(), f"{kind}.p4.scale1") for kind in ("mlp", "cnn")]
        change = lambda kind: lambda count: between(
            self.difference((f"{kind}.p4.scale1", count), (f"{kind}.p4", count), self.ACCURACY), 1)
        return "\n\n".join([
            f"**Inputs of size one, P = 4** ({self.study.seeds()} seeds)", self.figures(layers),
            "**The best number of experts of the paper**",
            self.orders([("MLP", "mlp.p4.scale1", 16), ("CNN", "cnn.p4.scale1", 8)]),
            "**Inputs of size one minus inputs of size ten, accuracy in points**",
            self.by_count(*((kind.upper(), change(kind)) for kind in ("mlp", "cnn")))])

    def sweep(self):
        accuracy, optima = self.ACCURACY, [("MLP", "mlp.p4", 16), ("CNN", "cnn.p4", 8)]
        layers = [(f"{kind.upper()}, P = {patches}", f"{kind}.p{patches}") for kind in ("mlp", "cnn")
                  for patches in (4, 8)]
        patches = lambda kind, count: self.difference((f"{kind}.p8", count), (f"{kind}.p4", count), accuracy)
        kinds = lambda of, count: self.difference((f"cnn.p{of}", count), (f"mlp.p{of}", count), accuracy)
        ahead = lambda layer, count: [(other, self.difference((layer, count), (layer, other), accuracy))
                                      for other in self.COUNTS if other != count]
        return "\n\n".join([
            f"**Accuracy and entropy** ({self.study.seeds()} seeds)", self.figures(layers),
            paragraph("**The best number of experts, P = 4.** In figure 1 of the paper, the accuracy is highest at M = "
                      "16 for MLP experts and at M = 8 for CNN experts. According to the paper, the entropy in figure "
                      "2 behaves in parallel, so the verdicts on entropy expect the smallest entropy at the same M."),
            self.orders(optima),
            paragraph("**P = 8 minus P = 4, accuracy in points.** In the paper, P = 8 makes the MLP mixture worse, and "
                      "the CNN mixture remains good."),
            self.by_count(("MLP", lambda count: signed(patches("mlp", count), -1, 1)),
                          ("CNN", lambda count: between(patches("cnn", count), 1))),
            "**CNN minus MLP, accuracy in points**",
            self.by_count(*((f"P = {of}", lambda count, of=of: between(kinds(of, count), 1)) for of in (4, 8))),
            items(*(f"**{label}.** Verdicts on a higher accuracy of M = {count} than of another M:\n"
                    + grouped([(verdict_on_sign(of, 1), f"M = {other}") for other, of in ahead(layer, count)])
                    for label, layer, count in optima),
                  "**Power.** The smallest difference of accuracies, in points, that has a power of 0.8:\n" +
                  "\n".join(f"{label}, M = {count} minus another M: " + "; ".join(
                      f"M = {other}: {of.visible():.1f}" for other, of in ahead(layer, count))
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
            rows += [(f"{label}: number of clusters that are the own cluster of an expert",
                      self.values(layer, share("sets"), 1)),
                     (f"{label}: share of experts that keep their own cluster to the end",
                      self.values(layer, share("kept"), 2)),
                     (f"{label}: share of items routed to an expert with their cluster as its own cluster",
                      self.values(layer, share("routed_to_own"), 2)),
                     (f"{label}: share of items routed to an expert with their cluster as its best cluster",
                      self.values(layer, share("routed_to_best"), 2))]
        gap = Measure("gap", lambda run: run["t1"]["other_error"] - run["t1"]["own_error"])
        change = Measure("change", lambda run: run["end"]["own_error"] - run["t1"]["own_error"])
        one = lambda measure, kind: lambda count: Interval.of(
            self.study.values(self.case(f"{kind}.p4", count), measure))
        compared = [row for kind in ("mlp", "cnn") for row in (
            (f"{kind.upper()}: other clusters minus own cluster, at T₁",
             lambda count, kind=kind: signed(one(gap, kind)(count), 1, 3)),
            (f"{kind.upper()}: own cluster, the end minus T₁",
             lambda count, kind=kind: between(one(change, kind)(count), 3)))]
        mean = lambda layer, measure, count: self.study.summary(self.case(layer, count), measure)[0]
        span = lambda layer, measure, decimals, counts=self.COUNTS: (
            f"{min(mean(layer, measure, c) for c in counts):.{decimals}f} to "
            f"{max(mean(layer, measure, c) for c in counts):.{decimals}f}")
        best, own, routed = self.stage("end", "best_error"), self.stage("end", "own_error"), share("routed_to_best")
        return "\n\n".join([
            f"**Errors, experts and routing, P = 4** ({self.study.seeds()} seeds)", self.by_count(*rows),
            paragraph("**Differences of the errors.** According to Lemma 2, at T₁ an expert has a smaller error on its "
                      "own cluster than on the others. The rows of these differences have verdicts on this order."),
            self.by_count(*compared),
            items(
                "**Each expert is good on one cluster.** At the end, the mean error of an expert on its own cluster is "
                f"{span('mlp.p4', own, 2)} (MLP) and {span('cnn.p4', own, 2)} (CNN). On its best cluster it is "
                f"{span('mlp.p4', best, 2)} (MLP) and {span('cnn.p4', best, 3)} (CNN). The theorem says o(1).",
                "**The router.** The table has the share of the items that go to an expert with their cluster as its "
                f"best cluster. From M = 8 on, its mean is {span('mlp.p4', routed, 2, self.COUNTS[1:])} (MLP) and "
                f"{span('cnn.p4', routed, 2, self.COUNTS[1:])} (CNN). With the σ₀ of Theorem 1 and inputs of size one "
                f"it is {span('mlp.p4.theorem', routed, 2)} for MLP experts; random routing gives 0.25.")])

    def init(self):
        equal, apart = "mlp.p4", "mlp.p4.independent"
        own, other = self.stage("t1", "own_error"), self.stage("t1", "other_error")
        less = lambda measure, sign, decimals: lambda count: signed(
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
            paragraph("**Equal minus independent patches.** According to the lemmas, the error on the own cluster is "
                      "smaller if the patches are equal. The lemmas do not mention the accuracy."),
            self.by_count(("error on the own cluster at T₁", less(own, -1, 3)),
                          ("accuracy in points", lambda count: between(
                              self.difference((equal, count), (apart, count), self.ACCURACY), 1)))])

    def parts(self):
        return {"sweep": self.sweep(), "scale1": self.scale1(), "theorem": self.theorem(), "init": self.init()}
