"""Formats numbers, tables and conclusions of the pages of the studies."""
import textwrap

from intervals import verdict, verdict_on_sign


def shown(value, decimals=2, sign=False):
    digits = f"{abs(value):.{decimals}f}"
    if not digits.strip("0."):
        return digits
    return ("−" if value < 0 else "+" if sign else "") + digits


def between(interval, decimals=2):
    """Formats an interval: mean [low, high]."""
    mean, low, high = (shown(v, decimals, True) for v in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"


def signed(interval, sign, decimals=2):
    """Formats an interval and the verdict on the sign of an effect for which a paper prints no number."""
    return f"{between(interval, decimals)}, {verdict_on_sign(interval, sign)}"


def spread(summary, decimals=2):
    return f"{shown(summary[0], decimals)} ± {shown(summary[1], decimals)}"


def table(head, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *rows]]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(lines).replace("|  |", "| |").replace("|  |", "| |")


def paragraph(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


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
    """Returns a sentence. Raises ValueError if the condition on the runs that makes it true does not hold."""
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
