"""Tests the scripts of docs/studies: table cells against numbers that the programs printed, the numbers of the papers
against those in the programs, and the settings on the pages against those of the runs."""
import math
import pathlib
import re
import statistics
import tarfile
import tempfile
import unittest
import unittest.mock

import paths
import page
import papers
import store
from classification import Classification
from expert_count import ExpertCount
from language import Graph, Language, Momentum, steps_until
from report import holds, shown
from transformers import MOT_TEXT, MOT_VISION, Mot, Whole
from vision import Vision


class Numbers(unittest.TestCase):
    def test_shown(self):
        self.assertEqual([shown(v, 1) for v in (1.25, -2.04, 0.04, -0.04)], ["1.2", "−2.0", "0.0", "0.0"])
        self.assertEqual([shown(v, 2, True) for v in (1.5, -1.5, 0)], ["+1.50", "−1.50", "0.00"])

    def test_papers_have_the_numbers_of_the_programs(self):
        source = (paths.ROOT / "examples/studies/momentum/cases.hpp").read_text()
        source = re.sub(r'"\n *"', "", source)
        found = {}
        for name, rest in re.findall(r'add\(make_\w+, "(\w+)", (.*?\));\n', source, flags=re.S):
            printed = re.search(r"\{\{([0-9.]+), ([0-9.]+)\}\}\)$", rest)
            found[name] = tuple(map(float, printed.groups())) if printed else ()
        # The program can have more cases, for example those of other μ and γ, which a loop makes without numbers.
        for _, _, rows in papers.MOMENTUM:
            for case, _, printed in rows:
                self.assertEqual(found.get(case, ()), printed, case)
        self.assertGreaterEqual(len(found), 24)

        source = (paths.ROOT / "examples/studies/graph_of_tokens/cases.hpp").read_text()
        found = {}
        for name, rest in re.findall(r'three\("[^"]+", Base::\w+, "(\w+)", ([^)]*)\);', source):
            for kind, (clean, attacked) in zip(("", "_similarity", "_attention"),
                                               re.findall(r"\{([0-9.]+), ([0-9.]+)\}", rest)):
                found[name + kind] = (float(clean), float(attacked))
        for name, rest in re.findall(r'add\("([^"]+)", (.*?)\);', source, flags=re.S):
            printed = re.search(r"\{\{([0-9.]+), ([0-9.]+)\}\}$", rest)
            found[name] = tuple(float(of) for of in printed.groups() if of != "0") if printed else ()
        for _, _, rows in papers.GRAPH_OF_TOKENS:
            for case, _, printed in rows:
                self.assertEqual(() if case.endswith("_500") else found[case], printed, case)

    def test_effects_of_the_papers(self):
        # 33.46 / 35.55 and 0.02 / 0.50 of 002's table 2, by hand.
        self.assertAlmostEqual(Language.effect((33.46, 42.33), (35.55, 44.19), 0), -5.879, places=3)
        self.assertIsNone(Language.effect((34.01,), (34.84, 43.59), 1))
        self.assertIsNone(Language.effect((), (34.84, 43.59), 0))
        self.assertAlmostEqual(Vision.effect(((73.21, 50.45), (72.71, 48.72)), 1), 1.73)
        self.assertIsNone(Vision.effect(((73.21, 50.45), (72.71, 48.72)), 2))


class Cells(unittest.TestCase):
    """The programs print mean ± deviation of the differences with two decimals."""

    def check(self, interval, mean, deviation, of, seeds=3):
        half = {3: 4.302653, 5: 2.776445}[seeds] * deviation / math.sqrt(seeds)
        self.assertLess(abs(interval.mean - 100 / of * mean), 0.51 / of)
        self.assertLess(abs(interval.half - 100 / of * half), 1.3 / of)

    def test_perplexities(self):
        graph = Graph()
        for case, baseline, mean, deviation, of in (
                ("glam_similarity", "glam", 0.37, 0.59, 45.19),
                ("k_1_attention", "k_1", 5.40, 1.56, 48.85), ("smoe_tau_2", "smoe", 0, 0.06, 44.91)):
            self.check(graph.percent(case, baseline, graph.CLEAN), mean, deviation, of)
        self.check(graph.percent("smoe_attention", "smoe", graph.CLEAN), 2.26, 0.37, 45.02, 5)
        momentum = Momentum()
        for case, baseline, mean, deviation, of in (
                ("heavy_ball", "smoe", 0.07, 0.42, 39.12), ("learned_gamma", "smoe", -0.08, 0.55, 39.12),
                ("adam_epsilon_0.1", "smoe", -0.03, 0.42, 39.12), ("glam_adam", "glam", 16.28, 1.35, 38.83),
                ("glam_heavy_ball", "glam", -0.48, 0.39, 38.83), ("half_heavy_ball", "half_smoe", 0.09, 0.39, 39.86),
                ("reference_initial_heavy_ball", "reference_initial", 0.66, 0.13, 36.57)):
            self.check(momentum.percent(case, baseline, momentum.CLEAN), mean, deviation, of, 5)
        # 76.16 − 74.60, 75.31 − 74.17, 75.20 − 74.28, after 500 steps.
        self.check(graph.percent("smoe_attention_weights_500", "smoe_500", graph.CLEAN), 1.21, 0.33, 74.35)
        self.assertIn("| SMoE, attention | 47.28 ± 0.22 |", graph.tables())
        self.assertIn("| 46.66 ± 0.21 |", graph.tables())
        self.assertIn("5.17 ± 0.09 | −0.10 [", graph.tables())

    def test_layers(self):
        self.assertIn("| SMoE | 1.548 ± 0.068 | 1.739 ± 0.114 | 1.813 ± 0.169 | 1.779 ± 0.144 |", Graph().tables())
        # Layer 2 of the seeds: 0.871, 0.875, 0.889.
        self.assertIn("| τ 1 | 100.0 ± 0.0 | 87.8 ± 0.9 |", Graph().tables())
        self.assertIn("| SMoE | 34.3 ± 0.8 | 47.9 ± 1.2 | 49.5 ± 1.2 | 50.4 ± 1.1 | 51.2 ± 1.4 | 50.7 ± 0.7 |",
                      Momentum().tables())

    def test_gates_with_rules(self):
        # Perplexities of the seeds: softmax 74.5997, 74.1660, 74.2782, with heavy ball 74.8931, 73.5954, 74.4347;
        # attention 77.7730, 76.7116, 76.0201, with heavy ball 76.8418, 75.4272, 76.1444. The change with attention
        # minus that with softmax: −1.2246, −0.7138, −0.0322; their mean over 74.3480 is −0.8835 %.
        self.assertIn("| attention | −0.88 [", Graph().rules())
        self.assertIn("| softmax | 74.35 ± 0.23 | 74.31 ± 0.66 |", Graph().rules())

    def test_norms(self):
        momentum = Momentum()
        change = [run["curve"]["norm"][-1][0] - run["curve"]["norm"][0][0] for run in momentum.study.runs["smoe"]]
        self.assertIn(f"| SMoE | +{statistics.mean(change):.2f} [", momentum.norms())
        # Ranks that are equally frequent have entropy ln 16.
        for run in momentum.study.runs["smoe"]:
            run["layers"][0]["rank"] = [1 / 16] * 16
        for run in momentum.study.runs["heavy_ball"]:
            run["layers"][0]["rank"] = [0.5, 0.5] + [0] * 14
        self.assertIn(f"| −{math.log(8):.3f} [−{math.log(8):.3f}, −{math.log(8):.3f}], excluded |", momentum.norms())

    def test_steps_until(self):
        curve = {"step": [100, 200, 300], "valid": [100, 25, 30]}
        self.assertAlmostEqual(steps_until(curve, 50), 150)
        self.assertEqual(steps_until(curve, 25), 200)
        self.assertIsNone(steps_until(curve, 20))
        # The level is 37.8. The curves of SMoE pass it between steps 1,000 and 1,200.
        self.assertIn("| SMoE | 11", Momentum().speeds())

    def test_images(self):
        vision = Vision()
        for at, case, baseline, mean, deviation in (
                (0, "vmoe_heavy_ball", "vmoe", -0.22, 0.04), (1, "vmoe_similarity", "vmoe", -1.24, 0.92),
                (2, "vmoe_attention", "vmoe", 3.16, 1.88), (3, "soft_heavy_ball", "soft", -0.25, 0.61),
                (4, "vmoe_robust", "vmoe", 0.03, 0.33)):
            self.check(vision.difference(case, baseline, at), mean, deviation, 100)
        self.assertIn("| V-MoE, attention-aware | 100.06 ± 0.33 |", vision.tables())

    def near(self, values, mean, deviation):
        """Compares with the mean and the deviation that `mot` and `mot_text` print with five digits."""
        self.assertLess(abs(statistics.mean(values) - mean), 1e-4 * abs(mean))
        self.assertLess(abs(statistics.stdev(values) - deviation), 1e-4 * deviation)

    def test_classification(self):
        """Numbers that `classification` prints, and differences of its counts of correct sentences."""
        found = Classification()
        for case, mean, deviation in (
                ("plain.pretrained", 75.618, 0.58673), ("similarity.pretrained", 76.327, 0.63794),
                ("attention.pretrained", 76.214, 0.58117), ("plain.random", 75.476, 0.74784),
                ("similarity.random", 75.277, 1.0203), ("attention.random", 75.286, 1.5854)):
            self.near(found.study.values(case, found.accuracy()), mean, deviation)
        # Of 2,113 sentences, similarity classifies −2, 23, −1, 26 and 29 more correctly than the plain gate, seed by
        # seed, and attention 24, 22, −9, 9 and 17. The effects of the paper are 71.72 − 70.23 and 72.41 − 70.23.
        (_, similarity, of_similarity), (_, attention, of_attention) = found.effects()
        self.assertAlmostEqual(similarity.mean, 1500 / 2113)
        self.assertAlmostEqual(similarity.half, 2.776445 * math.sqrt(231.5 / 5) / 21.13, places=5)
        self.assertAlmostEqual(attention.mean, 1260 / 2113)
        self.assertAlmostEqual(of_similarity, 1.49)
        self.assertAlmostEqual(of_attention, 2.18)
        # Pre-training changes the numbers of correct sentences of the plain gate by −12, −10, 34, 18 and −15.
        self.assertAlmostEqual(found.gain("plain").mean, 300 / 2113)

    def test_mot(self):
        mot = Mot()
        self.assertEqual(mot.study.seeds(), 5)
        self.assertEqual(len(mot.study.runs), 36)
        for case, loss, accuracy in (("mot", (0.072136, 0.020076), (98.613, 0.31944)),
                                     ("ffn_level", (0.064659, 0.013974), (98.75, 0.68499)),
                                     ("attention_absent", (0.20305, 0.033168), (93.633, 1.5524)),
                                     ("multi_head", (0.017274, 0.0016115), (99.961, 0.053489))):
            for column, printed in zip(mot.columns, (loss, accuracy)):
                self.near(mot.study.values(case, column[2]), *printed)
        for when, key, mean, deviation in (
                ("t1", "margin", 0.28224, 0.064887), ("t1", "least_margin", 0.015302, 0.014023),
                ("t1", "share", 0.31426, 0.040303), ("end", "share", 0.34121, 0.064151),
                ("t1", "one_label", 0.64844, 0.13664), ("end", "own", 1.2725, 0.056067)):
            self.near(mot.values(lambda run: run[when][key]), mean, deviation)
        for case, mean, deviation in (
                (mot.case("attention_absent", noise=0), 0.12437, 0.046173),
                (mot.case(noise=0.25), 0.03418, 0.022828), (mot.case(noise=2), 0.53376, 0.011013)):
            self.near(mot.study.values(case, mot.LEAST), mean, deviation)
        for case, mean, deviation in (
                (mot.case(experts=1), 0.026543, 0.044785), (mot.case(experts=32), -0.0043928, 0.02885),
                (mot.case(t1=25, t2=125), 0.014993, 0.02591), (mot.case(t1=50, t2=450), -0.0066577, 0.0026922)):
            found, half = mot.study.difference(case, "mot", mot.LOSS), 2.776445 * deviation / math.sqrt(5)
            self.assertLess(abs(found.mean - mean), 1e-4 * abs(mean))
            self.assertLess(abs(found.half - half), 1e-4 * half)

    def test_expert_count(self):
        """Numbers that `expert_count --study theorem --seeds 10` and `--study init --seeds 10` print."""
        experts = ExpertCount()
        of = lambda case, when, name: [(run[when] if when else run)[name] for run in experts.study.runs[case]]
        for case, when, name, mean, deviation in (
                ("mlp.p4.m16", "t1", "own_error", 0.13561, 0.017317),
                ("mlp.p4.m16", "end", "best_error", 0.18383, 0.01796),
                ("mlp.p4.m16", "", "routed_to_own", 0.81955, 0.21707), ("mlp.p4.m16", "", "kept", 0.7375, 0.10121),
                ("mlp.p4.m64.theorem", "end", "other_error", 0.47379, 0.0073718),
                ("mlp.p4.m64.theorem", "", "routed_to_best", 0.39217, 0.05901),
                ("mlp.p4.m16.independent", "t1", "own_error", 0.2616, 0.024153),
                ("mlp.p4.m16.independent", "t1", "covered", 3.9, 0.31623),
                ("mlp.p4.m16.independent", "", "accuracy", 79.37, 2.1226)):
            self.near(of(case, when, name), mean, deviation)

    def test_parts_of_mot(self):
        parts = Mot().parts()
        for part, text in (
                ("tables", "| without attention | 0.203 ± 0.033 | +0.186 ["),
                ("tables", "| MoT − transformer without a gate | +0.055 [+0.031, +0.079] | excluded |"),
                ("specialisation", "0.89 ± 0.21 of √σ₀"), ("specialisation", "21 ± 9 % of the experts keep"),
                ("attention", "is 0.21 ± 0.04 for specialists, and 0.34 ± 0.06 for"),
                ("rate", "| MoT, exponential | −0.0001 ± 0.0002 | 0.595 ± 0.445 | −0.0007 ± 0.0002 | 0.876 ± 0.070 |"),
                ("rate", "| transformer without a gate, power law | −0.66 ± 0.03 | 0.992 ± 0.001 | −0.75 ± 0.02 |"),
                ("experts", "| 32 | 0.068 ± 0.025 | −0.004 [−0.040, +0.031] | 2.6 ± 0.9 |")):
            self.assertIn(text, parts[part])

    def test_mot_text(self):
        text = Whole("mot_text", *MOT_TEXT)
        for column, of_cases in zip(text.columns, (
                (("mot.m2", 44.083, 1.0681), ("mot.m4", 41.35, 0.6), ("mot.m8", 41.567, 0.91697),
                 ("multi_head", 49.083, 1.1004), ("linear", 35.3, 0.25981), ("bag_of_words", 56.95, 0.13229)),
                (("mot.m2", 0.25259, 0.0036346), ("mot.m4", 0.26071, 0.001809), ("mot.m8", 0.26282, 0.0038926),
                 ("multi_head", 0.245, 0.0041343), ("linear", 0.26771, 0.0022643),
                 ("bag_of_words", 0.25926, 0.0037331)))):
            for case, mean, deviation in of_cases:
                self.near(text.study.values(column[0] + case, column[2]), mean, deviation)
        self.near(text.after("mot.m8", text.columns[1], 12), 0.25321, 0.0024749)
        # Experts in use 3.5544 ± 0.34138 and 3.0665 ± 0.23496, entropy 2.1957 ± 0.011494 and 2.2422 ± 0.0062638.
        self.assertIn("| mot (M = 4) | 3.55 ± 0.34 | 2.20 ± 0.01 | 3.07 ± 0.23 | 2.24 ± 0.01 |", text.routing())


class Sentences(unittest.TestCase):
    def test_a_sentence_that_is_no_longer_true(self):
        self.assertEqual(holds(True, "It is."), "It is.")
        momentum = Momentum()
        for run, plain in zip(momentum.study.runs["gamma_0.3"], momentum.study.runs["smoe"]):
            run["test"] = plain["test"] + 1
        with self.assertRaisesRegex(ValueError, "no longer support a sentence, rewrite it: With γ = 0.3"):
            momentum.results()


class Settings(unittest.TestCase):
    """The column "here" of the settings has the options of the stored runs."""

    def check(self, name, options, count, column=2):
        text = (paths.ROOT / "docs/studies" / f"{name}.md").read_text()
        checked = 0
        for row in re.findall(r"^\|.*`--.*\|$", text, flags=re.M):
            cells = [cell.strip() for cell in row.split("|")[1:-1]]
            numbers = re.findall(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:e-[0-9]+)?", cells[column])
            here = {float(n.replace(",", "")) for n in numbers}
            for option in re.findall(r"`--([a-z0-9-]+)`", cells[0]):
                value = options[option]
                checked += 1
                if isinstance(value, (bool, str)):
                    self.assertIn({True: "on", False: "off"}.get(value, value), cells[column], (name, option))
                    continue
                self.assertIn(4 if option == "epsilon" and value == 4 / 255 else value, here, (name, option))
        self.assertEqual(checked, count)

    def test_language(self):
        options = Momentum().study.options["smoe"][0]
        self.check("momentum", options["setting"], 12)
        text = (paths.ROOT / "docs/studies/momentum.md").read_text()
        self.assertIn(f"| ≠ {options['text']['vocabulary']:,}: words seen", text)
        self.assertIn(f"| ≠ {options['text']['tokens']:,} words of", text)
        for of in Graph().study.options.values():
            self.assertEqual(of[0]["text"], options["text"])

    def test_classification(self):
        options = Classification().study.options
        self.assertEqual(sorted(options), [f"{gate}.{start}" for gate in ("attention", "plain", "similarity")
                                           for start in ("pretrained", "random")])
        of, text = options["plain.pretrained"][0], (paths.ROOT / "docs/studies/graph_of_tokens.md").read_text()
        for other in options.values():
            self.assertEqual({**other[0], "case": ""}, {**of, "case": ""})
        tuning, data = of["tuning"], of["data"]
        self.check("graph_of_tokens", {"length": of["setting"]["length"], "epochs": tuning["epochs"],
                                       "tuning-batch": tuning["batch"], "tuning-lr": tuning["lr"],
                                       "dropout": tuning["dropout"]}, 5)
        for here in (f"{data['classes']} classes, {data['sentences']:,} training and {data['tested']:,} test sentences",
                     f"the sizes of the tables above, {of['setting']['steps']} steps",
                     f"≠ {data['vocabulary']:,}: words of the Bible with {of['setting']['threshold']} occurrences"):
            self.assertIn(here, text)
        above = Graph().study.options["smoe"][0]["setting"]
        self.assertEqual({**of["setting"], "steps": 0}, {**above, "steps": 0})

    def test_images(self):
        options = Vision().study.options["vmoe_similarity"][0]
        self.check("vision", options, 12)
        text = (paths.ROOT / "docs/studies/vision.md").read_text()
        self.assertIn(f"| 1 | ≠ {options['tau']:g} |", text)
        self.assertIn(f"| μ = {options['mu']:g}, γ = {options['gamma']:g} |", text)

    def test_mot(self):
        for options in Mot().study.options["mot"]:
            self.check("mot", options, 15)

    def test_text(self):
        options = Whole("mot_text", *MOT_TEXT).study.options
        of, linear = (options[f"book.{case}"][0] for case in ("mot.m8", "linear"))
        self.check("mot_text", {**of, **of["recipe"], **of["network"], "word-dim": of["network"]["token_dim"],
                                "experts": 8, "linear-lr": linear["recipe"]["lr"]}, 10, 1)
        text = (paths.ROOT / "docs/studies/mot_text.md").read_text()
        self.assertIn(f"AdamW with rate {of['recipe']['lr'] * 1e4:g}e-4", text)

    def test_mot_vision(self):
        options = Whole("mot_vision", *MOT_VISION).study.options["clean.mot.m8"][0]
        self.check("mot_vision", {**options, **options["recipe"], **options["network"]}, 7)

    def test_expert_count(self):
        study = ExpertCount().study
        for case in ("mlp.p8.m64", "cnn.p4.m8", "mlp.p4.m16.independent"):
            for options in study.options[case]:
                self.check("expert_count", {name.replace("_", "-"): value for name, value in options.items()}, 7, 1)
        for case, options in study.options.items():
            self.assertEqual(options[0]["scale"], 1 if case.endswith((".scale1", ".theorem")) else 10, case)


class Stored(unittest.TestCase):
    RESULT = {"epoch": [0, 50, 250, 800], "test_loss": [4, 2, 1, 3], "test_accuracy": [0, 1, 2, 3],
              "train_loss": [4, 3, 2, 1], "noisy_loss": [4, 2, 1, 3], "attention": ["a", "b", "c", "d"],
              "t1": {"used": 2, "signal": [1], "routing": [[1]]}, "end": {"used": 3, "signal": [0], "routing": [[1]]}}

    def kept(self, case, model):
        return store.of_mot({"model": model, "t1": 50, "t2": 250}, case, self.RESULT)

    def test_default_options(self):
        curves = {name: self.RESULT[name] for name in ("epoch", "test_loss", "test_accuracy", "train_loss")}
        end = {"used": 3, "signal": [0]}
        self.assertEqual(self.kept("mot", "mot"), {**curves, "attention": [None, "b", "c", None],
                                                   "t1": {"used": 2, "signal": [1]}, "end": end})
        self.assertEqual(self.kept("ffn_level", "ffn_level"), {**curves, "end": end})

    def test_other_options(self):
        """The smallest and the last test loss."""
        self.assertEqual(self.kept("mot.m8", "mot"), {
            "epoch": [250, 800], "test_loss": [1, 3], "test_accuracy": [2, 3], "train_loss": [2, 1],
            "end": {"used": 3, "signal": [0]}})


class StoredExperts(unittest.TestCase):
    """Three experts and three clusters, the last of which has no test items at the end."""

    RESULT = {"accuracy": 80, "entropy": 0.5, "cluster_accuracy": [90, 70, None], "loss": 1,
              "routing": [[0.5, 0.25, 0.25], [0, 1, 0], [None, None, None]],
              "experts": {"start": {"specialised": [0, 1, 1]},
                          "end": {"specialised": [0, 0, 1],
                                  "errors": [[0.25, 0.5, 0.75], [0.125, 0.5, 0.25], [0.5, 0.25, 0.75]]}}}

    def test_means_over_experts(self):
        # The own clusters are 0, 1, 1 with errors 0.25, 0.5, 0.25. The best clusters are 0, 0, 1 with errors 0.25,
        # 0.125, 0.25. The sums of the other errors are 1.25, 0.375 and 1.25, each for 2 clusters. Of the items of
        # cluster 0, 0.5 go to expert 0, whose own cluster it is, and 0.75 to experts 0 and 1, whose best cluster it is.
        # For cluster 1, these shares are 1 and 0.
        self.assertEqual(store.of_expert_count({}, "", self.RESULT), {
            "accuracy": 80, "entropy": 0.5, "cluster_accuracy": [90, 70, None],
            "end": {"own_error": 1 / 3, "other_error": 2.875 / 6, "best_error": 0.625 / 3, "covered": 2},
            "sets": 2, "kept": 2 / 3, "routed_to_own": 0.75, "routed_to_best": 0.375})

    def test_best_cluster(self):
        self.assertEqual(store.lowest([None, 0.5, 0.25, 0.25]), 2)


class StoredLog(unittest.TestCase):
    """The measurements of log.jsonl are left out of the archives. The other members keep their values."""

    RUN = '{"options":{"t1":1,"lr":1e-05},"result":{"name":"\\u00e9","score":[0.1,0.0]},"digest":18446744073709551615'

    def archive(self, text):
        with tempfile.TemporaryDirectory() as folder:
            runs = pathlib.Path(folder, "runs")
            runs.mkdir()
            (runs / "a.seed1.json").write_text(text)
            with unittest.mock.patch.object(store, "FOLDER", pathlib.Path(folder)):
                store.main("mot_text", folder)
            with tarfile.open(pathlib.Path(folder, "mot_text.tar.xz")) as archive:
                return archive.extractfile("runs/a.seed1.json").read().decode()

    def test_log(self):
        self.assertEqual(self.archive(self.RUN + ',"log":{"norm":[1,2]}}\n'), self.RUN + "}\n")

    def test_no_log(self):
        self.assertEqual(self.archive(self.RUN + "}\n"), self.RUN + "}\n")


class Pages(unittest.TestCase):
    PARTS = {"one": "text\n| a |"}

    def test_up_to_date(self):
        text = "before\n<!-- page.py: one -->\n\ntext\n| a |\n\n<!-- end -->\nafter\n"
        self.assertEqual(page.filled(text, self.PARTS), (text, []))

    def test_changed_number(self):
        text = "before\n<!-- page.py: one -->\n\ntext\n| b |\n\n<!-- end -->\nafter\n"
        new, stale = page.filled(text, self.PARTS)
        self.assertEqual(new, text.replace("| b |", "| a |"))
        self.assertEqual(stale, ["one"])

    def test_missing_part(self):
        self.assertEqual(page.filled("before\n", self.PARTS), ("before\n", ["one"]))


if __name__ == "__main__":
    unittest.main()
