"""Tests the files of bench/distributed: every number has a source, and the plan accepts every file."""
import json
import math
import pathlib
import tempfile
import unittest

import paths
import inputs
import published
from model import step


def written(content):
    file = tempfile.NamedTemporaryFile("w", suffix=".json", delete=False)
    with file:
        json.dump(content, file)
    return file.name


class Files(unittest.TestCase):
    def names(self, kind):
        return sorted(p.stem for p in (paths.DIST / f"{kind}s").glob("*.json"))

    def test_all_can_be_read(self):
        models = [inputs.model(m) for m in self.names("model")]
        machines = [inputs.machine(m) for m in self.names("machine")]
        networks = [inputs.network(n) for n in self.names("network")]
        self.assertTrue(models and machines and networks)
        for m in models:
            for machine in machines:
                self.assertGreater(step(m, machine, networks[0], networks[0].ranks_per_node).seconds, 0)

    def test_tables_of_rates(self):
        for name in self.names("machine"):
            machine = inputs.machine(name)
            self.assertEqual(len(machine.rows), len(machine.rates), name)
            self.assertEqual(list(machine.rows), sorted(set(machine.rows)), name)

    def test_a_number_without_source(self):
        tree = json.loads((paths.DIST / "networks" / "h100_ndr.json").read_text())
        del tree["between"]["source"]
        path = written(tree)
        with self.assertRaisesRegex(ValueError, r"no source for between\.latency, between\.message"):
            inputs.network(path)
        pathlib.Path(path).unlink()

    def test_shared_links(self):
        network = inputs.network("ethernet_100g")
        self.assertAlmostEqual(network.between.bandwidth * network.ranks_per_node, 11.2e9, delta=1)
        self.assertAlmostEqual(inputs.network("h100_ndr").between.bandwidth, 48.5e9, delta=1)

    def test_unknown_names(self):
        with self.assertRaisesRegex(FileNotFoundError, "h100_ndr"):
            inputs.network("h100_nrd")
        with self.assertRaisesRegex(ValueError, "a model has no expert"):
            inputs.model("language", expert=3)


class Published(unittest.TestCase):
    def test_every_row_has_a_source_and_a_plan(self):
        rows = list(published.rows())
        self.assertGreater(len(rows), 10)
        for row, value in rows:
            self.assertTrue(row["source"], row["what"])
            self.assertTrue(math.isfinite(value) and value > 0, row["what"])

    def test_logical_bandwidth_by_hand(self):
        """Every item needs two nodes, one of them its own: about twice the rate of the link between nodes."""
        row = {"quantity": "bandwidth", "network": "h100_ndr", "model": "deepseek_v3", "ranks": 16, "bytes_of_value": 1,
               "set": {"groups": 1, "of_groups": 1, "items": 1000000, "experts": 16, "k": 16},
               "options": {"exchange": "forwarded"}}
        network = inputs.network("h100_ndr")
        seconds = 8.4e-6 + 2.7e-6 + 1e6 * 7168 / 48.5e9
        within = 8.4e-6 + 7 * 0.47e-6 + 2e6 * 7 * 7168 / 370e9
        self.assertEqual(network.ranks_per_node, 8)
        self.assertAlmostEqual(published.bandwidth(row), 2e6 * 7168 / max(seconds, within) / 1e9, delta=1e-6)

    def test_stages_take_a_share_of_the_layers(self):
        row = {"model": "deepseek_v3", "stages": 2}
        self.assertEqual(published.model_of(row).layers, 29)
        row |= {"network": "h100_ndr", "ranks": 8, "set": {"micro_batches": 3}, "options": {"gate": "own"}}
        seconds = published.planned(row).step().seconds
        self.assertAlmostEqual(published.items_per_s(row), 3 * 4096 / seconds / 2, delta=1e-6)
        self.assertAlmostEqual(published.samples_per_s(row), 3 * 8 / seconds / 2, delta=1e-9)

    def test_speedup_is_of_the_layer_alone(self):
        row = {"machine": "a100_half", "network": "azure_a100", "model": "tutel_layer", "ranks": 16,
               "options": {"overlap": "chunks", "gate": "own"}, "over": {"overlap": "none"}}
        parts = [published.planned(row, overlap=o).step().parts for o in ("none", "chunks")]
        layer = [sum(p[n] for n in ("dense", "experts", "selection", "dispatch", "combine")) for p in parts]
        self.assertAlmostEqual(published.speedup(row), layer[0] / layer[1], delta=1e-12)


if __name__ == "__main__":
    unittest.main()
