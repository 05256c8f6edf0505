"""Golden files of tests/*/*_test.cpp: every policy in PyTorch, float64, gradients by autograd.

    apt-get install python3-torch && /usr/bin/python3 tests/golden/generate.py

expert/gated_mlp_gpt_oss also needs the package `transformers` (5.24).

Written from the equations of the papers, not from the library; names and shapes of parameters are the library's.
"""

import sys

sys.dont_write_bytecode = True  # before the imports, which are of this folder

import expert_cases
import gate_cases
import language
import layers
import losses
import mixings
import models
import optimizers
import rules
import trainers
import vision
import windows
from common import write

FAMILIES = {
    "layer": layers,
    "update": rules,
    "expert": expert_cases,
    "gate": gate_cases,
    "mixing": mixings,
    "loss": losses,
    "optim": optimizers,
    "train": trainers,
    "window": windows,
    "language": language,
    "model": models,
    "vision": vision,
}


def main():
    for family in sys.argv[1:] or FAMILIES:
        for file, cases in FAMILIES[family].files():
            write(file, cases)


main()
