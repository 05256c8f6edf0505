"""The section of graph_of_tokens.md about fine-tuning (table 3)."""
import papers
from intervals import Measure, Study, verdict
from report import between, by_verdict, items, powers, shown, spread, table

STARTS = [("pretrained", "pre-trained"), ("random", "random initial weights")]


class Classification:
    """Accuracies in % on the test sentences, higher is better. Differences are in percentage points."""

    PERPLEXITY = Measure("perplexity", lambda run: run["perplexity"])

    def __init__(self):
        self.study = Study("classification")
        self.data = self.study.options["plain.pretrained"][0]["data"]

    def accuracy(self, epoch=0):
        """Returns the measure after an epoch; 0 means the last one."""
        return Measure("accuracy", lambda run: 100 * run["correct"][epoch - 1] / self.data["tested"])

    def difference(self, gate, start):
        return self.study.difference(f"{gate}.{start}", f"plain.{start}", self.accuracy())

    def gain(self, gate):
        """Returns the interval of the accuracy with pre-training minus that without it."""
        return self.study.difference(f"{gate}.pretrained", f"{gate}.random", self.accuracy())

    def effects(self):
        """Returns (label, interval, effect of the paper) of each gate, for the start that the paper has."""
        return [(label, self.difference(gate, "pretrained"), printed - papers.CLASSIFICATION[0][2])
                for gate, label, printed in papers.CLASSIFICATION[1:]]

    def compared(self, start, title):
        rows = []
        for gate, label, printed in papers.CLASSIFICATION:
            row = [label, spread(self.study.summary(f"{gate}.{start}", self.accuracy())), "", "", ""]
            if gate != "plain":
                interval, effect = self.difference(gate, start), printed - papers.CLASSIFICATION[0][2]
                row[2] = between(interval)
                if start == "pretrained":
                    row[3:] = [shown(effect, 2, True), verdict(interval, effect)]
            rows.append(row)
        head = ["model", "accuracy in %", "Δ, points", "paper (SST-2), points", "effect of the paper"]
        if start != "pretrained":
            head, rows = head[:3], [row[:3] for row in rows]  # the paper has no such numbers
        return f"**Fine-tuning, {title}** ({self.study.seeds()} seeds)\n\n" + table(head, rows)

    def text(self):
        epochs = len(self.study.runs["plain.pretrained"][0]["correct"])
        perplexities = "; ".join(f"{label}: {spread(self.study.summary(f'{gate}.pretrained', self.PERPLEXITY), 1)}"
                                 for gate, label, _ in papers.CLASSIFICATION)
        gains = "; ".join(f"{label}: {between(self.gain(gate))}" for gate, label, _ in papers.CLASSIFICATION)
        by_epoch = "; ".join(
            f"{title}: " + ", ".join(shown(self.study.summary(f"plain.{start}", self.accuracy(epoch))[0], 1)
                                     for epoch in range(1, epochs + 1)) for start, title in STARTS)
        return "\n\n".join([
            *(self.compared(start, title) for start, title in STARTS),
            items(f"**Effects of the paper:**\n{by_verdict(self.effects())}",
                  powers(self.effects()),
                  f"**Pre-training** changes the accuracy, in points, by: {gains}.",
                  f"**Accuracy of SMoE in % after epochs 1 to {epochs}**, mean over the seeds. {by_epoch}.",
                  f"**Perplexity of the validation text** after the pre-training. {perplexities}.")])
