"""store.py PROGRAM FOLDER: stores the runs of a program in runs/PROGRAM.tar.xz. Equal runs make equal archives.

FOLDER is the folder of --out. Of the runs of `mot`, only the numbers that page.py reads are stored."""
import io
import json
import pathlib
import sys
import tarfile

from intervals import FOLDER


def of_mot(options, case, result):
    """Drops numbers of a run of `mot`. The four cases with the default options, which are named like their models, keep
    their curves. Of these, MoT keeps the numbers of its snapshots, and its attention after stages I and II. The other
    cases keep the points of the smallest and of the last test loss, and the numbers of the last snapshot."""
    loss, default = result["test_loss"], case == options["model"]
    points = range(len(loss)) if default else (loss.index(min(loss)), len(loss) - 1)
    kept = {curve: [result[curve][at] for at in points]
            for curve in ("epoch", "test_loss", "test_accuracy", "train_loss")}
    for name, value in result.items():
        if isinstance(value, dict) and (case == "mot" or name == "end"):
            kept[name] = {key: of for key, of in value.items() if key == "signal" or not isinstance(of, list)}
        elif case == "mot" and name.startswith("attention"):
            kept[name] = [of if epoch in (options["t1"], options["t2"]) else None
                          for epoch, of in zip(result["epoch"], value)]
    return kept


def main(program, folder):
    with tarfile.open(FOLDER / f"{program}.tar.xz", "w:xz", preset=9) as archive:
        for file in sorted(pathlib.Path(folder, "runs").glob("*.json")):
            text = file.read_bytes()
            if program == "mot":
                run = json.loads(text)
                run["result"] = of_mot(run["options"], file.name.split(".seed")[0], run["result"])
                text = (json.dumps(run, separators=(",", ":")) + "\n").encode()
            member = tarfile.TarInfo(f"runs/{file.name}")  # its owner and time are 0
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text))


if __name__ == "__main__":
    main(*sys.argv[1:])
