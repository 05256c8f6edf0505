"""groups.py: a page for each family of include/gatefold, in the order of the include picture, with a program where
there is one."""

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

for name, title, example in FAMILIES:
    print(f"/** @defgroup {name} {title}\n * @brief What include/gatefold/{name.replace('_', '/')} holds.")
    if example:
        print(f" *\n * A program (examples/{example}):\n * @include {example}")
    print(" */")
