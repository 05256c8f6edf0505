"""store.py PROGRAM FOLDER: stores the runs of a program in runs/PROGRAM.tar.xz. Equal runs make equal archives.

FOLDER is the folder of --out. Of the runs of `mot` and `expert_count`, only the numbers that page.py reads are
stored. The measurements that are only for log.jsonl (member "log") are not stored."""
import io
import json
import pathlib
import sys
import tarfile

import papers
from intervals import FOLDER


def of_mot(options, case, result):
    """Keeps fewer numbers of a run of `mot`. The four cases with the default options have the names of their models and
    keep their curves. MoT with 12 experts (mot.m12) keeps its curves too, because the paper compares them with those of
    16 experts. The other cases keep the points of the smallest and of the last test loss. All keep the numbers of the
    last snapshot. The case `mot` keeps those of all snapshots, and its attention after stages I and II. MoT with 4, 8
    and 32 experts also keeps the margin at T₁, and p(v_n, v_n) at T₂ of specialists and of the experts that items are
    routed to. The cases of `--growing` and `--variants` keep only these three numbers, the last point and the number of
    experts in use at the end."""
    measured = {"t1": {"margin": rounded(result["t1"]["margin"], 7)},
                "p_vv": [rounded(result[curve][result["epoch"].index(options["t2"])][0][0], 7)
                         for curve in ("attention", "attention_routed")]} if "attention_routed" in result else {}
    if options["model"] in ("unmerged", "unmerged_fast", "embedded_router") or case.endswith(".growing"):
        last = {curve: [rounded(result[curve][-1], 7)] for curve in ("epoch", "test_loss", "test_accuracy")}
        return {**last, "end": {"used": result["end"]["used"]}, **measured}
    loss, whole = result["test_loss"], case in (options["model"], "mot.m12")
    points = range(len(loss)) if whole else (loss.index(min(loss)), len(loss) - 1)
    kept = {curve: [result[curve][at] for at in points]
            for curve in ("epoch", "test_loss", "test_accuracy", "train_loss")}
    for name, value in result.items():
        if isinstance(value, dict) and (case == "mot" or name == "end"):
            kept[name] = {key: of for key, of in value.items() if key == "signal" or not isinstance(of, list)}
        elif case == "mot" and name.startswith("attention"):
            kept[name] = [of if epoch in (options["t1"], options["t2"]) else None
                          for epoch, of in zip(result["epoch"], value)]
    return {**kept, **measured} if case in ("mot.m4", "mot.m8", "mot.m32") else kept


def lowest(errors):
    """Returns the cluster with the lowest error. Clusters without items have no error (None)."""
    return min((k for k, error in enumerate(errors) if error is not None), key=lambda k: errors[k])


def of_expert_count(options, case, result):
    """Keeps accuracies and entropy. Replaces the errors of each expert on each cluster by means over the experts, at T₁
    (if the run has that many iterations) and at the end. The cluster of an expert is that of definition 2 at the start;
    its best cluster is the one with the lowest error."""
    experts = result["experts"]
    own = experts["start"]["specialised"]
    kept = {name: result[name] for name in ("accuracy", "entropy", "cluster_accuracy")}
    for when in ("t1", "end"):
        if when not in experts:
            continue
        errors = experts[when]["errors"]  # [M][K]
        best = [lowest(of) for of in errors]
        mean = lambda values: sum(values) / len(errors)
        kept[when] = {"own_error": mean([of[k] for of, k in zip(errors, own)]),
                      "other_error": mean([(sum(of) - of[k]) / (len(of) - 1) for of, k in zip(errors, own)]),
                      "best_error": mean([of[k] for of, k in zip(errors, best)]),
                      "covered": len(set(best))}
    shares = [(k, of) for k, of in enumerate(result["routing"]) if of[0] is not None]  # clusters with items
    routed = lambda clusters: sum(share for k, of in shares
                                  for share, cluster in zip(of, clusters) if cluster == k) / len(shares)
    kept["sets"] = len(set(own))
    kept["kept"] = sum(a == b for a, b in zip(own, experts["end"]["specialised"])) / len(own)
    kept["routed_to_own"], kept["routed_to_best"] = routed(own), routed(best)
    return kept


def rounded(value, digits):
    """Rounds the numbers of a list or an object to this number of significant digits."""
    if isinstance(value, dict):
        return {key: rounded(of, digits) for key, of in value.items()}
    if isinstance(value, list):
        return [rounded(of, digits) for of in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def of_language(options, case, result):
    """Keeps the curves that page.py reads: the perplexity, and the norm of some cases, rounded to 6 digits. Rounds the
    numbers of the layers to 5 digits. The perplexities of the test text stay as they are."""
    kept = ("step", "valid", "norm") if case in papers.MOMENTUM_NORMS else ("step", "valid")
    curve = {name: rounded(of, 6) for name, of in result["curve"].items() if name in kept}
    return {**result, "curve": curve, "layers": rounded(result["layers"], 5)}


def of_classification(options, case, result):
    """Rounds the perplexity of the language model to 7 digits."""
    return {**result, "perplexity": rounded(result["perplexity"], 7)}


REDUCED = {"momentum": of_language, "graph_of_tokens": of_language, "graph_of_tokens_500": of_language,
           "classification": of_classification, "mot": of_mot, "expert_count": of_expert_count,
           "expert_count_scale1": of_expert_count}


def main(program, folder):
    with tarfile.open(FOLDER / f"{program}.tar.xz", "w:xz", preset=9) as archive:
        for file in sorted(pathlib.Path(folder, "runs").glob("*.json")):
            text = file.read_bytes()
            run = json.loads(text)
            logged = run.pop("log", None) is not None
            if program in REDUCED:
                run["result"] = REDUCED[program](run["options"], file.name.split(".seed")[0], run["result"])
                # These results are complete. The program reuses them without a checksum.
                if REDUCED[program] in (of_language, of_classification):
                    run.pop("digest", None)
            if logged or program in REDUCED:
                text = (json.dumps(run, separators=(",", ":")) + "\n").encode()
            member = tarfile.TarInfo(f"runs/{file.name}")  # its owner and time are 0
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text))


if __name__ == "__main__":
    main(*sys.argv[1:])
