"""Checks that transformers reads decoders that gatefold has trained, and computes the same loss.

    bash examples/run.sh generate --tokens 1        # builds the program
    venv/bin/python tests/golden/decoders/trained.py build/release/examples/generate [NAME...]

For each folder of tests/golden/decoders, the program trains 20 steps and saves a new folder. transformers must read it
without missing or unexpected tensors. Its loss in float32 must be the loss that the program prints, up to 1e-5 of it.
The script needs the packages of make.py.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

FOLDER = pathlib.Path(__file__).parent


def trained(program, folder, to):
    """Trains and saves a decoder. Returns the tokens of a sequence with the loss that the program computes for it."""
    ids = load_file(folder / "expected.safetensors")["ids"].flatten().tolist()
    (to / "ids").write_text(" ".join(map(str, ids)))
    length = 10
    run = subprocess.run([program, "--model", folder, "--train", to / "ids", "--steps", "20", "--length", str(length),
                          "--lr", "0.01", "--save", to / "new", "--tokens", "0"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    losses = [float(number) for number in re.findall(r"loss .*?([0-9.]+)$", run.stderr, re.MULTILINE)]
    return torch.tensor([ids[:length + 1]]), losses[0], losses[-1]


def loss_of(folder, ids):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    if wrong:
        sys.exit(f"{folder}: {wrong}")
    with torch.no_grad():
        logits = model.eval()(ids).logits
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]).item()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    names = sys.argv[2:] or sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())
    worst = 0
    for name in names:
        with tempfile.TemporaryDirectory() as to:
            ids, before, ours = trained(sys.argv[1], FOLDER / name, pathlib.Path(to))
            theirs = loss_of(pathlib.Path(to) / "new", ids)
        difference = abs(theirs - ours) / ours
        worst = max(worst, difference)
        print(f"{name}: loss {before:.4f} before, {ours:.8f} after 20 steps; transformers {theirs:.8f}, "
              f"apart by {difference:.1e}", flush=True)
    if not worst <= 1e-5:
        sys.exit("the loss differs by more than 1e-5")


main()
