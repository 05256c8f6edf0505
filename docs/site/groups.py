"""groups.py: writes a page for each folder of include/gatefold, in the order in which a reader meets them. If there is
an example program for the folder, the page has it."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FAMILIES = [
    ("expert", "Experts: what is computed", "own_expert.cpp"),
    ("gate", "Gates: who goes where", "own_gate.cpp"),
    ("gate_scores", "Gates: scores", None),
    ("gate_mixing", "Gates: mixing", None),
    ("gate_selection", "Gates: selections", "own_selection.cpp"),
    ("gate_auxiliary", "Gates: auxiliary losses", None),
    ("update", "Update rules: how the result enters the stream", "own_rule.cpp"),
    ("layer", "Layers", "papers.cpp"),
    ("model", "Models", None),
    ("loss", "Losses", None),
    ("optim", "Optimizers and schedules", None),
    ("train", "Training", "quickstart.cpp"),
    ("distributed", "Training on several processes", "distributed.cpp"),
    ("papers", "Instruments of the four papers", None),
    ("metric", "Metrics", None),
    ("check", "Checks for policies of your own", None),
    ("io", "Files of tensors", "load_checkpoint/main.cpp"),
    ("data", "Data", "own_data.cpp"),
    ("attention", "Attention", None),
    ("routing", "Plans, dispatch and combine", None),
    ("backend", "Backends: the porting contract", None),
    ("backend_cpu", "The CPU backend", "serving.cpp"),
    ("policy", "What policies share", "own_extra.cpp"),
    ("tensor", "Tensors, views and packs", None),
    ("core", "Errors, seeds, random numbers", None),
]

folders = {path.parent for path in (ROOT / "include/gatefold").rglob("*.hpp")} - {ROOT / "include/gatefold"}
present = {"core"} | {"_".join(path.relative_to(ROOT / "include/gatefold").parts) for path in folders}
titles = {name: (title, example) for name, title, example in FAMILIES if name in present}
for name in sorted(present - titles.keys()):
    titles[name] = (name.replace("_", ": ").capitalize(), None)

for name, (title, example) in titles.items():
    print(f"/** @defgroup {name} {title}\n * @brief The names of `include/gatefold/{name.replace('_', '/')}`.")
    if example and (ROOT / "examples" / example).exists():
        print(f" *\n * A program (`examples/{example}`):\n * @include {example}")
    print(" */")
