"""Tests the comparison of measured rows with the plan on a small made-up file."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import paths
import inputs
import measured

ROW = {"ranks": 2, "shards": 2, "items": 64, "dim": 8, "hidden": 16, "experts": 4, "k": 1, "seconds": 0.5,
       "seconds_exchange": 0.1, "bytes": 4000}


class Rows(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "rows.json"
        self.machine, self.network = inputs.machine("xeon_2cores"), inputs.network("one_machine")

    def tearDown(self):
        self.folder.cleanup()

    def predict(self, **changes):
        return measured.predict(ROW | changes, self.machine, self.network)

    def test_bytes_by_hand(self):
        # Each of two shards sends 8·(1 + 2) bytes of counts, 4 numbers of 64 bits, and 32·4 floats of logits. Half of
        # its 32 items go to the other shard: index 8, row 32, result 32, weight 4 and adjoints 32 + 4 + 32 bytes. It
        # sends half of the gradients of 8·4 + 4 parameters twice.
        each = 24 + 32 + 512 + 16 * (8 + 32 + 32 + 4 + 32 + 4 + 32) + 144
        self.assertAlmostEqual(self.predict()["bytes"], 2 * each, delta=1e-9)
        self.assertAlmostEqual(self.predict()["bytes_floor"], 2 * 16 * 4 * 32, delta=1e-9)

    def test_bytes_know_no_processes(self):
        """Only the seconds depend on processes: exchanges between processes are slower."""
        whole, half, one = (self.predict(ranks=r, shards=4) for r in (4, 2, 1))
        self.assertEqual((whole["bytes"], whole["bytes_floor"]), (half["bytes"], half["bytes_floor"]))
        self.assertTrue(one["seconds_exchange"] < half["seconds_exchange"] < whole["seconds_exchange"])

    def test_one_shard_or_none_computes(self):
        for shards in (0, 1):
            alone = self.predict(ranks=1, shards=shards)
            self.assertEqual((alone["seconds_exchange"], alone["bytes"], alone["bytes_floor"]), (0, 0, 0))
            self.assertGreater(alone["seconds"], 0)

    def test_shards_share_the_machine(self):
        """More shards do not reduce the seconds of computation, because they share the processors of the machine."""
        times = [self.predict(ranks=1, shards=s, items=4096) for s in (1, 2, 4)]
        compute = [t["seconds"] - t["seconds_exchange"] for t in times]
        self.assertTrue(compute[0] <= compute[1] * (1 + 1e-12) and compute[1] <= compute[2] * (1 + 1e-12))

    def test_a_row_that_lacks_something(self):
        self.path.write_text(json.dumps([ROW, {"ranks": 1}]))
        with self.assertRaisesRegex(ValueError, "row 1 lacks shards, items"):
            measured.read(self.path)

    def test_a_row_a_line(self):
        self.path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | {"shards": 0, "ranks": 1}) + "\n")
        self.assertEqual([r["shards"] for r in measured.read(self.path)], [2, 0])

    def test_uneven_processes(self):
        self.path.write_text(json.dumps([ROW | {"shards": 3}]))
        with self.assertRaisesRegex(ValueError, "3 shards on 2 processes"):
            measured.read(self.path)

    def test_program(self):
        self.path.write_text(json.dumps([ROW, ROW | {"ranks": 1, "bytes": 0}]))
        told = subprocess.run([sys.executable, "-B", str(paths.DIST / "plan.py"), "--check", str(self.path)],
                              capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertEqual(len(told), 4)
        self.assertTrue(told[2].startswith("| 2/2/64/8/16/4/1 | 0.5 |"))
        wrong = subprocess.run([sys.executable, "-B", str(paths.DIST / "plan.py"), "--check", "nowhere.json"],
                               capture_output=True, text=True)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("nowhere.json", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
