"""page.py [check]: writes the tables of README.md and its picture steps.png, or reports which tables are out of
date."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs"))

import draw
import inputs
import plan
from generated_parts import filled
from model import Options
from table import number, table

PAGE = pathlib.Path(__file__).resolve().parent / "README.md"
MACHINE, NETWORK, MODEL = "h100_float", "h100_ndr", "language"
EXCHANGES = ("logits", "dispatch", "combine", "gradients")


def setup(**changes):
    return inputs.model(MODEL, **changes), inputs.machine(MACHINE), inputs.network(NETWORK)


def growth():
    return plan.parts_table(*setup(), plan.RANKS, Options())


def variants():
    return plan.variants_table(*setup(), plan.RANKS, Options())


def processors():
    """Returns the table for the model on CPUs."""
    return plan.parts_table(inputs.model(MODEL, items=1024), inputs.machine("xeon_2cores"),
                            inputs.network("ethernet_10g"), [1, 4, 16, 64, 256, 1024], Options())


def experts():
    """Returns the table for models with one expert on each rank."""
    lines = []
    for ranks in plan.RANKS:
        cells = [str(ranks)]
        for options in ({}, {"gate": "own"}, plan.ALL):
            s = plan.step(*setup(experts=ranks), ranks, Options(**options))
            cells += [plan.ms(s.seconds), number(sum(s.parts[p] for p in EXCHANGES) / s.seconds)]
        lines.append(cells)
    return table(["ranks = experts", "as gatefold does it, ms", "of it exchanges", "gate own, ms", "of it exchanges",
                  "all options, ms", "of it exchanges"], lines)


def skew():
    """Returns the table for skewed loads of 256 experts on 64 ranks."""
    lines = []
    for exponent in (0.0, 0.5, 1.0):
        for placed in ("even", "balanced", "replicated"):
            s = plan.step(*setup(), 64, Options(skew=exponent, placement=placed, gate="own"))
            wire = sum(s.parts[p] for p in ("dispatch", "combine"))
            lines.append([f"{exponent:g}", placed, number(s.busiest), number(s.ranks_of_item),
                          plan.ms(s.parts["experts"]), plan.ms(wire), plan.ms(s.parts["gradients"]),
                          plan.ms(s.seconds)])
    return table(["Zipf's exponent", "placement", "busiest rank's load", "ranks an item needs", "experts, ms",
                  "dispatch and combine, ms", "gradients, ms", "step, ms"], lines)


SECTIONS = {"published": plan.published_table, "growth": growth, "variants": variants, "experts": experts,
            "skew": skew, "processors": processors}


def picture():
    """Draws two panels: the steps of gatefold as it is, and steps with all options. The first panel ends at 512 ranks,
    because higher bars would hide the rest."""
    panels = [("as gatefold does it", plan.RANKS[:7], Options()), ("with all options", plan.RANKS, Options(**plan.ALL))]
    return draw.draw(PAGE.with_name("steps.png"),
                     [(title, [(r, plan.step(*setup(), r, o)) for r in ranks]) for title, ranks, o in panels])


def main():
    text, stale = filled(PAGE.read_text(), {name: content() for name, content in SECTIONS.items()})
    if sys.argv[1:] == ["check"]:
        if stale:
            sys.exit(f"bench/distributed/README.md: run python3 bench/distributed/page.py for {', '.join(stale)}")
        return
    PAGE.write_text(text)
    if not picture():
        print("gnuplot not found: no picture", file=sys.stderr)


if __name__ == "__main__":
    main()
