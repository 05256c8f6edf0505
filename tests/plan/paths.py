"""Adds the folder of the planner to the import path."""
import pathlib
import sys

DIST = pathlib.Path(__file__).resolve().parents[2] / "bench" / "distributed"
sys.path.insert(0, str(DIST))
