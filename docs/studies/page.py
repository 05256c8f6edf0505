"""page.py [check]: writes the tables and the conclusions of the pages of the studies from their stored runs, or reports
which are out of date."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from expert_count import ExpertCount
from generated_parts import filled
from language import Graph, Momentum
from transformers import MOT_TEXT, MOT_VISION, Mot, Whole
from vision import Vision

FOLDER = pathlib.Path(__file__).resolve().parent


def sections():
    """Returns the content of the generated parts: name of the page → name of the part → text."""
    pages = {"momentum": Momentum(), "graph_of_tokens": Graph(), "vision": Vision(), "mot": Mot(),
             "mot_text": Whole("mot_text", *MOT_TEXT), "mot_vision": Whole("mot_vision", *MOT_VISION),
             "expert_count": ExpertCount()}
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
